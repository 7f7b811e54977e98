//! What this node uses of the store, said in its leases, so that nobody deletes it there.
//!
//! Two of them: of what is mounted or was looked up a moment ago, and of what the snapshotter's snapshots name, mounted or
//! not. The first is found in the list of mounts whenever it is written; the second is told by the snapshotter, again and
//! again, and is not touched before it was told. No start waits for any of this: what is new is written a moment later, what
//! is no longer used goes with the next renewal.
//!
//! A node that cannot write its store holds nothing. That is said once.

use crate::Error as NodeError;
use blobstore::collect::{Error, Lease, holder_name};
use blobstore::layer::LayerId;
use blobstore::refs::{Refs, Stack, layer_key};
use blobstore::store::{Store, StoreError};
use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long what was looked up is held, whether it is mounted or not: time for the snapshotter to say that it needs it.
const RECENT: Duration = Duration::from_secs(600);

/// What comes at once is written at once.
const TOGETHER: Duration = Duration::from_millis(200);

/// After a failure.
const AGAIN: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    used: Lease,
    snapshots: Lease,
    ttl: Duration,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    recent: HashMap<LayerId, Instant>,
    snapshots: Option<BTreeSet<LayerId>>,
}

impl State {
    /// What was looked up and is still held for that.
    fn recent(&mut self, now: Instant) -> Vec<LayerId> {
        self.forget(now);
        self.recent.keys().copied().collect()
    }

    fn forget(&mut self, now: Instant) {
        self.recent.retain(|_, at| now.saturating_duration_since(*at) < RECENT);
    }
}

/// What one lease said when it was last written.
#[derive(Default)]
struct Said {
    layers: BTreeSet<LayerId>,
    at: Option<Instant>,
}

impl Leases {
    pub(crate) fn new(store: &Arc<dyn Store>, cache: &Path, ttl: Duration) -> Self {
        // Nobody else has this directory, on whatever machine.
        let place = std::fs::metadata(cache).map(|found| (found.dev(), found.ino())).unwrap_or_default();
        let who = holder_name(&format!("{} {place:?}", cache.display()));
        let lease = |part: &str| Lease::of_node(Arc::clone(store), &who, part, ttl);
        let (used, snapshots) = (lease("used"), lease("snapshots"));
        Self { used, snapshots, ttl, state: Mutex::default(), news: Notify::new() }
    }

    /// Something was looked up, and will be used most likely.
    pub(crate) fn looked_up(&self, stack: &Stack) {
        let now = Instant::now();
        let mut state = self.lock();
        state.forget(now);
        state.recent.extend(stack.layers().iter().map(|entry| (entry.layer, now)));
        drop(state);
        self.news.notify_one();
    }

    /// What all snapshots name.
    pub(crate) fn snapshots(&self, layers: BTreeSet<LayerId>) {
        self.lock().snapshots = Some(layers);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes leases for as long as the worker serves; `mounted` tells what is mounted or stacked now.
    pub(crate) async fn run(&self, refs: &Refs, mounted: impl Fn() -> Result<BTreeSet<LayerId>, NodeError>) {
        if self.ttl.is_zero() {
            return tracing::info!("[store] lease is 0: what this node uses is not held in the store");
        }
        let (mut used, mut snapshots) = (Said::default(), Said::default());
        let mut told = false;
        loop {
            let mounted = match mounted() {
                Ok(mounted) => mounted,
                Err(error) => {
                    // What was said lasts for a while; to say less now would let go of what is in use.
                    tracing::warn!(error = error.report(), "what is mounted here cannot be read");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let wanted = mounted.into_iter().chain(self.lock().recent(Instant::now())).collect();
            let mut done = self.say(refs, &self.used, wanted, &mut used).await;
            let named = self.lock().snapshots.clone();
            if let (Ok(()), Some(named)) = (&done, named) {
                done = self.say(refs, &self.snapshots, named, &mut snapshots).await;
            }
            let pause = match done {
                Ok(()) => {
                    told = false;
                    self.ttl / 4
                }
                Err(error) => {
                    let never = cannot_be_written(&error);
                    if !std::mem::replace(&mut told, true) {
                        tell(&error, never);
                    }
                    if never { self.ttl / 4 } else { AGAIN }
                }
            };
            let news = async {
                self.news.notified().await;
                tokio::time::sleep(TOGETHER).await;
            };
            tokio::select! {
                () = news, if !told => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Writes a lease if it lacks something, or is due to be renewed.
    async fn say(&self, refs: &Refs, lease: &Lease, wanted: BTreeSet<LayerId>, said: &mut Said) -> Result<(), Error> {
        let due = said.at.is_some_and(|at| at.elapsed() >= self.ttl / 4);
        if !due && wanted.is_subset(&said.layers) {
            return Ok(());
        }
        // What lies where nothing is mounted is no store to write to.
        refs.check_format().await?;
        let going = lease.replace(wanted.iter().map(layer_key)).await?;
        *said = Said { layers: wanted, at: Some(Instant::now()) };
        if !going.is_empty() {
            tracing::warn!(layers = going.len(), "a collector is about to delete layers that were just looked up");
            lease.settle().await?;
            for key in going {
                if let Err(StoreError::NotFound { .. }) = refs.store().stat(&key).await {
                    tracing::error!(key, "the store has lost a layer that this node uses");
                }
            }
        }
        Ok(())
    }
}

/// Whether trying again soon is of no use.
fn cannot_be_written(error: &Error) -> bool {
    match error {
        Error::Store(StoreError::Unsupported { .. } | StoreError::Denied { .. }) => true,
        Error::Store(StoreError::Io { source, .. }) => {
            matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
        }
        _ => false,
    }
}

fn tell(error: &Error, never: bool) {
    let error = blobstore::causes(error);
    match never {
        true => tracing::warn!(
            error,
            "this node may not write node/leases/ in the store: nothing keeps what it uses there when its names are removed"
        ),
        false => tracing::warn!(error, "cannot say in the store what this node uses: trying again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_up_is_held_for_a_while_also_where_nothing_else_is_looked_up() {
        let (mut state, now, layer) = (State::default(), Instant::now(), |n| LayerId::from_bytes([n; 32]));
        state.recent.extend([(layer(1), now), (layer(2), now + RECENT / 2)]);
        assert_eq!(state.recent(now + RECENT / 2).len(), 2);
        assert_eq!(state.recent(now + RECENT), [layer(2)]);
        assert_eq!(state.recent(now + RECENT * 2), []);
    }
}
