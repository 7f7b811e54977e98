//! What is fetched before anybody asks, by what reads look like.

use super::dispatch::Ask;
use super::queue::Place;
use super::watch::Cause;
use super::{Fetcher, Inner, Layer};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

/// Bytes, decoded, of what was begun ahead and has not come.
#[derive(Debug, Default)]
pub(super) struct Begun(AtomicU64);

/// A part of them, for as long as it lives.
pub(super) struct Claim {
    begun: Arc<Begun>,
    bytes: u64,
}

impl Begun {
    /// Counts these bytes until the claim is dropped.
    pub(super) fn claim(self: &Arc<Self>, bytes: u64) -> Claim {
        self.0.fetch_add(bytes, Relaxed);
        Claim { begun: self.clone(), bytes }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.begun.0.fetch_sub(self.bytes, Relaxed);
    }
}

impl Inner {
    /// Bytes that may still be fetched ahead: half of those that are kept, less what has come and was not read, and what is
    /// to come.
    pub(super) fn room_ahead(&self) -> u64 {
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
        let guess = options.neighbours && !pattern.is_foreseen();
        drop(pattern);
        for chunk in chunks_of(layer, advice.drop) {
            self.inner.dispatcher.cancel(Place { layer: layer.id, chunk });
        }
        let mut ahead: Vec<u32> = chunks_of(layer, advice.fetch).filter(|chunk| *chunk > last).collect();
        if guess && self.inner.dispatcher.pace.far() {
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
            any |= self.begin_ahead(layer, *chunk, Cause::Readahead, asks).is_some();
        }
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
