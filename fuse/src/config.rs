//! What `laminad` is told at its start, typed. The configuration file is read by the command line.

use crate::{Error, ProfileOptions};
use blobstore::fetch;
use std::path::PathBuf;
use std::time::Duration;

/// How layers' trees are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Face {
    /// The best that the kernel can do, found by trying: file-backed, else loop devices.
    #[default]
    Auto,
    /// File-backed EROFS mounts (Linux 6.12 and later) or nothing.
    File,
    /// EROFS over two loop devices (Linux 5.16 and later) or nothing.
    Loop,
}

/// Everything the daemon needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store's URL.
    pub store: String,
    /// What reaching it takes besides.
    pub store_settings: blobstore::store::Settings,
    /// Directory of the node's cache.
    pub cache_dir: PathBuf,
    /// The cache's limit, bytes.
    pub cache_size: u64,
    /// Part of the cache's file system that is left free, in percent.
    pub cache_reserve: u8,
    /// Whose chunks are cached: what was cached under one domain is not found under another.
    pub cache_domain: String,
    /// How long anything may wait for the store or the mounter; reads have their own in `fetch`.
    pub deadline: Duration,
    /// How long what this node uses is held in the store after it last said so; zero: never.
    pub lease: Duration,
    /// How chunks are fetched.
    pub fetch: fetch::Options,
    /// How profiles of starts are used.
    pub profile: ProfileOptions,
    /// Directory of sockets, state and device files. Its contents need not survive a reboot.
    pub run: PathBuf,
    /// How layers are shown.
    pub face: Face,
    /// Address of the metrics page, `host:port`; `None` = no page.
    pub metrics: Option<String>,
    /// Latency added to each request to the store: for benchmarks and tests.
    pub store_delay: Duration,
    /// How long readers wait for a new worker before the connection is aborted.
    pub successor_deadline: Duration,
}

impl Config {
    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join(control::SOCKET)
    }

    /// Makes the directories, and names them without links from now on: so does the kernel in its list of mounts, where
    /// ours are found by these names.
    pub(crate) fn settled(mut self) -> Result<Self, Error> {
        for path in [&mut self.run, &mut self.cache_dir] {
            let real = std::fs::create_dir_all(&path).and_then(|()| path.canonicalize());
            *path = real.map_err(|e| Error::path(path, e))?;
        }
        Ok(self)
    }

    /// Where the device files of layers appear: the FUSE mount.
    pub(crate) fn devices(&self) -> PathBuf {
        self.run.join("dev")
    }

    /// What a worker leaves to its successor.
    pub(crate) fn journal(&self) -> PathBuf {
        self.run.join("devices.journal")
    }

    /// Layers under `lamina mount`'s stacks.
    pub(crate) fn stacks(&self) -> PathBuf {
        self.run.join("mounts")
    }
}
