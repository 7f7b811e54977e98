//! References: the store's small objects, which say what stack of layers a name stands for.
//!
//! | key | body | |
//! |---|---|---|
//! | `format` | [`mod@format`] | layout of the store, written first |
//! | `layers/ab/<id>` | | the layer files (ids and digests are sharded by their first two hex digits) |
//! | `refs/chain/ab/<hex>` | [`Chain`] | an OCI chain id: what containerd names a snapshot by |
//! | `refs/diff/ab/<hex>` | [`Diff`] | an OCI diff id: layers made from that tar |
//! | `refs/digest/ab/<hex>` | [`LayerDigest`] | a layer blob's digest: its diff id |
//! | `images/<host>/<repo…>/_/<tag>/<sequence>` | [`Image`] | an image name: a manifest's or index's digest |
//! | `manifests/sha256/<hex>` | [`ManifestDoc`] | a converted manifest, its chain ids and their stacks |
//! | `blobs/sha256/<hex>` | | index, manifest and config, byte for byte |
//! | `tags/<kind>/<name…>/_/<version>/<sequence>` | [`Tag`] | a base, workspace or toolkit |
//! | `revoked/<layer id>` | [`Revocation`] | a layer that gets no new mount |
//!
//! All but `format`, layers, blobs and `latest` hints are [`envelope`]s. A reference is a *resolved* stack: all
//! thinking is done when it is written, and one lookup serves a mount. Beside it can stand a collapsed one, which shows
//! the same with fewer layers ([`Stacks`]). References are prefix-closed, that is, written
//! bottom up ([`Refs::write_chains`]). Nothing needs compare-and-swap: objects are created if absent (a loser takes
//! the winner's), and movable names are series of exclusively created objects of which the highest wins
//! (`series.rs`). A process never accepts a lower sequence than it has seen for a key.
//!
//! Believing a reference is believing those who can write the store. What an image says of itself is never read here.
//! Mounting, fetching and deciding when a layer may be deleted are left to others.

mod assume;
mod chain;
mod collapsed;
#[cfg(test)]
mod collapsed_tests;
mod diff;
mod digest;
mod drop;
pub mod envelope;
mod error;
pub mod format;
mod image;
mod image_name;
mod inventory;
mod lossless;
mod manifest;
mod name;
pub(crate) mod objects;
mod platform;
mod resolve;
mod revoked;
pub(crate) mod series;
mod stack;
mod tag;
#[cfg(test)]
mod tests;

pub use assume::{Assume, Assumed, Attributes, Target};
pub use chain::{Chain, ChainLayer};
pub use collapsed::Stacks;
pub use diff::{Candidate, Diff, LayerDigest};
pub use digest::{Digest, ParseDigestError};
pub use error::{Error, Result};
pub use image::Image;
pub use image_name::ImageName;
pub use manifest::{ManifestChain, ManifestDoc, blob_key};
pub use name::{Name, NameError};
pub use platform::Platform;
pub use revoked::Revocation;
pub use stack::{Stack, StackEntry};
pub use tag::{MadeOver, Tag, TagKind, TagName};

use crate::layer::LayerId;
use crate::store::Store;
use revoked::Revocations;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// The references of one store. Cheap to share in an [`Arc`]; one per process, since it remembers what it has seen.
#[derive(Debug)]
pub struct Refs {
    store: Arc<dyn Store>,
    platform: Platform,
    format_checked: OnceCell<()>,
    seen: Mutex<HashMap<String, u64>>,
    revocations: Revocations,
}

impl Refs {
    /// The references of `store`; of images for many platforms, this machine's is taken. Asks the store nothing.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            platform: Platform::host(),
            format_checked: OnceCell::new(),
            seen: Mutex::default(),
            revocations: Revocations::default(),
        }
    }

    /// The same for another platform.
    pub fn with_platform(mut self, platform: Platform) -> Self {
        self.platform = platform;
        self
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn lock_seen(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Key of a layer file.
pub fn layer_key(layer: &LayerId) -> String {
    sharded("layers", &layer.to_string())
}

/// The layer whose file has this key, where a layer's can.
pub fn layer_of(key: &str) -> Option<LayerId> {
    let layer = key.rsplit('/').next()?.parse().ok()?;
    (layer_key(&layer) == key).then_some(layer)
}

/// `<prefix>/ab/<hex>`.
fn sharded(prefix: &str, hex: &str) -> String {
    let (shard, _) = hex.split_at(2);
    format!("{prefix}/{shard}/{hex}")
}
