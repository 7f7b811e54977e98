//! Which chains need no unpack: those whose stack laminad finds in the store.
//!
//! An image pull asks for each of its layers, bottom up, so the answer must come soon and a "no" must be cheap:
//! a "no" is remembered for a short time (containerd tries each Prepare three times), and after a store or daemon that
//! did not answer in time, nothing is asked for as long. Every "no" means an ordinary unpack: slower, never wrong.

use crate::daemon::{Daemon, Failure};
use crate::record::{Layer, is_hash};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Remembered answers at most; past it the outdated ones go, and if there are none, all.
const REMEMBERED: usize = 4096;

/// Looks chains up.
pub(crate) struct Remote {
    daemon: Daemon,
    deadline: Duration,
    memory: Duration,
    no: Mutex<HashMap<String, Instant>>,
    silent_until: Mutex<Option<Instant>>,
    /// An outage is logged when it begins and when it ends.
    out: AtomicBool,
}

impl Remote {
    /// Each answer takes no longer than `deadline`; a negative one is remembered for `memory`.
    pub(crate) fn new(daemon: Daemon, deadline: Duration, memory: Duration) -> Self {
        let (no, silent_until, out) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { daemon, deadline, memory, no, silent_until, out }
    }

    /// The stack of a chain, bottom to top; None = it has to be unpacked.
    pub(crate) async fn stack(&self, chain: &str) -> Option<Vec<Layer>> {
        if !is_chain_id(chain) || self.is_known_absent(chain) {
            return None;
        }
        match self.daemon.resolve_usable(chain, self.deadline).await {
            Ok(layers) => {
                self.answered();
                Some(layers)
            }
            Err(Failure::Absent(why)) => {
                self.answered();
                tracing::debug!("{chain} is unpacked: {why}");
                self.remember(chain);
                None
            }
            Err(failure) => {
                if matches!(failure, Failure::Failed(_)) {
                    *lock(&self.silent_until) = Some(Instant::now() + self.memory);
                }
                if !self.out.swap(true, Ordering::Relaxed) {
                    tracing::warn!("images are unpacked, not served lazily: {failure}");
                }
                None
            }
        }
    }

    fn answered(&self) {
        if self.out.swap(false, Ordering::Relaxed) {
            tracing::info!("laminad answers again: images are served lazily");
        }
    }

    fn is_known_absent(&self, chain: &str) -> bool {
        let now = Instant::now();
        lock(&self.silent_until).is_some_and(|until| now < until)
            || lock(&self.no).get(chain).is_some_and(|until| now < *until)
    }

    fn remember(&self, chain: &str) {
        let now = Instant::now();
        let mut no = lock(&self.no);
        if no.len() >= REMEMBERED {
            no.retain(|_, until| now < *until);
        }
        if no.len() >= REMEMBERED {
            no.clear();
        }
        no.insert(chain.to_owned(), now + self.memory);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The label comes from a client: nothing but a digest is passed on as a reference.
fn is_chain_id(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_hash)
}
