//! Lists of chunks that are fetched before anybody asks: those of a layer, and what profiles say of starts.
//!
//! They are fetched behind all that readers wait for, verified, and kept as they are stored, in memory (`stored.rs`) and in the
//! local cache: a start's chunks are more than `decoded` holds. Chunks of [`Starts`] are also decompressed ahead of the
//! reads, as far as half of `decoded` goes: what is read makes room for more. Where nobody comes to read what was
//! decompressed, that is where it stops. However many layers a start has, and each of them a profile, they are one start
//! (`expected.rs`): in the order of its time, and as many bytes as one may have.

use super::decoded::key;
use super::dispatch::Dispatcher;
use super::expected::Expected;
use super::flight::wait;
use super::queue::Place;
use super::watch::Cause;
use super::{FetchError, Fetched, Fetcher, Layer};
use crate::layer::LayerId;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Chunks that wait or are under way at once: enough for every request to be a long one.
const UNDER_WAY: usize = 256;
/// Chunks that are asked for together: neighbours among them become one request.
const TOGETHER: usize = 64;
/// How often room for decompressed chunks is looked for: a few reads' time.
const LOOK: Duration = Duration::from_millis(2);

impl Fetcher {
    /// Fetches chunks of a layer in the order of the list, behind everything that readers wait for. Those that are here
    /// are passed over, those that cannot be had are left out. Must be called within a tokio runtime.
    pub fn prefetch(&self, layer: &Layer, chunks: Vec<u32>) -> Prefetch {
        let (fetcher, layer) = (self.clone(), layer.clone());
        Prefetch(tokio::spawn(async move {
            drop(fetcher.bring_all(&layer, &chunks, Cause::Prefetch).await);
        }))
    }

    /// Fetches chunks of a layer for the cache, behind everything that readers wait for, and keeps nothing in memory. Those
    /// that are in the cache, or that a reader's fetch brings already, are passed over. What came is in the cache once it is
    /// written ([`crate::cache::Chunks::flush`]), if that takes it. Each is tried once. Dropped before its end, it is given up
    /// as a [`Prefetch`] is. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Why the first of those that did not come did not; the others were fetched all the same.
    pub async fn fill(&self, layer: &Layer, chunks: &[u32]) -> Result<(), FetchError> {
        self.bring_all(layer, chunks, Cause::Fill).await
    }

    async fn bring_all(&self, layer: &Layer, chunks: &[u32], cause: Cause) -> Result<(), FetchError> {
        let mut under_way = UnderWay::new(self, cause);
        for together in chunks.chunks(TOGETHER) {
            under_way.begin(self, together.iter().map(|chunk| (layer, *chunk)));
            under_way.wait_until(UNDER_WAY).await;
        }
        under_way.wait_until(0).await;
        under_way.failed.take().map_or(Ok(()), Err)
    }

    /// Fetches, and decompresses, what starts are expected to read, as long as the result lives; of each start at most so many
    /// `bytes`, as they are stored. What was not read so long after it was expected is given up. Must be called within a tokio
    /// runtime.
    pub fn starts(&self, bytes: u64, patience: Duration) -> Starts {
        let shared = Arc::new(Shared {
            expected: Mutex::new(Expected::new(bytes, patience)),
            added: Notify::new(),
            begun: Notify::new(),
        });
        let fetch = tokio::spawn(fetch_starts(self.clone(), shared.clone()));
        let decode = tokio::spawn(decode_starts(self.clone(), shared.clone(), patience));
        Starts { fetcher: self.clone(), shared, tasks: [fetch, decode] }
    }
}

/// A list that is being prefetched. Dropped before its end, it is given up: what waits in the queue, and no reader has come to
/// want, leaves it.
#[derive(Debug)]
pub struct Prefetch(JoinHandle<()>);

impl Prefetch {
    /// Waits for the end of the list.
    pub async fn finished(mut self) {
        let _ = (&mut self.0).await;
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What starts on this node are expected to read, in the order of when, whichever layer it is of.
#[derive(Debug)]
pub struct Starts {
    fetcher: Fetcher,
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

impl Starts {
    /// Adds chunks of a layer that was mounted then, and how long after the start's beginning each is expected to be read. What
    /// is mounted for the same `start` has one beginning, that of the layer that was added first, and one number of bytes: where that is
    /// less than what all want and this node has not, what is expected first is fetched. Unless it is about to come, what was added
    /// before makes room.
    pub fn add(
        &self,
        start: &str,
        begun: Instant,
        layer: &Arc<Layer>,
        chunks: impl IntoIterator<Item = (Duration, u32)>,
    ) {
        let mut pattern = layer.pattern.lock().unwrap_or_else(PoisonError::into_inner);
        let with_bytes = |(after, chunk)| Some((after, chunk, self.fetcher.bytes_to_fetch(layer, chunk)?));
        let chunks: Vec<_> = chunks.into_iter().filter_map(with_bytes).collect();
        let in_vain: HashSet<u32> =
            self.shared.lock().add(start, begun, layer, chunks.iter().copied()).into_iter().collect();
        let expected = chunks.iter().map(|(_, chunk, _)| *chunk).filter(|chunk| !in_vain.contains(chunk));
        expected.for_each(|chunk| pattern.foresee(chunk));
        self.shared.added.notify_one();
    }

    /// Gives up what is still to be fetched or decompressed of a layer.
    pub fn remove(&self, layer: &LayerId) {
        for chunk in self.shared.lock().remove(layer) {
            self.fetcher.inner.dispatcher.cancel(Place { layer: *layer, chunk });
        }
    }

    /// Chunks that are still to be fetched, and those that are to be decompressed.
    pub fn left(&self) -> (usize, usize) {
        self.shared.lock().left()
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Debug)]
struct Shared {
    expected: Mutex<Expected>,
    /// Something is to be fetched.
    added: Notify,
    /// Something is to be decompressed.
    begun: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn fetch_starts(fetcher: Fetcher, shared: Arc<Shared>) {
    let mut under_way = UnderWay::new(&fetcher, Cause::Prefetch);
    loop {
        let any = {
            let mut expected = shared.lock();
            let next = expected.take(TOGETHER);
            // Before anybody sees that they are to be decompressed: what is neither here nor under way is given up.
            under_way.begin(&fetcher, next.iter().map(|(layer, chunk)| (&**layer, *chunk)));
            !next.is_empty()
        };
        if !any {
            tokio::select! {
                () = shared.added.notified() => {}
                () = under_way.wait_until(0), if !under_way.chunks.is_empty() => {}
            }
            continue;
        }
        shared.begun.notify_one();
        under_way.wait_until(UNDER_WAY).await;
    }
}

async fn decode_starts(fetcher: Fetcher, shared: Arc<Shared>, patience: Duration) {
    loop {
        let first = shared.lock().to_decode();
        let Some((due, layer)) = first else {
            shared.begun.notified().await;
            continue;
        };
        let late = due.at.checked_add(patience).is_some_and(|late| late < Instant::now());
        if late || fetcher.decoded_ahead(&layer, due.chunk).await {
            shared.lock().decoded(&due);
        } else {
            sleep(LOOK).await;
        }
    }
}

impl Fetcher {
    /// Bytes that have to come from the store for a chunk: none, where it is on this node. `None`: there is no such chunk.
    fn bytes_to_fetch(&self, layer: &Layer, chunk: u32) -> Option<u64> {
        let located = layer.index.chunk_at(chunk)?;
        let is_here = self.inner.is_in_memory(&key(&located.entry)) || self.inner.is_cached(&located);
        Some(if is_here { 0 } else { located.entry.stored_len.into() })
    }

    /// Decompresses a chunk ahead of its first reader. `false` where it is to be tried again: it is still coming, or there is
    /// no room.
    async fn decoded_ahead(&self, layer: &Arc<Layer>, chunk: u32) -> bool {
        let inner = &self.inner;
        let Some(located) = layer.index.chunk_at(chunk) else { return true };
        let key = key(&located.entry);
        // A reader who came first has it, or is about to.
        let asked = layer.pattern.lock().unwrap_or_else(PoisonError::into_inner).was_asked(chunk);
        if asked || inner.decoded.contains(&key) {
            return true;
        }
        if inner.flights.is_under_way(&key) || inner.room_ahead() < u64::from(located.entry.data_len) {
            return false;
        }
        let (inner, layer) = (self.inner.clone(), layer.clone());
        let _ = tokio::task::spawn_blocking(move || inner.decode_ahead(&layer, &located)).await;
        true
    }
}

/// Chunks of a list that have not come, in its order.
struct UnderWay {
    dispatcher: Arc<Dispatcher>,
    chunks: VecDeque<(Place, watch::Receiver<Option<Fetched>>)>,
    cause: Cause,
    /// Why the first of those that did not come did not.
    failed: Option<FetchError>,
}

impl UnderWay {
    fn new(fetcher: &Fetcher, cause: Cause) -> Self {
        Self { dispatcher: fetcher.inner.dispatcher.clone(), chunks: VecDeque::new(), cause, failed: None }
    }

    /// Begins to fetch chunks, together.
    fn begin<'a>(&mut self, fetcher: &Fetcher, together: impl Iterator<Item = (&'a Layer, u32)>) {
        let mut asks = Vec::new();
        for (layer, chunk) in together {
            self.chunks.extend(fetcher.begin_ahead(layer, chunk, self.cause, &mut asks));
        }
        self.dispatcher.ask(asks);
    }

    /// Waits for the first ones until so many are left.
    async fn wait_until(&mut self, left: usize) {
        while self.chunks.len() > left
            && let Some((_, result)) = self.chunks.front()
        {
            let done = wait(result.clone()).await;
            self.chunks.pop_front();
            if let (Some(Err(error)), None) = (done, &self.failed) {
                self.failed = Some(error);
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.chunks.iter().for_each(|(place, _)| self.dispatcher.cancel(*place));
    }
}
