//! The configuration file: one TOML file for the command and both daemons. Absent = defaults; an unknown key is an error
//! that names it and its line.

use crate::environment;
use crate::failure::Failure;
use crate::quantity::{percent, size, time};
use blobstore::fetch::{self, Hedge, OnOutage};
use blobstore::store::{S3Settings, Secret, Settings, USRBIO_LIBRARY};
use fuse::{Face, Record};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the file is looked for when nobody says otherwise.
pub(crate) const DEFAULT_PATH: &str = "/etc/lamina/config.toml";

/// The longest file that is read: a device without an end is not waited for.
const LONGEST: u64 = 1 << 20;

/// The most requests in flight: sockets of one process.
const CONCURRENCY: usize = 10_000;

/// What keys with secrets have in their names.
const SECRETS: [&str; 4] = ["secret", "token", "access_key", "proxy"];

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) store: StoreSection,
    pub(crate) cache: CacheSection,
    pub(crate) fetch: FetchSection,
    pub(crate) profile: ProfileSection,
    pub(crate) daemon: DaemonSection,
    pub(crate) snapshotter: SnapshotterSection,
    pub(crate) registry: BTreeMap<String, RegistrySection>,
}

/// `[store]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    pub(crate) url: String,
    pub(crate) trust: toml::Value,
    pub(crate) s3: S3Section,
    /// Read `3fs://` through 3FS's user-space library: whether, or which file it is.
    #[serde(deserialize_with = "library")]
    pub(crate) usrbio: Option<PathBuf>,
    /// How long what a node uses is held in the store after it last said so; zero: never.
    #[serde(deserialize_with = "time")]
    pub(crate) lease: Duration,
    /// Latency added to each request: benchmarks and tests only.
    #[serde(deserialize_with = "time")]
    pub(crate) added_latency: Duration,
}

/// `[store.s3]`: what is not here is looked for where AWS's own tools look.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct S3Section {
    pub(crate) endpoint: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) path_style: Option<bool>,
    pub(crate) allow_http: bool,
    pub(crate) profile: Option<String>,
    pub(crate) credentials_file: Option<PathBuf>,
    pub(crate) access_key_id: Option<String>,
    #[serde(deserialize_with = "secret")]
    pub(crate) secret_access_key: Option<Secret>,
    #[serde(deserialize_with = "secret")]
    pub(crate) session_token: Option<Secret>,
    pub(crate) anonymous: bool,
}

/// `[cache]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CacheSection {
    pub(crate) dir: PathBuf,
    #[serde(deserialize_with = "size")]
    pub(crate) size: u64,
    #[serde(deserialize_with = "percent")]
    pub(crate) reserve: u8,
    pub(crate) domain: String,
}

/// `[fetch]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FetchSection {
    pub(crate) concurrency: usize,
    #[serde(deserialize_with = "time")]
    pub(crate) deadline: Duration,
    #[serde(deserialize_with = "size")]
    pub(crate) decoded: u64,
    #[serde(deserialize_with = "size")]
    pub(crate) memory: u64,
    #[serde(deserialize_with = "size")]
    pub(crate) coalesce: u64,
    #[serde(deserialize_with = "size")]
    pub(crate) readahead: u64,
    pub(crate) neighbours: bool,
    #[serde(deserialize_with = "hedge")]
    pub(crate) hedge: Hedge,
    #[serde(deserialize_with = "on_outage")]
    pub(crate) on_outage: OnOutage,
    #[serde(deserialize_with = "secret")]
    pub(crate) proxy: Option<Secret>,
    pub(crate) ca_file: Option<PathBuf>,
}

/// `[profile]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProfileSection {
    #[serde(deserialize_with = "record")]
    pub(crate) record: Record,
    #[serde(deserialize_with = "size")]
    pub(crate) replay: u64,
    #[serde(deserialize_with = "time")]
    pub(crate) quiet: Duration,
    #[serde(deserialize_with = "time")]
    pub(crate) limit: Duration,
    pub(crate) node: String,
}

/// `[daemon]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DaemonSection {
    pub(crate) run: PathBuf,
    #[serde(deserialize_with = "face")]
    pub(crate) face: Face,
    pub(crate) metrics: String,
    #[serde(deserialize_with = "time")]
    pub(crate) successor_deadline: Duration,
}

/// `[snapshotter]`
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SnapshotterSection {
    pub(crate) root: PathBuf,
    pub(crate) address: PathBuf,
    pub(crate) metrics: String,
}

/// `[registry."HOST"]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RegistrySection {
    pub(crate) mirrors: Vec<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) plain_http: bool,
}

impl Default for StoreSection {
    fn default() -> Self {
        let url = "file:///var/lib/lamina/store".to_owned();
        let (trust, s3) = ("writers".into(), S3Section::default());
        let lease = Duration::from_secs(7 * 24 * 3600);
        Self { url, trust, s3, usrbio: None, lease, added_latency: Duration::ZERO }
    }
}

impl Default for CacheSection {
    fn default() -> Self {
        Self { dir: "/var/lib/lamina/cache".into(), size: 20 << 30, reserve: 5, domain: String::new() }
    }
}

impl Default for FetchSection {
    fn default() -> Self {
        let usual = fetch::Options::default();
        Self {
            concurrency: usual.concurrency,
            deadline: usual.deadline,
            decoded: usual.decoded,
            memory: usual.memory,
            coalesce: usual.coalesce,
            readahead: usual.readahead,
            neighbours: usual.neighbours,
            hedge: usual.hedge,
            on_outage: usual.on_outage,
            proxy: None,
            ca_file: None,
        }
    }
}

impl Default for ProfileSection {
    fn default() -> Self {
        let (quiet, limit) = (Duration::from_secs(3), Duration::from_secs(30));
        Self { record: Record::Store, replay: 128 << 20, quiet, limit, node: String::new() }
    }
}

impl Default for DaemonSection {
    fn default() -> Self {
        Self {
            run: "/run/lamina".into(),
            face: Face::Auto,
            metrics: "127.0.0.1:9191".to_owned(),
            successor_deadline: Duration::from_secs(30),
        }
    }
}

impl Default for SnapshotterSection {
    fn default() -> Self {
        Self {
            root: "/var/lib/lamina/snapshotter".into(),
            address: "/run/lamina/snapshotter.sock".into(),
            metrics: "127.0.0.1:9192".to_owned(),
        }
    }
}

impl Config {
    /// Reads the file that was named, or the default one if there is one.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let text = match read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(Self::default()),
            Err(e) => return Err(Failure::usage(format!("{}: {e}", path.display()))),
        };
        Self::parse(&text).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| told(&e, text))?;
        config.refuse_what_is_not_built()?;
        if config.fetch.concurrency == 0 || config.fetch.deadline.is_zero() {
            return Err("[fetch] concurrency and deadline: with 0 nothing could ever be read".to_owned());
        }
        if config.fetch.concurrency > CONCURRENCY {
            return Err(format!("[fetch] concurrency: at most {CONCURRENCY} requests can be in flight"));
        }
        for (key, path) in [
            ("[cache] dir", &config.cache.dir),
            ("[daemon] run", &config.daemon.run),
            ("[snapshotter] root", &config.snapshotter.root),
            ("[snapshotter] address", &config.snapshotter.address),
        ] {
            if !path.is_absolute() {
                return Err(format!("{key} = \"{}\": an absolute path is needed", path.display()));
            }
        }
        let files = [
            ("[fetch] ca_file", &config.fetch.ca_file),
            ("[store.s3] credentials_file", &config.store.s3.credentials_file),
        ];
        for (key, path) in files.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
            if !path.is_absolute() {
                return Err(format!("{key} = \"{}\": an absolute path is needed", path.display()));
            }
        }
        for (host, registry) in &config.registry {
            if let Some(path) = registry.ca_file.as_ref().filter(|path| !path.is_absolute()) {
                return Err(format!(
                    "[registry.\"{host}\"] ca_file = \"{}\": an absolute path is needed",
                    path.display()
                ));
            }
        }
        Ok(config)
    }

    /// Keys of the configuration's fixed form whose work is not done yet: a clear word is better than "unknown key", and
    /// better than doing nothing about it.
    fn refuse_what_is_not_built(&self) -> Result<(), String> {
        match self.store.trust.as_str() {
            Some("writers") => Ok(()),
            _ => Err("[store] trust: only \"writers\" is built yet".to_owned()),
        }
    }

    /// What the store's backend is told, the environment's part included.
    pub(crate) fn store_settings(&self) -> Settings {
        let s3 = &self.store.s3;
        Settings {
            ca_file: self.fetch.ca_file.clone(),
            proxy: self.fetch.proxy.clone(),
            s3: S3Settings {
                endpoint: s3.endpoint.clone(),
                region: s3.region.clone(),
                path_style: s3.path_style,
                allow_http: s3.allow_http,
                profile: s3.profile.clone(),
                credentials_file: s3.credentials_file.clone(),
                access_key_id: s3.access_key_id.clone(),
                secret_access_key: s3.secret_access_key.clone(),
                session_token: s3.session_token.clone(),
                anonymous: s3.anonymous,
                environment: environment::for_stores(),
            },
            usrbio: self.store.usrbio.clone(),
        }
    }

    /// The daemon's control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.daemon.run.join(control::SOCKET)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LONGEST {
        true => Err(io::Error::other(format!("longer than {LONGEST} bytes"))),
        false => Ok(text),
    }
}

/// What is wrong, with the line that it is in, unless that may hold a secret: errors go to logs that others read.
fn told(error: &toml::de::Error, text: &str) -> String {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = &text.as_bytes()[..at];
    let number = before.iter().filter(|&&byte| byte == b'\n').count();
    let line = text.lines().nth(number).unwrap_or_default();
    match SECRETS.iter().any(|secret| line.contains(secret)) {
        true => format!(
            "line {}: not TOML, or not what this key takes; the line may hold a secret and is not shown",
            number + 1
        ),
        false => error.to_string(),
    }
}

/// `true`, `false` or a path.
fn library<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Whether(bool),
        Which(PathBuf),
    }
    match Raw::deserialize(deserializer) {
        Ok(Raw::Whether(used)) => Ok(used.then(|| USRBIO_LIBRARY.into())),
        Ok(Raw::Which(path)) if path.is_absolute() => Ok(Some(path)),
        _ => Err(serde::de::Error::custom("true, false or the library's absolute path")),
    }
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(Secret::from))
}

/// One of a few words, and what each means.
fn word<'de, D: Deserializer<'de>, T: Copy>(deserializer: D, words: &[(&str, T)]) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let meant = words.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant);
    meant.ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        serde::de::Error::custom(format!("'{text}' is not one of {}", words.join(", ")))
    })
}

fn face<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Face, D::Error> {
    word(deserializer, &[("auto", Face::Auto), ("file", Face::File), ("loop", Face::Loop)])
}

fn hedge<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Hedge, D::Error> {
    word(deserializer, &[("p95", Hedge::P95), ("off", Hedge::Off)])
}

fn on_outage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OnOutage, D::Error> {
    word(deserializer, &[("fail", OnOutage::Fail), ("wait", OnOutage::Wait)])
}

fn record<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Record, D::Error> {
    word(deserializer, &[("store", Record::Store), ("node", Record::Node), ("off", Record::Off)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults() {
        let config = Config::parse("").unwrap();
        assert_eq!(config.store.url, "file:///var/lib/lamina/store");
        assert_eq!(config.cache.size, 20 << 30);
    }

    #[test]
    fn the_file_that_is_shipped_lists_the_defaults() {
        let shipped = include_str!("../../dist/config.toml");
        let config = Config::parse(shipped).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        let listed = |key: &str| shipped.lines().any(|l| l.trim_start_matches("# ").starts_with(&format!("{key} = ")));
        // Debug names every field, as `name: value`; those that are not built yet have none.
        let text = format!("{config:?}").replace(": None", "");
        let keys = text.split([' ', '{', ',']).filter_map(|word| word.strip_suffix(':'));
        let sections = ["store", "s3", "cache", "fetch", "profile", "daemon", "snapshotter", "registry"];
        for key in keys.filter(|k| !sections.contains(k)) {
            assert!(listed(key), "{key} is not in dist/config.toml");
        }
    }

    #[test]
    fn sizes_and_times_take_units() {
        let text = "[cache]\nsize = \"1 MiB\"\nreserve = \"7%\"\n[fetch]\ndeadline = \"250ms\"\ndecoded = 4096";
        let config = Config::parse(text).unwrap();
        assert_eq!((config.cache.size, config.cache.reserve), (1 << 20, 7));
        assert_eq!((config.fetch.deadline, config.fetch.decoded), (Duration::from_millis(250), 4096));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let error = Config::parse("[cache]\nsize = 1\nsiez = 2\n").unwrap_err();
        assert!(error.contains("siez") && error.contains("line 3"), "{error}");
    }

    #[test]
    fn keys_that_are_not_built_yet_say_so() {
        let text = "[store]\ntrust = { keys = [] }";
        assert!(Config::parse(text).unwrap_err().contains("built yet"), "{text}");
        let config = Config::parse("[fetch]\non_outage = \"fail\"\n[cache]\ndomain = \"tenant-7\"").unwrap();
        assert_eq!(config.cache.domain, "tenant-7");
    }

    #[test]
    fn a_bucket_has_settings_of_its_own_and_secrets_in_them_are_not_shown() {
        let text = "[store]\nurl = \"s3://b/p\"\n[store.s3]\nendpoint = \"https://h\"\npath_style = false\naccess_key_id = \"k\"\nsecret_access_key = \"hush\"\n[fetch]\nproxy = \"http://u:hush@p\"\nca_file = \"/ca.pem\"";
        let config = Config::parse(text).unwrap();
        let settings = config.store_settings();
        assert_eq!((settings.s3.endpoint.as_deref(), settings.s3.path_style), (Some("https://h"), Some(false)));
        assert_eq!(settings.s3.secret_access_key.as_ref().map(Secret::expose), Some("hush"));
        assert!(!format!("{config:?}{settings:?}").contains("hush"));
        assert!(Config::parse("[store.s3]\nendpoint = \"x\"\nregoin = \"x\"").unwrap_err().contains("line 3"));
        let usrbio = |value: &str| Config::parse(&format!("[store]\nusrbio = {value}")).map(|c| c.store.usrbio);
        assert_eq!(usrbio("true").unwrap(), Some(USRBIO_LIBRARY.into()));
        assert_eq!(usrbio("\"/opt/lib.so\"").unwrap(), Some("/opt/lib.so".into()));
        assert_eq!(usrbio("false").unwrap(), None);
        assert!(usrbio("\"lib.so\"").unwrap_err().contains("absolute"));
        assert!(Config::parse("[store.s3]\ncredentials_file = \"x\"").unwrap_err().contains("absolute"));
    }

    #[test]
    fn an_error_does_not_show_the_line_of_a_secret() {
        for bad in [
            "secret_access_key = \"hush",
            "secret_access_key = 4711",
            "session_token = hush",
            "access_key_id = [\"hush\"]",
        ] {
            let error = Config::parse(&format!("[store.s3]\nregion = \"x\"\n{bad}\n")).unwrap_err();
            assert!(error.contains("line 3") && !error.contains("hush") && !error.contains("4711"), "{error}");
        }
        let error = Config::parse("[fetch]\nproxy = \"http://u:hush@p").unwrap_err();
        assert!(error.contains("line 2") && !error.contains("hush"), "{error}");
    }

    #[test]
    fn a_size_of_another_type_is_told_as_what_it_is() {
        for (value, shown) in [("-1", "'-1'"), ("1.5", "'1.5'"), ("true", "'true'"), ("\"1.5GiB\"", "'1.5GiB'")] {
            let error = Config::parse(&format!("[cache]\nsize = {value}")).unwrap_err();
            assert!(error.contains(shown) && error.contains("is not a size such as"), "{error}");
        }
    }

    #[test]
    fn a_file_without_an_end_is_no_configuration() {
        let error = Config::load(Some(Path::new("/dev/zero"))).unwrap_err();
        assert!(error.status == crate::failure::USAGE && error.to_string().contains("longer than"), "{error}");
    }

    #[test]
    fn registries_are_tables_by_host() {
        let text = "[registry.\"h:5000\"]\nmirrors = [\"m\"]\nca_file = \"/ca.pem\"\n[registry.\"docker.io\"]\nplain_http = true";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.registry["h:5000"].mirrors, ["m"]);
        assert!(config.registry["docker.io"].plain_http);
        assert!(Config::parse("[registry.\"h\"]\ninsecure = true").unwrap_err().contains("line 2"));
        assert!(Config::parse("[registry.\"h\"]\nca_file = \"ca.pem\"").unwrap_err().contains("absolute"));
    }

    #[test]
    fn fetching_needs_room_and_time() {
        assert!(Config::parse("[fetch]\nconcurrency = 0").unwrap_err().contains("[fetch]"));
        assert!(Config::parse("[fetch]\nconcurrency = 6148914691236517205").unwrap_err().contains("at most"));
        assert!(Config::parse("[fetch]\ndeadline = \"0s\"").unwrap_err().contains("[fetch]"));
    }

    #[test]
    fn a_word_that_means_nothing_is_refused_with_those_that_do() {
        let error = Config::parse("[fetch]\non_outage = \"never\"").unwrap_err();
        assert!(error.contains("'never' is not one of \"fail\", \"wait\"") && error.contains("line 2"), "{error}");
        assert_eq!(Config::parse("[daemon]\nface = \"loop\"").unwrap().daemon.face, Face::Loop);
    }

    #[test]
    fn a_time_without_a_unit_and_a_relative_path_are_refused() {
        assert!(Config::parse("[fetch]\ndeadline = 30").unwrap_err().contains("30s"));
        assert!(Config::parse("[daemon]\nrun = \"here\"").unwrap_err().contains("absolute"));
    }
}
