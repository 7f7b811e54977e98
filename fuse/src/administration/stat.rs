//! `lamina cache stat` and `ls`: what is cached, gathered at the moment it is asked.

use crate::Error;
use crate::node::Node;
use blobstore::cache::{PinNames, Stats};
use blobstore::layer::{Index, LayerId};
use blobstore::meter::Source;
use control::v1;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Everything that `lamina cache stat` and `ls` show. Reads and checks every head.
pub(crate) async fn report(node: &Arc<Node>) -> Result<v1::CacheStatReply, Error> {
    let node = Arc::clone(node);
    blocking(move || gather(&node)).await
}

/// Runs what reads the disk where it may take its time.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Error::system(io::Error::other(e))))
}

fn gather(node: &Node) -> Result<v1::CacheStatReply, Error> {
    let (stats, loading, trouble) = match node.fetcher.chunks() {
        Some(chunks) => (chunks.stats(), chunks.is_loading(), chunks.trouble().unwrap_or_default()),
        None => {
            (Stats::default(), false, "its directory could not be used when laminad started; see its log".to_owned())
        }
    };
    let meter = node.fetcher.meter();
    Ok(v1::CacheStatReply {
        dir: node.config.cache_dir.display().to_string(),
        domain: node.config.cache_domain.clone(),
        bytes: stats.bytes,
        limit: node.config.cache_size,
        reserve: stats.reserve,
        free: stats.free,
        chunks: stats.chunks,
        pinned_bytes: stats.pinned_bytes,
        pin_limit: stats.pin_limit,
        evicted_bytes: stats.evicted_bytes,
        let_go_bytes: stats.let_go_bytes,
        fetched_bytes: node.traffic.bytes_read.load(Relaxed),
        fetches: node.traffic.reads.load(Relaxed),
        carried_bytes: stats.carried_bytes,
        refused_chunks: stats.refused,
        failed_chunks: stats.failed,
        verify_failures: meter.verify_failures(),
        read_memory_bytes: meter.read_bytes(Source::Memory),
        read_cache_bytes: meter.read_bytes(Source::Cache),
        read_store_bytes: meter.read_bytes(Source::Store),
        loading,
        trouble,
        layers: layers(node)?,
    })
}

fn layers(node: &Node) -> Result<Vec<v1::CachedLayer>, Error> {
    let in_use = node.in_use()?;
    let mut names = pinned_as(node);
    let heads = node.fetcher.heads();
    let mut layers = Vec::new();
    for (id, head_bytes) in heads.list().map_err(Error::cache)? {
        // One that was found damaged has just been removed.
        let Some(head) = heads.get(&id).map_err(Error::cache)? else { continue };
        let (in_use, pinned_as) = (in_use.contains(&id), names.remove(&id).unwrap_or_default());
        layers.push(v1::CachedLayer { head_bytes, in_use, pinned_as, ..chunks_of(node, &head.index) });
    }
    let is_pinned = |id: &LayerId| node.fetcher.chunks().is_some_and(|c| c.is_pinned(id));
    layers.extend(names.into_iter().map(|(id, pinned_as)| v1::CachedLayer {
        id: id.to_string(),
        pinned: is_pinned(&id),
        in_use: in_use.contains(&id),
        pinned_as,
        ..v1::CachedLayer::default()
    }));
    Ok(layers)
}

/// The references under which layers were pinned.
fn pinned_as(node: &Node) -> BTreeMap<LayerId, Vec<String>> {
    // Read without the lock: the file is replaced whole.
    let names = PinNames::new(&node.config.cache_dir, &node.config.cache_domain).all();
    let names = names.inspect_err(|error| tracing::warn!(%error, "under which names layers are pinned is not known"));
    let mut of_layers = BTreeMap::<LayerId, Vec<String>>::new();
    for (name, layers) in names.unwrap_or_default() {
        layers.into_iter().for_each(|layer| of_layers.entry(layer).or_default().push(name.clone()));
    }
    of_layers
}

/// What is cached of a layer's chunks.
fn chunks_of(node: &Node, index: &Index) -> v1::CachedLayer {
    let cache = node.fetcher.chunks();
    let usage = cache.map(|c| c.usage(stored(index))).unwrap_or_default();
    v1::CachedLayer {
        id: index.id().to_string(),
        chunks: index.chunk_count().into(),
        bytes: stored(index).map(|(_, length)| u64::from(length)).sum(),
        cached_chunks: usage.chunks,
        cached_bytes: usage.bytes,
        pinned: cache.is_some_and(|c| c.is_pinned(&index.id())),
        ..v1::CachedLayer::default()
    }
}

/// Hashes and stored lengths of a layer's chunks.
pub(super) fn stored(index: &Index) -> impl Iterator<Item = ([u8; 32], u32)> + '_ {
    index.chunks().map(|located| (located.entry.hash, located.entry.stored_len))
}
