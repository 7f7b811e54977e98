//! What readers read, and what was fetched before they asked, as it happens: for those who record it or show it.
//!
//! Whoever reads a layer's data for others says so with [`Fetcher::was_read`], once for each read; what is fetched ahead says so
//! itself, once for each chunk, when it has come or failed. [`Fetcher::watch`] gives a bounded queue of these events. Nobody
//! who reads ever waits for who watches: an event that finds its queue full is lost, and counted. While nobody watches, an
//! event costs one look at a flag.

use super::{Fetcher, Layer};
use crate::layer::LayerId;
use crate::meter::Source;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Why something was brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A reader waited for it.
    Read,
    /// Reads made it likely.
    Readahead,
    /// It stood on a list, such as a profile's.
    Prefetch,
    /// The cache was to have it.
    Fill,
}

/// One read, or one chunk that was fetched ahead.
#[derive(Debug, Clone)]
pub struct Event {
    /// The layer.
    pub layer: LayerId,
    /// Bytes of its data space: of a read those that were asked for, perhaps of several chunks; else the chunk's.
    pub bytes: Range<u64>,
    /// Why it was brought; of what a reader came to wait for, why it was begun.
    pub cause: Cause,
    /// Where it came from, of several chunks the farthest; `None` when it could not be had.
    pub source: Option<Source>,
    /// When it was asked for.
    pub at: Instant,
    /// How long it took from then on.
    pub waited: Duration,
}

/// Events, from when it was made on.
#[derive(Debug)]
pub struct Watch {
    events: mpsc::Receiver<Event>,
    lost: Arc<AtomicU64>,
}

impl Watch {
    /// The next event; waits for it.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Events that found the queue full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Those who watch.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    any: AtomicBool,
    queues: Mutex<Vec<(mpsc::Sender<Event>, Arc<AtomicU64>)>>,
}

impl Watchers {
    fn add(&self, most: usize) -> Watch {
        let ((sender, events), lost) = (mpsc::channel(most.max(1)), Arc::<AtomicU64>::default());
        self.lock().push((sender, lost.clone()));
        self.any.store(true, Relaxed);
        Watch { events, lost }
    }

    fn tell(&self, event: &Event) {
        let mut queues = self.lock();
        queues.retain(|(queue, lost)| match queue.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                lost.fetch_add(1, Relaxed);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        });
        self.any.store(!queues.is_empty(), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(mpsc::Sender<Event>, Arc<AtomicU64>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetcher {
    /// The events from now on; at most `most` wait to be taken. Dropped, it costs nothing from the next event on.
    pub fn watch(&self, most: usize) -> Watch {
        self.inner.watchers.add(most)
    }

    /// Says that a reader has read these bytes of a layer's data space, asked for `at`; where from, `None` when they could
    /// not be had. Counts them.
    pub fn was_read(&self, layer: &Layer, bytes: Range<u64>, source: Option<Source>, at: Instant) {
        if let Some(source) = source {
            self.inner.meter.read(source, bytes.end.saturating_sub(bytes.start));
        }
        let (layer, cause) = (layer.id, Cause::Read);
        self.tell(|| Event { layer, bytes, cause, source, at, waited: at.elapsed() });
    }

    /// Tells those who watch, if anybody does.
    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.inner.watchers.any.load(Relaxed) {
            self.inner.watchers.tell(&event());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(start: u64) -> Event {
        let (layer, at) = (LayerId::from_bytes([1; 32]), Instant::now());
        Event { layer, bytes: start..start + 1, cause: Cause::Read, source: None, at, waited: Duration::ZERO }
    }

    #[tokio::test]
    async fn a_full_queue_loses_events_and_who_has_gone_is_forgotten() {
        let watchers = Watchers::default();
        assert!(!watchers.any.load(Relaxed));
        let (mut slow, gone) = (watchers.add(2), watchers.add(2));
        drop(gone);
        (0..5).for_each(|n| watchers.tell(&event(n)));
        assert_eq!((slow.lost(), watchers.lock().len()), (3, 1));
        assert_eq!(slow.next().await.map(|e| e.bytes), Some(0..1));
        drop(slow);
        watchers.tell(&event(9));
        assert!(!watchers.any.load(Relaxed));
    }
}
