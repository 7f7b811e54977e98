//! `lamina cache verify`: reads all that is cached, drops what is wrong, and mends what is pinned or in use.

use super::progress::Caller;
use super::stat::blocking;
use super::{pin, warm};
use crate::Error;
use crate::node::Node;
use blobstore::layer::LayerId;
use blobstore::refs::StackEntry;
use control::v1;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Verifies chunks, then heads; then fetches again what must be here.
pub(super) async fn verify(node: &Arc<Node>, caller: &Caller) -> Result<v1::CacheVerified, Error> {
    let mut verified = chunks(node, caller).await?;
    let pins = caller.unless_gone(async { Ok(node.pins.lock().await) }).await?;
    let named: BTreeSet<LayerId> = pins.all().map_err(Error::cache)?.into_values().flatten().collect();
    let wrong = heads(node, &mut verified).await?;
    let heads = node.fetcher.heads().list().map_err(Error::cache)?;
    let cache = warm::cache(node)?;
    let mut pinned: BTreeSet<LayerId> = heads.into_iter().map(|(id, _)| id).filter(|id| cache.is_pinned(id)).collect();
    pinned.extend(named);
    let needed = node.in_use()?;
    for layer in wrong.iter().filter(|id| needed.contains(id) || cache.is_pinned(id)) {
        match caller.unless_gone(node.layers.open(&StackEntry::bare(*layer))).await {
            Ok(_) => verified.mended_heads += 1,
            Err(error) => verified.unmended.push(format!("head of layer {layer}: {}", error.report())),
        }
        if cache.is_pinned(layer) {
            pinned.insert(*layer);
        }
    }
    for layer in pinned {
        match caller.unless_gone(mend(node, layer)).await {
            Ok(fetched) => verified.mended_chunks += fetched,
            Err(error) => verified.unmended.push(format!("layer {layer}, which is pinned: {}", error.report())),
        }
    }
    Ok(verified)
}

async fn chunks(node: &Arc<Node>, caller: &Caller) -> Result<v1::CacheVerified, Error> {
    let (node, caller) = (Arc::clone(node), caller.clone());
    blocking(move || {
        let cache = warm::cache(&node)?;
        cache.flush();
        let total = cache.stats().bytes;
        let found = cache.verify(|read| {
            caller.tell(read, total);
            !caller.has_gone()
        });
        Ok(v1::CacheVerified {
            chunks: found.chunks,
            bytes: found.bytes,
            wrong_chunks: found.wrong,
            ..v1::CacheVerified::default()
        })
    })
    .await
}

/// Gives the layers whose heads were wrong and have been removed.
async fn heads(node: &Arc<Node>, verified: &mut v1::CacheVerified) -> Result<Vec<LayerId>, Error> {
    let node = Arc::clone(node);
    let (right, wrong) = blocking(move || {
        let heads = node.fetcher.heads();
        let (mut right, mut wrong) = (0, Vec::new());
        for (layer, _) in heads.list().map_err(Error::cache)? {
            match heads.get(&layer).map_err(Error::cache)? {
                Some(_) => right += 1,
                None => wrong.push(layer),
            }
        }
        Ok((right, wrong))
    })
    .await?;
    (verified.heads, verified.wrong_heads) = (right, wrong.len() as u64);
    Ok(wrong)
}

/// Fetches what is missing of a pinned layer; gives how many chunks.
async fn mend(node: &Arc<Node>, layer: LayerId) -> Result<u64, Error> {
    let opened = node.layers.open(&StackEntry::bare(layer)).await?;
    pin::complete(node, &opened.layer).await
}
