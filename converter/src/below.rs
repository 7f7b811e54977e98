//! The layers below the one that is being converted: their merged tree, and their files' contents.

use crate::error::{Error, Result};
use crate::pack::Spool;
use crate::tar::{Extent, Shape};
use crate::tree::{self, Merged};
use blobstore::layer::{Flags, Head, Index, Located, decode, read_head};
use blobstore::refs::{StackEntry, layer_key};
use blobstore::store::Store;
use erofs::{BLOCK, Content, Expect, Tree, check, read_tree};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::runtime::Handle;

const BLOCK_U64: u64 = BLOCK as u64;

/// What lies below a layer.
#[derive(Debug, Default)]
pub(crate) struct Below {
    pub(crate) merged: Merged,
    /// Where the contents of each layer are, by its number in the merged tree.
    bodies: Vec<Body>,
}

/// Where the chunks of a layer are.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    store: Arc<dyn Store>,
    key: String,
    index: Arc<Index>,
}

impl Body {
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
    pub(crate) fn bodies(&self) -> &[Body] {
        &self.bodies
    }

    /// Lays a layer of a store over the tree.
    pub(crate) async fn load(&mut self, store: &Arc<dyn Store>, entry: &StackEntry) -> Result<()> {
        let (body, tree) = open(store, entry).await?;
        self.push(body, &tree, entry.root_opaque);
        Ok(())
    }

    /// Lays a layer over the tree.
    pub(crate) fn push(&mut self, body: Body, tree: &Tree, root_opaque: bool) {
        self.merged.overlay(tree, root_opaque);
        self.bodies.push(body);
    }

    /// The indexes of the layers, bottom to top.
    pub(crate) fn indexes(&self) -> impl ExactSizeIterator<Item = &Index> {
        self.bodies.iter().map(|body| &*body.index)
    }

    /// Bytes, as stored, of those chunks of the topmost layer that layers below it have too.
    pub(crate) fn repeated(&self) -> u64 {
        let Some((top, lower)) = self.bodies.split_last() else { return 0 };
        let lower: HashSet<[u8; 32]> =
            lower.iter().flat_map(|body| hashes(&body.index)).map(|(hash, _)| hash).collect();
        hashes(&top.index).filter(|(hash, _)| lower.contains(hash)).map(|(_, stored)| stored).sum()
    }

    /// Whether a file of this tree and one of another are the same bytes of the same layer file: equal, without a look.
    pub(crate) fn is_same_place(&self, id: tree::NodeId, other: &Below, theirs: tree::NodeId) -> bool {
        let (a, b) = (self.merged.node(id), other.merged.node(theirs));
        let layer = |below: &Below, number: usize| below.bodies.get(number).map(|body| body.index.id());
        a.kind == b.kind && layer(self, a.layer).is_some_and(|id| layer(other, b.layer) == Some(id))
    }

    /// Copies a file's contents into a spool; its number there. What is kept between two calls is the chunk that was read
    /// last, which the next file may lie in too. Must not run on one of the runtime's own threads.
    pub(crate) fn copy(
        &self,
        from: &tree::Placed,
        spool: &mut Spool,
        runtime: &Handle,
        kept: &mut Option<(usize, Chunk)>,
    ) -> Result<usize> {
        let gone = || Error::failed("reading a file below", "its layer is not known");
        let body = self.bodies.get(from.layer).ok_or_else(gone)?;
        let (shape, runs) = runs(&from.content);
        let chunk = kept.take().filter(|(layer, _)| *layer == from.layer).map(|(_, chunk)| chunk);
        let mut reader = Reader { body, runtime, runs: runs.into_iter(), at: 0, end: 0, chunk };
        let number = spool.add(&shape, |buffer| reader.read(buffer))?;
        *kept = reader.chunk.map(|chunk| (from.layer, chunk));
        Ok(number)
    }
}

/// Where a chunk is, and its content.
pub(crate) type Chunk = (Located, Vec<u8>);

/// Hash and length of each chunk, as stored.
pub(crate) fn hashes(index: &Index) -> impl Iterator<Item = ([u8; 32], u64)> {
    index.chunks().map(|chunk| (chunk.entry.hash, u64::from(chunk.entry.stored_len)))
}

/// A layer's index and tree; what the store holds under its key is verified against its id.
pub(crate) async fn open(store: &Arc<dyn Store>, entry: &StackEntry) -> Result<(Body, Tree)> {
    let (key, id) = (layer_key(&entry.layer), entry.layer);
    let hint = (entry.head > 0).then_some(entry.head);
    let head = read_head(&**store, &key, Some(&id), hint).await.map_err(|e| Error::failed(format!("layer {id}"), e))?;
    opened(store.clone(), key, head)
}

/// The same of a head that was read already; the layer file lies under `key`.
pub(crate) fn opened(store: Arc<dyn Store>, key: String, head: Head) -> Result<(Body, Tree)> {
    let wrong = |e: String| Error::failed(format!("layer {}: its metadata", head.index.id()), e);
    let expect = Expect { image_blocks: head.index.image_blocks(), first_data_block: head.index.first_data_block() };
    let checked = check(&head.metadata, &expect).map_err(|e| wrong(e.to_string()))?;
    let tree = read_tree(checked.image()).map_err(|e| wrong(e.to_string()))?;
    Ok((Body { store, key, index: Arc::new(head.index) }, tree))
}

/// A file's shape, and where its bytes are in the data space: offset and length of each run.
fn runs(content: &Content) -> (Shape, Vec<(u64, u64)>) {
    match content {
        Content::Plain { size, start } => (Shape { size: *size, map: None }, vec![(start * BLOCK_U64, *size)]),
        Content::Sparse { size, chunk_bits, chunks } => {
            let chunk = BLOCK_U64 << chunk_bits;
            let stored = chunks.iter().zip((0..).step_by(chunk as usize)).filter_map(|(start, offset): (_, u64)| {
                let extent = Extent { offset, length: chunk.min(size - offset) };
                start.map(|start| (extent, (start * BLOCK_U64, extent.length)))
            });
            let (map, runs) = stored.unzip();
            (Shape { size: *size, map: Some(map) }, runs)
        }
    }
}

struct Reader<'a> {
    body: &'a Body,
    runtime: &'a Handle,
    runs: std::vec::IntoIter<(u64, u64)>,
    at: u64,
    end: u64,
    chunk: Option<Chunk>,
}

impl Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        while self.at == self.end {
            let Some((start, length)) = self.runs.next() else { return Ok(0) };
            (self.at, self.end) = (start, start + length);
        }
        let (at, end) = (self.at, self.end);
        let (start, chunk) = self.chunk()?;
        let from = (at - start) as usize;
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let count = buffer.len().min(left).min(chunk.len() - from);
        buffer[..count].copy_from_slice(&chunk[from..from + count]);
        self.at += count as u64;
        Ok(count)
    }

    /// The chunk with the next byte, and where it starts.
    fn chunk(&mut self) -> Result<(u64, &[u8])> {
        let at = self.at;
        let here = |located: &Located| {
            at.checked_sub(located.data_start).is_some_and(|n| n < u64::from(located.entry.data_len))
        };
        if !self.chunk.as_ref().is_some_and(|(located, _)| here(located)) {
            self.chunk = Some(self.body.chunk(at, self.runtime)?);
        }
        Ok(self.chunk.as_ref().map_or((at, &[][..]), |(located, content)| (located.data_start, content.as_slice())))
    }
}
