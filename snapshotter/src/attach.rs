//! Layers, mounted where a stack needs them: only those that are not, together, each by one call however many
//! containers wait for it, and within a deadline.
//!
//! A mount outlives this process, and can die before it: laminad unmounts, or its connection breaks and every read
//! fails though the mount is there. So a layer is taken for attached when laminad said so to this process, since
//! the control socket is what it is now (a laminad that starts makes a new one), and it is mounted. All others are
//! attached (again): for a live mount that is a no-op of laminad's.

use crate::daemon::{Daemon, Failure};
use crate::dirs::Dirs;
use crate::error::{Error, Result};
use crate::record::Layer;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Between two looks whether laminad is there.
const AGAIN: Duration = Duration::from_millis(100);

/// Attaches layers.
#[derive(Clone)]
pub(crate) struct Attacher {
    daemon: Daemon,
    dirs: Dirs,
    socket: PathBuf,
    deadline: Duration,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// The control socket that `attached` speaks of.
    socket: Option<Identity>,
    /// Numbers of directories; a number is one layer's for ever.
    attached: HashSet<u64>,
    /// One lock a directory being attached.
    flights: HashMap<u64, Arc<tokio::sync::Mutex<()>>>,
}

/// Of a socket file: another one at the same path has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    changed: (i64, i64),
}

impl Attacher {
    pub(crate) fn new(daemon: Daemon, dirs: Dirs, socket: &Path, deadline: Duration) -> Self {
        Self { daemon, dirs, socket: socket.to_owned(), deadline, shared: Arc::default() }
    }

    /// Sees to it that each layer is mounted at its directory, for the snapshot `start`. On an error some may be, and stay: they are the node's.
    pub(crate) async fn attach(&self, start: &str, layers: Vec<(Layer, u64)>) -> Result<()> {
        self.forget_if_daemon_is_new();
        let mut attaching = JoinSet::new();
        for (layer, dir) in layers.into_iter().filter(|(_, dir)| !self.is_attached(*dir)) {
            let (this, start) = (self.clone(), start.to_owned());
            attaching.spawn(async move { this.one(&layer, dir, &start).await });
        }
        let all = async {
            while let Some(attached) = attaching.join_next().await {
                attached.map_err(|error| Error::caused("attaching a layer failed", error))??;
            }
            Ok(())
        };
        let late = || Error::unavailable(format!("layers were not mounted within {} ms", self.deadline.as_millis()));
        tokio::time::timeout(self.deadline, all).await.unwrap_or_else(|_| Err(late()))
    }

    async fn one(&self, layer: &Layer, dir: u64, start: &str) -> Result<()> {
        let flight = Arc::clone(self.lock().flights.entry(dir).or_default());
        let outcome = {
            let _only = flight.lock().await;
            if self.is_attached(dir) { Ok(()) } else { self.ask(layer, dir, start).await }
        };
        let mut shared = self.lock();
        if Arc::strong_count(&flight) == 2 {
            shared.flights.remove(&dir); // nobody else waits for it
        }
        outcome
    }

    async fn ask(&self, layer: &Layer, dir: u64, start: &str) -> Result<()> {
        self.dirs.make_layer(dir)?;
        let target = self.dirs.fs(dir);
        let until = Instant::now() + control::HAND_OVER.min(self.deadline / 2);
        loop {
            let before = identity(&self.socket);
            match self.daemon.attach(layer, &target, start, self.deadline).await {
                Ok(()) => {
                    let mut shared = self.lock();
                    if before.is_some() && shared.socket == before {
                        shared.attached.insert(dir);
                    }
                    return Ok(());
                }
                // Its holder keeps the mounts alive while laminad's worker starts again.
                Err(failure @ Failure::Unreachable { .. }) if self.dirs.is_mounted(dir) => {
                    tracing::warn!("layer {} is used as it is mounted: {failure}", layer.id);
                    return Ok(());
                }
                Err(Failure::Unreachable { .. }) if Instant::now() < until => tokio::time::sleep(AGAIN).await,
                Err(failure) => {
                    return Err(Error::unavailable(format!("layer {} cannot be mounted: {failure}", layer.id)));
                }
            }
        }
    }

    fn is_attached(&self, dir: u64) -> bool {
        self.lock().attached.contains(&dir) && self.dirs.is_mounted(dir)
    }

    fn forget_if_daemon_is_new(&self) {
        let now = identity(&self.socket);
        let mut shared = self.lock();
        if now.is_some() && shared.socket != now {
            shared.attached.clear();
            shared.socket = now;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some(Identity { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) })
}
