//! Tells laminad which layers snapshots name, so that the store keeps them: also those that nothing has mounted yet.
//!
//! The whole set, whenever it has changed and every minute besides, since laminad may have been started anew. What it does
//! with that is its business; one that cannot be reached, or knows nothing of it, is told the next time.

use crate::daemon::Daemon;
use crate::error::Result;
use crate::state::State;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often it is told in any case.
const EVERY: Duration = Duration::from_secs(60);

/// Changes come in rows: so long the next is waited for.
const TOGETHER: Duration = Duration::from_millis(500);

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct Keeper {
    state: Arc<State>,
    daemon: Daemon,
    changed: tokio::sync::Notify,
}

impl Keeper {
    pub(crate) fn new(state: Arc<State>, daemon: Daemon) -> Self {
        Self { state, daemon, changed: Default::default() }
    }

    /// Other layers are named now.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Tells, for ever.
    pub(crate) async fn run(&self) {
        loop {
            match self.named() {
                Ok(layers) => {
                    if let Err(failure) = self.daemon.keep(layers, DEADLINE).await {
                        tracing::debug!("laminad was not told what snapshots name: {failure}");
                    }
                }
                Err(error) => tracing::warn!("cannot tell what snapshots name: {error}"),
            }
            let changed = async {
                self.changed.notified().await;
                tokio::time::sleep(TOGETHER).await;
            };
            let _ = tokio::time::timeout(EVERY, changed).await;
        }
    }

    fn named(&self) -> Result<Vec<String>> {
        let mut named = BTreeSet::new();
        self.state.read()?.scan(|_, record| {
            named.extend(record.layers().map(|layer| layer.id.clone()));
            Ok(())
        })?;
        Ok(named.into_iter().collect())
    }
}
