//! The configuration file: one TOML file for the command and both daemons. Absent = defaults; an unknown key is an error
//! that names it and its line. `sections` has the keys and their defaults, `words` how single values are read.

mod sections;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use sections::{Config, FetchSection, ProfileSection, RegistrySection};

use crate::environment;
use crate::failure::Failure;
use blobstore::small_file;
use blobstore::store::{S3Settings, Settings};
use std::io;
use std::path::{Path, PathBuf};

/// Where the file is looked for when nobody says otherwise.
pub(crate) const DEFAULT_PATH: &str = "/etc/lamina/config.toml";

/// The longest file that is read: a device without an end is not waited for.
const LONGEST: u64 = 1 << 20;

/// The most requests in flight: sockets of one process.
const CONCURRENCY: usize = 10_000;

/// What keys with secrets have in their names.
const SECRETS: [&str; 4] = ["secret", "token", "access_key", "proxy"];

impl Config {
    /// Reads the file that was named, or the default one if there is one.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, Failure> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let text = match small_file::read_text(path, LONGEST) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound && named.is_none() => return Ok(Self::default()),
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
        config.refuse_relative_paths()?;
        Ok(config)
    }

    /// Where a daemon was started says nothing about where its files are.
    fn refuse_relative_paths(&self) -> Result<(), String> {
        let always = [
            ("[cache] dir", &self.cache.dir),
            ("[daemon] run", &self.daemon.run),
            ("[snapshotter] root", &self.snapshotter.root),
            ("[snapshotter] address", &self.snapshotter.address),
        ];
        let perhaps = [
            ("[fetch] ca_file", &self.fetch.ca_file),
            ("[store.s3] credentials_file", &self.store.s3.credentials_file),
        ];
        let perhaps = perhaps.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?)));
        let fixed = always.into_iter().chain(perhaps).map(|(key, path)| (key.to_owned(), path));
        let registries = self.registry.iter().filter_map(|(host, registry)| {
            Some((format!("[registry.\"{host}\"] ca_file"), registry.ca_file.as_ref()?))
        });
        match fixed.chain(registries).find(|(_, path)| !path.is_absolute()) {
            Some((key, path)) => Err(format!("{key} = \"{}\": an absolute path is needed", path.display())),
            None => Ok(()),
        }
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
