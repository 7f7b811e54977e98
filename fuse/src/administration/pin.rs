//! `lamina cache pin` and `unpin`: layers whose chunks stay, by the references they were pinned under.
//!
//! One at a time changes pins. A pin is acknowledged when every layer's is durable and its name is; one that fails, or that
//! nobody waits for any more, leaves what was pinned before.

use super::progress::Caller;
use super::stat::{blocking, stored};
use super::{resolve, warm};
use crate::Error;
use crate::node::Node;
use blobstore::cache::PinNames;
use blobstore::fetch::Layer;
use blobstore::layer::LayerId;
use blobstore::refs::{Name, Stack};
use control::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How often chunks that are wrong, or were dropped before they could be pinned, are fetched again.
const TRIES: u32 = 4;

/// Pins a stack's layers under a reference. All or nothing.
pub(super) async fn pin(
    node: &Arc<Node>,
    reference: String,
    stack: &Stack,
    caller: &Caller,
) -> Result<v1::CacheWarmed, Error> {
    let pins = caller.unless_gone(async { Ok(node.pins.lock().await) }).await?;
    // Where its name cannot be kept, nothing is fetched for it.
    pins.all().map_err(Error::cache)?;
    let layers = caller.unless_gone(warm::open(node, stack)).await?;
    let cache = warm::cache(node)?;
    warm::flush(node).await?;
    cache.check_pin(warm::every(&layers)).map_err(Error::cache)?;
    let fresh: Vec<LayerId> = layers.iter().map(|layer| layer.id).filter(|id| !cache.is_pinned(id)).collect();
    let ids: BTreeSet<LayerId> = layers.iter().map(|layer| layer.id).collect();
    let work = async {
        for layer in &layers {
            hold(node, layer).await?;
        }
        let warmed = warm::warm(node, layers.clone(), caller).await?;
        for layer in &layers {
            complete(node, layer).await?;
        }
        Ok(warmed)
    };
    let warmed = match caller.unless_gone(work).await {
        Ok(warmed) => name(node, &pins, &reference, ids).await.map(|()| warmed),
        Err(error) => Err(error),
    };
    if warmed.is_err() {
        release(node, fresh).await?;
    }
    Ok(v1::CacheWarmed { reference, ..warmed? })
}

/// Gives what is pinned its name. The reference may have stood for other layers when it was pinned the last time: those
/// that no other names are unpinned.
async fn name(node: &Arc<Node>, pins: &PinNames, reference: &str, layers: BTreeSet<LayerId>) -> Result<(), Error> {
    let mut named = pins.all().map_err(Error::cache)?;
    pins.set(reference, Some(layers.clone())).map_err(Error::cache)?;
    let before = named.insert(reference.to_owned(), layers).unwrap_or_default();
    let left = unnamed(&named, before.into_iter().collect());
    if let Err(error) = release(node, left).await {
        // More stays than must.
        tracing::warn!(error = error.report(), reference, "layers that it stood for before are still pinned");
    }
    Ok(())
}

/// Keeps a layer's chunks from being dropped, those that are still to come too; gives how many are missing or wrong. Durable
/// when there are none.
async fn hold(node: &Arc<Node>, layer: &Layer) -> Result<Vec<[u8; 32]>, Error> {
    let (node, layer) = (Arc::clone(node), layer.clone());
    blocking(move || warm::cache(&node)?.pin(&layer.id, stored(&layer.index)).map_err(Error::cache)).await
}

/// Makes a layer's pin durable; gives how many chunks had to be fetched for that.
pub(super) async fn complete(node: &Arc<Node>, layer: &Layer) -> Result<u64, Error> {
    let mut fetched = 0;
    for _ in 0..TRIES {
        let missing: BTreeSet<[u8; 32]> = hold(node, layer).await?.into_iter().collect();
        if missing.is_empty() {
            return Ok(fetched);
        }
        fetched = fetched.max(missing.len() as u64);
        let chunks = layer.index.chunks().map(|c| (c.chunk, c.entry.hash, c.entry.stored_len));
        let chunks: Vec<_> = chunks.filter(|(_, hash, _)| missing.contains(hash)).collect();
        warm::bring(node, layer, &chunks).await?;
    }
    Err(Error::Uncached(format!("layer {}: chunks do not stay what was written; see laminad's log", layer.id)))
}

/// Takes pins away.
async fn release(node: &Arc<Node>, layers: Vec<LayerId>) -> Result<(), Error> {
    let node = Arc::clone(node);
    blocking(move || {
        let cache = warm::cache(&node)?;
        layers.iter().try_for_each(|id| cache.unpin(id).map(drop).map_err(Error::cache))
    })
    .await
}

/// Those of some layers that no pin names.
fn unnamed(pins: &BTreeMap<String, BTreeSet<LayerId>>, layers: Vec<LayerId>) -> Vec<LayerId> {
    layers.into_iter().filter(|id| !pins.values().any(|named| named.contains(id))).collect()
}

/// Takes the pin of a reference away. One that was pinned is found by its name, although the store may have lost it.
pub(super) async fn unpin(node: &Arc<Node>, reference: &str) -> Result<v1::CacheUnpinReply, Error> {
    let name: Name = reference.parse().map_err(|e| Error::Invalid(format!("{e}")))?;
    let pins = node.pins.lock().await;
    let mut named = pins.all().map_err(Error::cache)?;
    let mut name = name.to_string();
    let layers: Vec<LayerId> = match named.remove(&name) {
        Some(layers) => layers.into_iter().collect(),
        None => {
            let (full, stack) = resolve(node, reference).await?;
            name = full;
            match named.remove(&name) {
                Some(layers) => layers.into_iter().collect(),
                None => nameless(node, &name, &stack, &named).await?,
            }
        }
    };
    let all = layers.len() as u64;
    let layers = unnamed(&named, layers);
    let reply = v1::CacheUnpinReply { layers: layers.len() as u64, kept: all - layers.len() as u64 };
    release(node, layers).await?;
    pins.set(&name, None).map_err(Error::cache)?;
    Ok(reply)
}

/// The layers of a stack that are pinned without a name: what a crash left of a pin.
async fn nameless(
    node: &Arc<Node>,
    name: &str,
    stack: &Stack,
    named: &BTreeMap<String, BTreeSet<LayerId>>,
) -> Result<Vec<LayerId>, Error> {
    warm::flush(node).await?;
    let cache = warm::cache(node)?;
    let pinned = stack.layers().iter().map(|entry| entry.layer).filter(|id| cache.is_pinned(id)).collect();
    let found = unnamed(named, pinned);
    match found.is_empty() {
        true => Err(Error::NotPinned { reference: name.to_owned() }),
        false => Ok(found),
    }
}
