//! From layers that are ready to references in the store.
//!
//! In this order, so that nothing names what is not there: layers, the diff references to them, chain references bottom
//! up, their collapsed stacks, the manifest, a tag. Names of images come after all of it, and are the caller's. Everything
//! that a reference will name is held in a lease first ([`blobstore::collect`]), and no collector may be about to delete it.

use crate::collapse::Collapsed;
use crate::error::{Error, Result, held, store};
use crate::progress::{Event, Progress};
use crate::ready::{Ready, chain_ids, chain_layers};
use crate::report::ImageReport;
use crate::source::Image;
use blobstore::collect::{Held, Lease};
use blobstore::layer::LayerId;
use blobstore::refs::{
    Candidate, Chain, ChainLayer, Digest, ManifestDoc, Refs, Stack, StackEntry, Stacks, Tag, TagName, layer_key,
};
use blobstore::store::{FileStore, Store, StoreError};
use std::collections::HashSet;
use std::path::Path;

/// Writes to a store.
pub(crate) struct Publisher<'a> {
    pub(crate) refs: &'a Refs,
    pub(crate) lease: &'a Lease,
    /// Where the files of new layers are, under their keys.
    pub(crate) stage: &'a Path,
    /// Whether references are replaced.
    pub(crate) again: bool,
    pub(crate) tag: Option<&'a TagName>,
    pub(crate) progress: Option<&'a Progress>,
}

impl Publisher<'_> {
    /// Holds what is about to be written or named, and waits for a collector that is about to delete any of it.
    pub(crate) async fn hold(&self, keys: impl IntoIterator<Item = String>) -> Result<()> {
        self.refs.init().await.map_err(store)?;
        let condemned = self.lease.hold(keys).await.map_err(held)?;
        if !condemned.is_empty() {
            tracing::warn!(
                objects = condemned.len(),
                "a collector is about to delete what this needs: waiting for its end"
            );
        }
        self.lease.settle().await.map_err(held)
    }

    /// Keeps an image's documents.
    pub(crate) async fn documents(&self, documents: &[Vec<u8>]) -> Result<()> {
        for document in documents {
            let document = document.clone().into();
            let put = match self.again {
                true => self.refs.put_blob_again(document).await,
                false => self.refs.put_blob(document).await,
            };
            put.map_err(store)?;
        }
        Ok(())
    }

    /// Publishes a layer that is no image's; that of a tar under the chain id it has alone.
    pub(crate) async fn single(&self, layer: &Ready, chain_id: Option<Digest>) -> Result<()> {
        self.hold([layer_key(&layer.entry.layer)]).await?;
        self.upload(std::slice::from_ref(layer)).await?;
        if let Some(chain_id) = chain_id {
            let chain = ChainLayer { chain_id, entry: layer.entry.clone() };
            Held::new(self.refs, self.lease).write_chains(&[chain], self.again).await.map_err(held)?;
        }
        self.put_tag(Stack::EMPTY.with(layer.entry.clone()).into(), Vec::new()).await
    }

    /// Publishes an image: layers, chain references bottom up, the manifest, the tag.
    pub(crate) async fn image(
        &self,
        image: &Image,
        layers: Vec<Ready>,
        collapsed: Option<Collapsed>,
    ) -> Result<ImageReport> {
        self.upload(&layers).await?;
        let chain_layers = chain_layers(&chain_ids(image), layers.iter().map(|layer| &layer.entry));
        let mut references = Held::new(self.refs, self.lease);
        let had_collapsed = self.again && collapsed.is_none() && self.has_collapsed(&chain_layers).await?;
        let mut chains = references.write_chains(&chain_layers, self.again).await.map_err(held)?;
        match &collapsed {
            Some(collapsed) => self.collapsed(collapsed, &mut references, &mut chains).await?,
            None if had_collapsed && chains.last().is_some_and(|chain| chain.collapsed.is_none()) => tracing::warn!(
                "the collapsed stack that this image had is of the layers before these, and is dropped: --collapse SIZE \
                 makes one of these"
            ),
            None => {}
        }
        let top = chains.last().map(|chain| Stacks { plain: chain.stack.clone(), collapsed: chain.collapsed.clone() });
        let top = top.unwrap_or_default();
        let diff_ids = image.layers.iter().map(|layer| &layer.diff_id);
        let document = ManifestDoc::new(image.manifest, image.config, image.platform.clone(), chains, diff_ids);
        self.lease.check().await.map_err(held)?;
        self.refs.put_manifest(&document).await.map_err(store)?;
        self.put_tag(top, image.environment.clone()).await?;
        Ok(ImageReport {
            manifest: Some(image.manifest.to_string()),
            platform: Some(image.platform.to_string()),
            layers: layers.into_iter().map(|layer| layer.report).collect(),
            collapsed: collapsed.map(|collapsed| collapsed.report),
        })
    }

    /// Whether the image has a collapsed stack now.
    async fn has_collapsed(&self, layers: &[ChainLayer]) -> Result<bool> {
        let Some(top) = layers.last() else { return Ok(false) };
        match self.refs.chain(&top.chain_id).await {
            Ok(chain) => Ok(chain.is_some_and(|chain| chain.collapsed.is_some())),
            Err(e) if e.is_not_converted() => Ok(false),
            Err(e) => Err(store(e)),
        }
    }

    /// Publishes collapsed stacks beside the plain ones that stand.
    async fn collapsed(&self, collapsed: &Collapsed, references: &mut Held<'_>, chains: &mut [Chain]) -> Result<()> {
        let made: HashSet<LayerId> = collapsed.layers.iter().map(|entry| entry.layer).collect();
        let stacks = collapsed
            .chains
            .iter()
            .flat_map(|chain| chain.stack.layers().iter().chain(chain.collapsed.iter().flatten()));
        let others = stacks.map(|entry| entry.layer).filter(|layer| !made.contains(layer));
        let gone = references.unusable(others).await.map_err(held)?;
        if let Some(layer) = gone.first() {
            tracing::warn!(%layer, "a layer below was removed from the store meanwhile: there is no collapsed stack now");
            return Ok(());
        }
        for entry in &collapsed.layers {
            let key = layer_key(&entry.layer);
            self.upload_layer(&key).await.map_err(|e| Error::failed(format!("uploading {key}"), e))?;
        }
        for stands in references.add_collapsed(&collapsed.chains, self.again).await.map_err(held)? {
            chains
                .iter_mut()
                .filter(|chain| chain.chain_id == stands.chain_id)
                .for_each(|chain| *chain = stands.clone());
        }
        Ok(())
    }

    /// Brings the staged layers to the store, and the references to them by diff id and blob digest.
    async fn upload(&self, layers: &[Ready]) -> Result<()> {
        self.refs.init().await.map_err(store)?;
        for (layer, fresh) in layers.iter().filter_map(|layer| Some((layer, layer.fresh.as_ref()?))) {
            let key = layer_key(&layer.entry.layer);
            self.upload_layer(&key).await.map_err(|e| Error::failed(format!("uploading {key}"), e))?;
            if let Some(progress) = self.progress {
                progress(&Event::Stored(layer.entry.size));
            }
            if let Some((diff_id, assumes)) = &fresh.candidate {
                let candidate = Candidate { entry: layer.entry.clone(), assumes: assumes.read()? };
                self.refs.add_candidate(diff_id, candidate).await.map_err(store)?;
            }
            if let Some(source) = &fresh.source {
                self.refs.put_layer_digest(source.digest, source.diff_id).await.map_err(store)?;
            }
        }
        for layer in layers.iter().filter(|layer| layer.fresh.is_none()) {
            self.is_there(layer).await?;
        }
        Ok(())
    }

    /// That the store has a layer was said by a reference, perhaps long ago: nothing is to name what is gone.
    async fn is_there(&self, layer: &Ready) -> Result<()> {
        let StackEntry { layer: id, size, .. } = layer.entry;
        let gone = |why: String| {
            let what = format!("the store has a reference to layer {id}, and not its file; --again makes it anew");
            Err(Error::failed(what, why))
        };
        match self.refs.store().stat(&layer_key(&id)).await {
            // More can stand behind it.
            Ok(stat) if stat.size >= size => Ok(()),
            Ok(stat) => gone(format!("the file has {} of {size} bytes", stat.size)),
            Err(e @ StoreError::NotFound { .. }) => gone(e.to_string()),
            Err(e) => Err(Error::failed(format!("looking for layer {id}"), e)),
        }
    }

    /// A layer file that is there already is left alone, unless it is not what its name says.
    async fn upload_layer(&self, key: &str) -> std::result::Result<(), StoreError> {
        let (store, file) = (self.refs.store(), self.stage.join(key));
        match store.adopt(key, &file).await {
            Err(StoreError::AlreadyExists { .. }) if !self.is_whole(key).await? => {
                tracing::warn!(store = store.url(), key, "the store's copy is damaged, and is replaced");
                store.delete(key).await?;
                store.adopt(key, &file).await
            }
            Err(StoreError::AlreadyExists { .. }) => Ok(()),
            done => done,
        }
    }

    /// Whether the store has what the stage has: the length, and where everything is done again, every byte.
    async fn is_whole(&self, key: &str) -> std::result::Result<bool, StoreError> {
        const STEP: u64 = 8 << 20;
        let staged = FileStore::new(self.stage);
        let size = staged.stat(key).await?.size;
        if self.refs.store().stat(key).await?.size != size {
            return Ok(false);
        }
        let mut at = if self.again { 0 } else { size };
        while at < size {
            let range = at..size.min(at + STEP);
            if self.refs.store().get_range(key, range.clone()).await? != staged.get_range(key, range).await? {
                return Ok(false);
            }
            at += STEP;
        }
        Ok(true)
    }

    async fn put_tag(&self, stacks: Stacks, environment: Vec<String>) -> Result<()> {
        let Some(TagName { kind, name, version }) = self.tag.cloned() else { return Ok(()) };
        let Stacks { plain: stack, collapsed } = stacks;
        self.lease.check().await.map_err(held)?;
        let tag = Tag { kind, name, version, stack, collapsed, made_over: None, environment };
        self.refs.put_tag(&tag).await.map(drop).map_err(store)
    }
}
