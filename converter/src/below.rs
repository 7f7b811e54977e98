//! The layers below the one that is being converted: their merged tree, and where their chunks are.

use crate::error::{Error, Result};
use crate::tree::{self, Merged};
use blobstore::layer::{Flags, Head, Index, Located, decode, read_head, read_index};
use blobstore::refs::{StackEntry, layer_key};
use blobstore::store::Store;
use erofs::{Expect, Image, Tree, check, read_tree};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::runtime::Handle;

/// What lies below a layer.
#[derive(Debug, Default)]
pub(crate) struct Below {
    pub(crate) merged: Merged,
    /// Where the contents of each layer are, by its number in the merged tree.
    layers: Vec<StoredLayer>,
    /// No layer will be made over the next one.
    pub(crate) last: bool,
}

/// A layer that is stored: where its chunks are.
#[derive(Debug, Clone)]
pub(crate) struct StoredLayer {
    store: Arc<dyn Store>,
    key: String,
    index: Arc<Index>,
}

impl StoredLayer {
    /// Whether nothing below the layer shows through.
    pub(crate) fn root_opaque(&self) -> bool {
        self.index.flags().contains(Flags::ROOT_OPAQUE)
    }

    /// The chunk that holds byte `at` of the data, verified and decompressed. Must not run on one of the runtime's own
    /// threads.
    pub(crate) fn chunk(&self, at: u64, runtime: &Handle) -> Result<(Located, Vec<u8>)> {
        let Self { store, key, index } = self;
        let what = || format!("{key}: reading a chunk");
        let located = index.locate(at).ok_or_else(|| Error::failed(what(), "it lies outside of the data"))?;
        let range = located.file_offset..located.file_offset + u64::from(located.entry.stored_len);
        let stored = runtime.block_on(store.get_range(key, range)).map_err(|e| Error::failed(what(), e))?;
        let content = decode(&stored, &located.entry).map_err(|e| Error::failed(what(), e))?;
        Ok((located, content))
    }
}

impl Below {
    /// Where the contents of each layer are, bottom to top.
    pub(crate) fn layers(&self) -> &[StoredLayer] {
        &self.layers
    }

    /// Lays a layer of a store over the tree.
    pub(crate) async fn load(&mut self, store: &Arc<dyn Store>, entry: &StackEntry) -> Result<()> {
        let (layer, tree) = open(store, entry).await?;
        self.push(layer, &tree, entry.root_opaque)
    }

    /// Lays a layer that was just made over the tree; its metadata is known to be right. Of the last one nobody needs the tree.
    pub(crate) async fn lay(&mut self, store: &Arc<dyn Store>, entry: &StackEntry, metadata: &[u8]) -> Result<()> {
        let (key, id) = (layer_key(&entry.layer), entry.layer);
        let failed = |e: &dyn std::fmt::Display| Error::failed(format!("layer {id}"), e.to_string());
        let index = read_index(&**store, &key, Some(&id)).await.map_err(|e| failed(&e))?;
        let layer = StoredLayer { store: store.clone(), key, index: Arc::new(index) };
        if self.last {
            self.layers.push(layer);
            return Ok(());
        }
        let tree = Image::new(metadata).and_then(|image| read_tree(&image)).map_err(|e| failed(&e))?;
        self.push(layer, &tree, entry.root_opaque)
    }

    /// Lays a layer over the tree.
    pub(crate) fn push(&mut self, layer: StoredLayer, tree: &Tree, root_opaque: bool) -> Result<()> {
        self.merged.overlay(tree, root_opaque)?;
        self.layers.push(layer);
        Ok(())
    }

    /// The indexes of the layers, bottom to top.
    pub(crate) fn indexes(&self) -> impl ExactSizeIterator<Item = &Index> {
        self.layers.iter().map(|layer| &*layer.index)
    }

    /// Bytes, as stored, of those chunks of the topmost layer that layers below it have too.
    pub(crate) fn repeated(&self) -> u64 {
        let Some((top, lower)) = self.layers.split_last() else { return 0 };
        let lower: HashSet<[u8; 32]> =
            lower.iter().flat_map(|layer| hashes(&layer.index)).map(|(hash, _)| hash).collect();
        hashes(&top.index).filter(|(hash, _)| lower.contains(hash)).map(|(_, stored)| stored).sum()
    }

    /// Whether a file of this tree and one of another are the same bytes of the same layer file: equal, without a look.
    pub(crate) fn is_same_place(&self, id: tree::NodeId, other: &Below, theirs: tree::NodeId) -> bool {
        let (a, b) = (self.merged.node(id), other.merged.node(theirs));
        let layer = |below: &Below, number: usize| below.layers.get(number).map(|layer| layer.index.id());
        a.kind == b.kind && layer(self, a.layer).is_some_and(|id| layer(other, b.layer) == Some(id))
    }
}

/// Hash and length of each chunk, as stored.
pub(crate) fn hashes(index: &Index) -> impl Iterator<Item = ([u8; 32], u64)> {
    index.chunks().map(|chunk| (chunk.entry.hash, u64::from(chunk.entry.stored_len)))
}

/// A layer's index and tree; what the store holds under its key is verified against its id.
pub(crate) async fn open(store: &Arc<dyn Store>, entry: &StackEntry) -> Result<(StoredLayer, Tree)> {
    let (key, id) = (layer_key(&entry.layer), entry.layer);
    let hint = (entry.head > 0).then_some(entry.head);
    let head = read_head(&**store, &key, Some(&id), hint).await.map_err(|e| Error::failed(format!("layer {id}"), e))?;
    opened(store.clone(), key, head)
}

/// The same of a head that was read already; the layer file lies under `key`.
pub(crate) fn opened(store: Arc<dyn Store>, key: String, head: Head) -> Result<(StoredLayer, Tree)> {
    let tree = tree_of(&head).map_err(|e| Error::failed(format!("layer {}: its metadata", head.index.id()), e))?;
    Ok((StoredLayer { store, key, index: Arc::new(head.index) }, tree))
}

/// A layer's tree; or why its metadata are not right.
pub(crate) fn tree_of(head: &Head) -> std::result::Result<Tree, String> {
    let expect = Expect { image_blocks: head.index.image_blocks(), first_data_block: head.index.first_data_block() };
    let checked = check(&head.metadata, &expect).map_err(|e| e.to_string())?;
    read_tree(checked.image()).map_err(|e| e.to_string())
}
