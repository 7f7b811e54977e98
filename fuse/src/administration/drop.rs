//! `lamina cache evict` and `gc`: what may go.
//!
//! Chunks may go whenever the store has them, from the cache and from memory: what is wanted again is fetched again. Heads go only of layers that nothing
//! shows: what is mounted stands on them.

use super::stat::{blocking, stored};
use super::warm;
use crate::Error;
use crate::node::Node;
use blobstore::layer::LayerId;
use blobstore::refs::{Stack, layer_key};
use control::v1;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A head that nobody has used goes when it is so old: what was pulled today may be started today.
const HEAD_AGE: Duration = Duration::from_secs(24 * 3600);
/// What is still being written is not so old.
const STRAY_AGE: Duration = Duration::from_secs(3600);

/// Drops what is cached of a stack's layers and not pinned, and what memory has of them.
pub(super) async fn evict(node: &Arc<Node>, stack: &Stack) -> Result<v1::CacheEvictReply, Error> {
    let layers: BTreeSet<LayerId> = stack.layers().iter().map(|entry| entry.layer).collect();
    for layer in node.in_use()?.intersection(&layers) {
        check_stored(node, *layer).await?;
    }
    warm::flush(node).await?;
    let mut reply = v1::CacheEvictReply { layers: layers.len() as u64, ..v1::CacheEvictReply::default() };
    for layer in layers {
        let node_ = Arc::clone(node);
        let (chunks, bytes, pinned) = blocking(move || evict_chunks(&node_, layer)).await?;
        (reply.chunks, reply.bytes) = (reply.chunks + chunks, reply.bytes + bytes);
        reply.pinned_chunks += pinned;
        let pinned = warm::cache(node)?.is_pinned(&layer);
        if !pinned && drop_head(node, layer).await? {
            reply.heads += 1;
        }
    }
    Ok(reply)
}

/// Removes the head of a layer that is not in use; gives whether there was one.
async fn drop_head(node: &Node, layer: LayerId) -> Result<bool, Error> {
    node.layers.drop_head(layer, || Ok(node.in_use()?.contains(&layer))).await
}

/// A layer that is read must be readable also without what is cached of it.
async fn check_stored(node: &Node, layer: LayerId) -> Result<(), Error> {
    let (store, deadline) = (node.fetcher.store(), node.config.deadline);
    let late = |_| Error::Late { what: format!("looking for layer {layer}, which is in use"), deadline };
    let found = tokio::time::timeout(deadline, store.stat(&layer_key(&layer))).await.map_err(late)?;
    found.map(drop).map_err(|source| Error::Needed { layer, source: Box::new(source) })
}

/// Gives chunks and bytes that were dropped, and chunks that are pinned.
fn evict_chunks(node: &Node, layer: LayerId) -> Result<(u64, u64, u64), Error> {
    let cache = warm::cache(node)?;
    // Without a head, nobody here knows what the layer's chunks are.
    let Some(head) = node.fetcher.heads().get(&layer).map_err(Error::cache)? else { return Ok((0, 0, 0)) };
    let before = cache.usage(stored(&head.index));
    let dropped = cache.evict(stored(&head.index).map(|(hash, _)| hash));
    // After it: what memory has came from there, or is on its way there.
    node.fetcher.forget(&head.index);
    let after = cache.usage(stored(&head.index));
    Ok((dropped, before.bytes.saturating_sub(after.bytes), after.chunks))
}

/// Applies quota and reserve now, and drops heads that nobody needs.
pub(super) async fn collect(node: &Arc<Node>) -> Result<v1::CacheCollectReply, Error> {
    warm::flush(node).await?;
    let mut reply = v1::CacheCollectReply { limit: node.config.cache_size, ..v1::CacheCollectReply::default() };
    let node_ = Arc::clone(node);
    let (freed, trouble) = blocking(move || Ok(warm::cache(&node_)?.collect())).await?;
    reply.chunk_bytes = freed;
    reply.trouble = trouble.map(|e| e.to_string()).unwrap_or_default();
    for (layer, bytes) in node.fetcher.heads().list().map_err(Error::cache)? {
        let node_ = Arc::clone(node);
        let unneeded = blocking(move || is_unneeded(&node_, layer)).await?;
        if unneeded && drop_head(node, layer).await? {
            (reply.heads, reply.head_bytes) = (reply.heads + 1, reply.head_bytes + bytes);
        }
    }
    (reply.files, reply.file_bytes) = node.fetcher.heads().remove_strays(STRAY_AGE).map_err(Error::cache)?;
    reply.bytes = warm::cache(node)?.stats().bytes;
    Ok(reply)
}

/// Whether a head is old, and none of its layer's chunks is cached, or to stay.
fn is_unneeded(node: &Node, layer: LayerId) -> Result<bool, Error> {
    let (cache, heads) = (warm::cache(node)?, node.fetcher.heads());
    if cache.is_pinned(&layer) || !heads.is_older(&layer, HEAD_AGE) {
        return Ok(false);
    }
    let head = heads.get(&layer).map_err(Error::cache)?;
    Ok(head.is_some_and(|head| cache.usage(stored(&head.index)).chunks == 0))
}
