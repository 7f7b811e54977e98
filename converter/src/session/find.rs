//! Where a layer is looked for before it is made: in the store, in this conversion's stage, among the kept layers.
//!
//! What is found is taken where everything holds that it assumes of the tree below, and is laid over that tree then.

use super::{Session, StagedLayer, thread};
use crate::assume::holds;
use crate::below::Below;
use crate::build::{Made, Settings};
use crate::error::{Error, Result, held, store};
use crate::progress::Event;
use crate::source::LayerBlob;
use crate::work::{Adopted, Key, Slot};
use blobstore::collect::Held;
use blobstore::layer::{LayerId, WRITER_GENERATION, format};
use blobstore::refs::{Assume, Digest, StackEntry};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::spawn_blocking;

impl Session<'_> {
    /// The top layers of those chains, from the lowest on, that the store knows and whose layers can be used.
    pub(super) async fn known(&self, chain_ids: &[Digest]) -> Result<Vec<StackEntry>> {
        let mut chains = Vec::new();
        for chain_id in chain_ids {
            match self.refs.chain(chain_id).await {
                Ok(Some(chain)) => chains.push(chain.stack),
                Err(e) if !e.is_not_converted() => return Err(store(e)),
                _ => break,
            }
        }
        let layers = chains.iter().flatten().map(|entry| entry.layer);
        let gone = self.unusable(layers).await?;
        let whole = chains.into_iter().take_while(|stack| stack.layers().iter().all(|e| !gone.contains(&e.layer)));
        Ok(whole.filter_map(|stack| stack.into_layers().pop()).collect())
    }

    /// Holds layers of the store; those that cannot be had, for a collector is about to delete them or has.
    async fn unusable(&self, layers: impl IntoIterator<Item = LayerId>) -> Result<BTreeSet<LayerId>> {
        let mut layers = layers.into_iter().peekable();
        if layers.peek().is_none() {
            return Ok(BTreeSet::new());
        }
        Held::new(self.refs, &self.lease).unusable(layers).await.map_err(held)
    }

    /// What a chain shows.
    pub(super) async fn load(&self, chain_id: Option<Digest>) -> Result<Below> {
        let mut below = Below::default();
        let Some(chain_id) = chain_id else { return Ok(below) };
        let chain = self.refs.chain(&chain_id).await.map_err(store)?;
        for entry in chain.iter().flat_map(|chain| &chain.stack) {
            below.load(self.refs.store(), entry).await?;
        }
        Ok(below)
    }

    /// A layer of the store that was made from this tar, by this generation of the writer, and is right over this tree;
    /// it is laid over it then.
    pub(super) async fn in_store(&self, diff_id: &Digest, below: &mut Below) -> Result<Option<StackEntry>> {
        if self.options.again {
            return Ok(None);
        }
        let diff = match self.refs.diff(diff_id).await {
            Ok(diff) => diff,
            // One that is damaged is replaced when the layer is made.
            Err(e) if e.is_not_converted() || e.is_damaged() => None,
            // Two others wrote it at once, and the slower one stands.
            Err(blobstore::refs::Error::Older { .. }) => None,
            Err(e) => return Err(store(e)),
        };
        for candidate in diff.into_iter().flat_map(|diff| diff.candidates) {
            let current =
                candidate.entry.generation == WRITER_GENERATION && candidate.entry.format == u32::from(format::MAJOR);
            if !current || !all_hold(&candidate.assumes, below) {
                continue;
            }
            if !self.unusable([candidate.entry.layer]).await?.is_empty() {
                continue;
            }
            match below.load(self.refs.store(), &candidate.entry).await {
                Ok(()) => return Ok(Some(candidate.entry)),
                Err(error) => tracing::warn!(layer = %candidate.entry.layer, %error, "cannot use a layer again"),
            }
        }
        Ok(None)
    }

    /// The same among the layers of this conversion.
    pub(super) async fn in_stage(&self, diff_id: &Digest, below: &mut Below) -> Result<Option<Made>> {
        let fits = |here: &&StagedLayer| here.made.diff_id() == Some(*diff_id) && all_hold(&here.made.assumes, below);
        let found = self.here().iter().find(fits).map(|here| here.made.clone());
        if let Some(made) = &found {
            below.load(&self.staged, &made.entry).await?;
        }
        Ok(found)
    }

    /// The same among the kept layers of a slot; it is in the stage then.
    pub(super) async fn kept(&self, slot: Option<&Arc<Slot>>, below: &mut Below) -> Result<Option<Made>> {
        let Some(slot) = slot else { return Ok(None) };
        for made in slot.found() {
            if !all_hold(&made.assumes, below) {
                continue;
            }
            let (slot, stage, wanted) = (slot.clone(), self.settings.stage.clone(), made.clone());
            let adopted = spawn_blocking(move || slot.adopt(&wanted, &stage)).await.map_err(thread)?;
            if adopted == Adopted::Yes {
                below.load(&self.staged, &made.entry).await?;
                self.here().push(StagedLayer { made: made.clone(), adopted: true });
                return Ok(Some(made));
            }
        }
        Ok(None)
    }

    /// The right to make a layer; waits while another conversion makes it. `None` where that one makes no progress.
    pub(super) async fn slot(&self, layer: &LayerBlob) -> Result<Option<Arc<Slot>>> {
        let (work, key, progress) = (self.work.clone(), self.key(layer.diff_id), self.options.progress.clone());
        let stage = self.settings.stage.clone();
        let wait = move || {
            tracing::info!(diff_id = %key.diff_id, "another conversion makes this layer: waiting for it");
            if let Some(progress) = &progress {
                progress(&Event::Waiting { layer: &key.diff_id.to_string() });
            }
        };
        let slot = spawn_blocking(move || work.slot(&key, &stage, wait)).await.map_err(thread)??;
        Ok(slot.map(Arc::new))
    }

    fn key(&self, diff_id: Digest) -> Key {
        let Settings { level, chunk_size, first, .. } = &self.settings;
        let (chunk_size, first) = (chunk_size.bytes(), first.as_ref().map(|first| first.mark()));
        Key { diff_id, level: *level, chunk_size, first }
    }

    /// A source that is refused is refused again: nobody will come back to its layers.
    pub(super) fn failed(&self, error: &Error) {
        if error.is_refusal() {
            self.forget(|here| !here.adopted);
        }
    }

    /// Takes layers of the stage from those that are kept for others.
    pub(super) fn forget(&self, which: impl Fn(&StagedLayer) -> bool) {
        for here in self.here().iter().filter(|here| which(here)) {
            if let Some(diff_id) = here.made.diff_id() {
                self.work.forget(&self.key(diff_id), &here.made.entry.layer);
            }
        }
    }
}

fn all_hold(assumes: &[Assume], below: &Below) -> bool {
    assumes.iter().all(|assume| holds(assume, below))
}
