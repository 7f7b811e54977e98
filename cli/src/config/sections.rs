//! The keys of the configuration file, section by section, and what they are where nobody says otherwise.

use super::words::{face, hedge, library, on_outage, record, secret};
use crate::quantity::{percent, size, time};
use blobstore::fetch::{self, Hedge, OnOutage};
use blobstore::store::Secret;
use fuse::{Face, Record};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

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
