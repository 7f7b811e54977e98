//! Lists of chunks that are fetched before anybody asks: what a profile says of a start, or a whole layer.
//!
//! Two things go on beside each other. The chunks are **fetched** in the order of the list, behind all that readers wait for;
//! they are verified and kept as they are stored, in memory (`stored.rs`) and in the local cache, for a start's chunks are
//! more than `decoded` holds. And, where that was asked for, they are **decompressed** ahead of the reads, in the same order, as far as half of
//! `decoded` goes: what the reads take makes room for more. Where nobody comes to read what was decompressed, that is where it stops.

use super::decoded::key;
use super::dispatch::Dispatcher;
use super::flight::wait;
use super::queue::Place;
use super::watch::Cause;
use super::{Fetched, Fetcher, Layer};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Chunks of a list that wait or are under way at once: enough for every request to be a long one.
const UNDER_WAY: usize = 256;
/// Chunks of a list that are asked for together: neighbours among them become one request.
const TOGETHER: usize = 64;
/// How often room for decompressed chunks is looked for: a few reads' time.
const LOOK: Duration = Duration::from_millis(2);

/// A chunk of the list, and what to wait for where it is being fetched.
type Coming = (Arc<Layer>, u32, Option<watch::Receiver<Option<Fetched>>>);

impl Fetcher {
    /// Fetches chunks of a layer in the order of the list, behind everything that readers wait for. Those that are here
    /// are passed over, those that cannot be had are left out. Must be called within a tokio runtime.
    pub fn prefetch(&self, layer: &Layer, chunks: Vec<u32>) -> Prefetch {
        let (fetcher, layer) = (self.clone(), Arc::new(layer.clone()));
        let list = chunks.into_iter().map(|chunk| (layer.clone(), chunk)).collect();
        Prefetch(tokio::spawn(async move { fetcher.fetch_list(list, None).await }))
    }

    /// As [`Fetcher::prefetch`], of chunks of several layers, which will be read soon and about in this order: they are also
    /// decompressed ahead of the reads.
    pub fn prefetch_start(&self, list: Vec<(Arc<Layer>, u32)>) -> Prefetch {
        let fetcher = self.clone();
        Prefetch(tokio::spawn(async move {
            let (tell, coming) = mpsc::unbounded_channel();
            tokio::join!(fetcher.fetch_list(list, Some(tell)), fetcher.decode_list(coming));
        }))
    }

    async fn fetch_list(&self, list: Vec<(Arc<Layer>, u32)>, tell: Option<mpsc::UnboundedSender<Coming>>) {
        let mut under_way = UnderWay { dispatcher: self.inner.dispatcher.clone(), chunks: VecDeque::new() };
        for together in list.chunks(TOGETHER) {
            let mut asks = Vec::new();
            for (layer, chunk) in together {
                let begun = self.begin_ahead(layer, *chunk, Cause::Prefetch, &mut asks);
                if let Some(tell) = &tell {
                    let result = begun.as_ref().map(|(_, result)| result.clone());
                    let _ = tell.send((layer.clone(), *chunk, result));
                }
                under_way.chunks.extend(begun);
            }
            self.inner.dispatcher.ask(asks);
            under_way.wait_until(UNDER_WAY).await;
        }
        under_way.wait_until(0).await;
    }

    async fn decode_list(&self, mut coming: mpsc::UnboundedReceiver<Coming>) {
        while let Some((layer, chunk, result)) = coming.recv().await {
            if let Some(result) = result {
                let _ = wait(result).await;
            }
            let Some(located) = layer.index.chunk_at(chunk) else { continue };
            let bytes = u64::from(located.entry.data_len);
            // A reader who came first has it, or is about to.
            while !was_asked(&layer, chunk) && !self.inner.decoded.contains(&key(&located.entry)) {
                if self.inner.room_ahead() < bytes {
                    sleep(LOOK).await;
                    continue;
                }
                let (inner, at) = (self.inner.clone(), layer.clone());
                let _ = tokio::task::spawn_blocking(move || inner.decode_ahead(&at, &located)).await;
                break;
            }
        }
    }
}

fn was_asked(layer: &Layer, chunk: u32) -> bool {
    layer.pattern.lock().unwrap_or_else(PoisonError::into_inner).was_asked(chunk)
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
    chunks: VecDeque<(Place, watch::Receiver<Option<Fetched>>)>,
}

impl UnderWay {
    /// Waits for the first ones until so many are left.
    async fn wait_until(&mut self, left: usize) {
        while self.chunks.len() > left
            && let Some((_, result)) = self.chunks.front()
        {
            let _ = wait(result.clone()).await;
            self.chunks.pop_front();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.chunks.iter().for_each(|(place, _)| self.dispatcher.cancel(*place));
    }
}
