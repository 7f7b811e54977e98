//! What is fetched before anybody asks: by what reads look like, and by lists.

use super::dispatch::{Ask, Dispatcher};
use super::flight::wait;
use super::queue::Place;
use super::{FetchError, Fetched, Fetcher, Inner, Layer};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Chunks of a list that wait or are under way at once: enough for every request to be a long one.
const UNDER_WAY: usize = 256;
/// Chunks of a list that are asked for together.
const TOGETHER: usize = 16;

/// Bytes, decoded, of what was begun ahead and has not come.
#[derive(Debug, Default)]
pub(super) struct Begun(AtomicU64);

/// A part of them.
pub(super) struct Share {
    begun: Arc<Begun>,
    bytes: u64,
}

impl Begun {
    /// Counts these bytes until the share is dropped.
    pub(super) fn share(self: &Arc<Self>, bytes: u64) -> Share {
        self.0.fetch_add(bytes, Relaxed);
        Share { begun: self.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.begun.0.fetch_sub(self.bytes, Relaxed);
    }
}

impl Inner {
    /// Bytes that may still be fetched ahead: half of those that are kept, less what has come and was not read, and what is
    /// to come.
    fn room_ahead(&self) -> u64 {
        self.decoded.room_ahead().saturating_sub(self.ahead.0.load(Relaxed))
    }
}

impl Fetcher {
    /// Notes that a reader reads these bytes of a layer's data space. Gives the chunks to fetch ahead of the next reads,
    /// for [`Fetcher::get_all`] or [`Fetcher::fetch_ahead`]: those ahead of a run of reads (`[fetch] readahead`),
    /// and, where the store is far, neighbours of the chunks read that are likely to be next.
    pub fn noticed(&self, layer: &Layer, bytes: Range<u64>) -> Vec<u32> {
        let options = &self.inner.options;
        let (first, last) = (layer.index.locate(bytes.start), layer.index.locate(bytes.end.saturating_sub(1)));
        let Some(first) = first else { return Vec::new() };
        let last = last.map_or(first.chunk, |last| last.chunk);
        let mut pattern = layer.pattern.lock().unwrap_or_else(PoisonError::into_inner);
        let asked: Vec<u32> = (first.chunk..=last).flat_map(|chunk| pattern.asked(chunk)).collect();
        // A chunk at least, where there is any readahead: else a run would stop for what others have not read.
        let most = options.readahead.min(self.inner.room_ahead().max(u64::from(first.entry.data_len)));
        let advice = pattern.read(bytes, most);
        drop(pattern);
        for chunk in chunks_of(layer, advice.drop) {
            self.inner.dispatcher.cancel(Place { layer: layer.id, chunk });
        }
        let mut ahead: Vec<u32> = chunks_of(layer, advice.fetch).filter(|chunk| *chunk > last).collect();
        if options.neighbours && self.inner.dispatcher.pace.far() {
            ahead.extend(asked);
        }
        ahead
    }

    /// Begins to fetch chunks that nobody waits for yet. Must be called within a tokio runtime.
    pub fn fetch_ahead(&self, layer: &Layer, chunks: &[u32]) {
        if chunks.is_empty() {
            return;
        }
        let mut asks = Vec::new();
        self.begin_readahead(layer, chunks, &mut asks);
        self.inner.dispatcher.ask(asks);
    }

    /// As [`Fetcher::begin_ahead`], as far as there is room; one chunk at least. What there is no room for was advised to
    /// several readers at once, and is fetched when it is read.
    pub(super) fn begin_readahead(&self, layer: &Layer, chunks: &[u32], asks: &mut Vec<Ask>) {
        let mut any = false;
        for chunk in chunks {
            if any && self.inner.room_ahead() == 0 {
                return;
            }
            any |= !self.begin_ahead(layer, &[*chunk], true, asks).is_empty();
        }
    }

    /// Fetches chunks of a layer in the order of the list, behind everything that readers wait for. Those that are here
    /// are passed over, those that cannot be had are left out. Must be called within a tokio runtime.
    pub fn prefetch(&self, layer: &Layer, chunks: Vec<u32>) -> Prefetch {
        let (fetcher, layer) = (self.clone(), layer.clone());
        Prefetch(tokio::spawn(async move { fetcher.prefetch_all(&layer, &chunks).await }))
    }

    async fn prefetch_all(&self, layer: &Layer, chunks: &[u32]) {
        drop(self.bring_all(layer, chunks, true).await);
    }

    /// Fetches chunks of a layer for the cache, behind everything that readers wait for, and keeps nothing in memory. Those
    /// that are in the cache, or that a reader's fetch brings already, are passed over. What came is in the cache once it is written
    /// ([`crate::cache::Chunks::flush`]), if that takes it. Each is tried once. Dropped before its end, it is given up as a
    /// [`Prefetch`] is. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Why the first of those that did not come did not; the others were fetched all the same.
    pub async fn fill(&self, layer: &Layer, chunks: &[u32]) -> Result<(), FetchError> {
        self.bring_all(layer, chunks, false).await
    }

    async fn bring_all(&self, layer: &Layer, chunks: &[u32], keep: bool) -> Result<(), FetchError> {
        let mut under_way = UnderWay { dispatcher: self.inner.dispatcher.clone(), places: VecDeque::new() };
        let (mut results, mut first) = (VecDeque::new(), Ok(()));
        for together in chunks.chunks(TOGETHER) {
            let mut asks = Vec::new();
            for (place, result) in self.begin_ahead(layer, together, keep, &mut asks) {
                under_way.places.push_back(place);
                results.push_back(result);
            }
            self.inner.dispatcher.ask(asks);
            while results.len() > UNDER_WAY {
                first = first.and(under_way.wait_for_first(&mut results).await);
            }
        }
        while !results.is_empty() {
            first = first.and(under_way.wait_for_first(&mut results).await);
        }
        first
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

/// Chunks of a list that have not come, in its order.
struct UnderWay {
    dispatcher: Arc<Dispatcher>,
    places: VecDeque<Place>,
}

impl UnderWay {
    async fn wait_for_first(
        &mut self,
        results: &mut VecDeque<watch::Receiver<Option<Fetched>>>,
    ) -> Result<(), FetchError> {
        let done = match results.pop_front() {
            Some(result) => wait(result).await,
            None => None,
        };
        self.places.pop_front();
        done.map_or(Ok(()), |fetched| fetched.map(drop))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| self.dispatcher.cancel(*place));
    }
}

/// Numbers of the chunks that hold these bytes of the data space.
fn chunks_of(layer: &Layer, bytes: Range<u64>) -> impl Iterator<Item = u32> {
    let end = bytes.end.min(layer.index.data_len());
    let ends = match bytes.start < end {
        true => layer.index.locate(bytes.start).zip(layer.index.locate(end - 1)),
        false => None,
    };
    let numbers = ends.map(|(first, last)| first.chunk..last.chunk + 1);
    numbers.unwrap_or(0..0)
}
