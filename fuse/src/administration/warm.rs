//! `lamina cache warm`: fetches chunks of a stack's layers into the cache, behind everything that readers wait for.
//!
//! What is cached is not fetched, so that what was interrupted goes on where it was. Which chunks are wanted, and in which order,
//! is decided in [`Wanted`] alone: all of them, or those that profiles say starts read. Both take the same way from there.

use super::progress::Caller;
use super::stat::{blocking, stored};
use crate::Error;
use crate::node::Node;
use blobstore::cache::Chunks;
use blobstore::fetch::Layer;
use blobstore::layer::LayerId;
use blobstore::profile::Step;
use blobstore::refs::Stack;
use control::v1;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Stored bytes that are asked for together, then written and counted.
const TOGETHER: u64 = 32 << 20;
/// How often chunks that came are asked for again when the cache did not take one of them.
const TRIES: u32 = 4;

/// Time of a start whose chunks are fetched together, ms: in their order by and large, and neighbours in one request.
const SLICE: u32 = 250;

/// Chunks of a layer that shall be in the cache.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) layer: Layer,
    /// Number, hash, stored length.
    pub(super) chunks: Vec<(u32, [u8; 32], u32)>,
}

impl Wanted {
    /// Every chunk of the layers, each once.
    fn all(layers: Vec<Layer>) -> Vec<Self> {
        let mut seen = HashSet::new();
        let wanted = layers.into_iter().map(|layer| {
            let chunks = layer.index.chunks().map(|c| (c.chunk, c.entry.hash, c.entry.stored_len));
            let chunks = chunks.filter(|(_, hash, _)| seen.insert(*hash)).collect();
            Self { layer, chunks }
        });
        wanted.collect()
    }

    /// The chunks that starts read, each once, in the order of when, for slices of time. `starts` has steps of each layer.
    fn of_starts(starts: &[(Layer, Vec<Step>)]) -> Vec<Self> {
        let steps = |(n, (_, steps)): (usize, &(Layer, Vec<Step>))| {
            steps.iter().map(|step| (step.after / SLICE, n, *step)).collect::<Vec<_>>()
        };
        let mut all: Vec<(u32, usize, Step)> = starts.iter().enumerate().flat_map(steps).collect();
        all.sort_by_key(|(slice, n, step)| (*slice, *n, step.after, step.chunk));
        let mut seen = HashSet::new();
        let together = all.chunk_by(|(a, n, _), (b, m, _)| (a, n) == (b, m));
        let wanted = together.filter_map(|together| {
            let (layer, _) = starts.get(together.first()?.1)?;
            let chunk = |step: &Step| Some((step.chunk, layer.index.chunk(step.chunk)?.hash, step.stored));
            let chunks = together.iter().filter_map(|(_, _, step)| chunk(step));
            Some(Self { layer: layer.clone(), chunks: chunks.filter(|(_, hash, _)| seen.insert(*hash)).collect() })
        });
        wanted.collect()
    }

    /// Those that are not in the cache.
    fn missing(&self, cache: &Chunks) -> Vec<(u32, [u8; 32], u32)> {
        self.chunks.iter().filter(|(_, hash, _)| !cache.contains(hash)).copied().collect()
    }
}

/// How much there is of what.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Amount {
    pub(super) chunks: u64,
    pub(super) bytes: u64,
}

impl Amount {
    fn of(chunks: &[(u32, [u8; 32], u32)]) -> Self {
        Self { chunks: chunks.len() as u64, bytes: chunks.iter().map(|(_, _, length)| u64::from(*length)).sum() }
    }

    fn and(self, other: Self) -> Self {
        Self { chunks: self.chunks + other.chunks, bytes: self.bytes + other.bytes }
    }
}

/// The chunk cache, or the error that says that there is none.
pub(super) fn cache(node: &Node) -> Result<&Chunks, Error> {
    let none = || Error::Uncached("the chunk cache could not be used when laminad started; its log says why".into());
    node.fetcher.chunks().ok_or_else(none)
}

/// Waits until it is known which chunks there are, and until those that came are written.
pub(super) async fn flush(node: &Arc<Node>) -> Result<(), Error> {
    let node = Arc::clone(node);
    blocking(move || cache(&node).map(Chunks::flush)).await
}

/// The layers of a stack, opened; each once.
pub(super) async fn open(node: &Node, stack: &Stack) -> Result<Vec<Layer>, Error> {
    node.layers.open_all(stack.layers()).await?;
    let (mut seen, mut layers) = (HashSet::<LayerId>::new(), Vec::new());
    for entry in stack.layers().iter().filter(|entry| seen.insert(entry.layer)) {
        layers.push(node.layers.open(entry).await?.layer);
    }
    Ok(layers)
}

/// Warms layers. Refused when the cache could not hold all of them.
pub(super) async fn warm(node: &Arc<Node>, layers: Vec<Layer>, caller: &Caller) -> Result<v1::CacheWarmed, Error> {
    let count = layers.len() as u64;
    let warmed = bring_wanted(node, Wanted::all(layers), caller).await?;
    Ok(v1::CacheWarmed { layers: count, ..warmed })
}

/// Warms what starts read of layers, as their profiles say. Refused where there are none, or the cache could not hold it.
pub(super) async fn warm_starts(
    node: &Arc<Node>,
    reference: &str,
    layers: Vec<Layer>,
    caller: &Caller,
) -> Result<v1::CacheWarmed, Error> {
    let mut asking = JoinSet::new();
    for (n, layer) in layers.iter().cloned().enumerate() {
        let node = Arc::clone(node);
        asking.spawn(async move { node.profiles.known(&layer).await.map(|steps| (n, steps, layer)) });
    }
    let mut starts = asking.join_all().await.into_iter().collect::<Result<Vec<_>, Error>>()?;
    starts.retain(|(_, steps, _)| !steps.is_empty());
    starts.sort_by_key(|(n, _, _)| *n);
    if starts.is_empty() {
        return Err(Error::NoProfile { reference: reference.to_owned() });
    }
    let starts: Vec<(Layer, Vec<Step>)> = starts.into_iter().map(|(_, steps, layer)| (layer, steps)).collect();
    let warmed = bring_wanted(node, Wanted::of_starts(&starts), caller).await?;
    Ok(v1::CacheWarmed { layers: layers.len() as u64, profiled: starts.len() as u64, ..warmed })
}

/// Brings what is wanted into the cache; counts it.
async fn bring_wanted(node: &Arc<Node>, wanted: Vec<Wanted>, caller: &Caller) -> Result<v1::CacheWarmed, Error> {
    let cache = cache(node)?;
    let every = || wanted.iter().flat_map(|w| w.chunks.iter().map(|(_, hash, length)| (*hash, *length)));
    cache.check_room(every()).map_err(Error::cache)?;
    flush(node).await?;
    let all = wanted.iter().fold(Amount::default(), |sum, w| sum.and(Amount::of(&w.chunks)));
    let missing = wanted.iter().fold(Amount::default(), |sum, w| sum.and(Amount::of(&w.missing(cache))));
    let mut done = all.bytes - missing.bytes;
    caller.tell(done, all.bytes);
    for one in &wanted {
        fill(node, one, caller, &mut done, all.bytes).await?;
    }
    check_all_here(cache, every(), all)?;
    Ok(v1::CacheWarmed {
        chunks: all.chunks,
        bytes: all.bytes,
        fetched_chunks: missing.chunks,
        fetched_bytes: missing.bytes,
        ..v1::CacheWarmed::default()
    })
}

/// What came first may have had to go for what came last, or for what readers fetched meanwhile.
fn check_all_here(cache: &Chunks, every: impl Iterator<Item = ([u8; 32], u32)>, all: Amount) -> Result<(), Error> {
    let here = cache.usage(every);
    if here.chunks == all.chunks {
        return Ok(());
    }
    Err(Error::Uncached(format!(
        "{} of {} chunks are cached: the others had to go again, for the cache or its disk is full of what is pinned or read \
         more often, or they were evicted meanwhile. Raise [cache] size, make room on the disk, or pin what must stay",
        here.chunks, all.chunks
    )))
}

/// Fetches what is missing of a layer. `done` of `total` bytes is what the caller is told.
async fn fill(node: &Arc<Node>, wanted: &Wanted, caller: &Caller, done: &mut u64, total: u64) -> Result<(), Error> {
    let missing = wanted.missing(cache(node)?);
    let mut rest = missing.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, _, length): &&(u32, [u8; 32], u32)| {
            bytes += u64::from(*length);
            bytes <= TOGETHER
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        bring(node, &wanted.layer, now).await?;
        rest = later;
        *done += Amount::of(now).bytes;
        caller.tell(*done, total);
    }
    Ok(())
}

/// Brings chunks into the cache.
pub(super) async fn bring(node: &Arc<Node>, layer: &Layer, chunks: &[(u32, [u8; 32], u32)]) -> Result<(), Error> {
    let mut missing: Vec<_> = chunks.iter().map(|(number, hash, _)| (*number, *hash)).collect();
    let mut tries = 0;
    loop {
        let numbers: Vec<u32> = missing.iter().map(|(number, _)| *number).collect();
        let came = node.fetcher.fill(layer, &numbers).await;
        flush(node).await?;
        let (cache, before) = (cache(node)?, missing.len());
        missing.retain(|(_, hash)| !cache.contains(hash));
        let Some((first, _)) = missing.first() else { return Ok(()) };
        if missing.len() < before {
            tries = 0;
            continue;
        }
        // A reader's way to the store: it waits and tries as often as makes sense, and says why not.
        let failed = |source| Error::Warm { layer: layer.id, source: Box::new(source) };
        node.fetcher.get(layer, came.err().and_then(|e| e.chunk).unwrap_or(*first)).await.map_err(failed)?;
        tries += 1;
        if tries == TRIES {
            let why = cache.trouble().unwrap_or_else(|| "too much waits to be written".into());
            return Err(Error::Uncached(format!("layer {}: what was fetched is not cached: {why}", layer.id)));
        }
        tokio::time::sleep(Duration::from_millis(100) * tries).await;
    }
}

/// Hashes and stored lengths of all chunks of layers.
pub(super) fn every(layers: &[Layer]) -> impl Iterator<Item = ([u8; 32], u32)> + '_ {
    layers.iter().flat_map(|layer| stored(&layer.index))
}
