//! Whether the store shows what a source holds.
//!
//! Every byte of the stored layers is read and verified. Then the source is read by the [`model`](mod@crate::model), which
//! shares nothing with the conversion but the tar reader, and the tree of the store is compared with it: names, types,
//! attributes, hard links, contents. So a fault of the conversion is found, damage, a reference to the wrong stack, and
//! a layer that was used again where it does not fit.

use crate::below::Below;
use crate::error::{Error, Result, store};
use crate::model::content::ContentHash;
use crate::model::{Inode, Kind, Model, PathId};
use crate::options::keeps_marks;
use crate::ready::chain_ids;
use crate::registry;
use crate::source::{Blobs, Image, LayerBlob, LayerStream, Opened, Platforms, ReadSums, Source, open};
use crate::stored::{StoredContents, runs};
use crate::tar::Reader;
use crate::tree::Merged;
use blobstore::layer::verify_object;
use blobstore::refs::{Digest, Refs, Stacks, TagName, layer_key};
use erofs::Content;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// More differences than anybody reads are counted, not listed.
const LISTED: usize = 100;

/// What a comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Comparison {
    /// Layers of the store whose every byte was read.
    pub layers: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Names that were compared.
    pub names: u64,
    /// How many differences there are; none is the right answer.
    pub count: u64,
    /// The first of them: path, what differs, and both values.
    pub differences: Vec<String>,
}

/// A tree of the source, and what stands for it in the store.
struct Original {
    model: Model,
    /// Of a directory none: only a tag stands for it.
    chain_id: Option<Digest>,
}

/// Compares what the store has for a source with the source: for `platforms` of an image, from `registries` where it lies in one.
/// With a tag, it is what the tag has that is compared; a directory needs one.
///
/// # Errors
/// [`Error::Failed`] also where the store has nothing for the source, or damaged layers.
pub async fn compare(
    refs: &Refs,
    source: &Source,
    platforms: &Platforms,
    registries: &registry::Settings,
    tag: Option<&TagName>,
) -> Result<Comparison> {
    let opened = open(source, platforms, registries).await?;
    let keep = tag.is_some_and(keeps_marks);
    let originals = tokio::task::spawn_blocking(move || originals(opened, keep))
        .await
        .map_err(|e| Error::failed("reading the source", e))??;
    let mut found = Comparison::default();
    for original in originals {
        let Stacks { plain, collapsed } = stored(refs, &original, tag).await?;
        let (model, mut verified) = (Arc::new(original.model), HashSet::new());
        for stack in [Some(plain), collapsed].into_iter().flatten() {
            let mut below = Below::default();
            for entry in &stack {
                if verified.insert(entry.layer) {
                    found.verify(refs, &layer_key(&entry.layer), entry).await?;
                }
                below.load(refs.store(), entry).await?;
            }
            let (runtime, model) = (Handle::current(), model.clone());
            let work = move || found.compare(&below, &model, &runtime);
            found =
                tokio::task::spawn_blocking(work).await.map_err(|e| Error::failed("the comparison's thread", e))??;
        }
    }
    Ok(found)
}

/// `keep_marks`: a tar that is no image's becomes a layer that keeps its whiteouts and opaque marks.
fn originals(opened: Opened, keep_marks: bool) -> Result<Vec<Original>> {
    match opened {
        Opened::Images(images) => images.images.iter().map(|each| image(each, &images.blobs)).collect(),
        Opened::Tar { blob, name, .. } => Ok(vec![tar(blob.stream, &name, keep_marks)?]),
        Opened::Directory(path) => Ok(vec![directory(&path)?]),
    }
}

fn image(image: &Image, blobs: &Blobs) -> Result<Original> {
    let (mut model, mut layers) = (Model::default(), image.layers.iter());
    while let Some(layer) = layers.next() {
        match image_layer(&mut model, layer, blobs) {
            Ok(()) => {}
            // Half a layer is in the model: everything is read again.
            Err(error) if blobs.has_elsewhere(&layer.digest, &error) => {
                (model, layers) = (Model::default(), image.layers.iter());
            }
            Err(error) => return Err(error.in_layer(&layer.digest.to_string())),
        }
    }
    Ok(Original { model, chain_id: chain_ids(image).pop() })
}

fn image_layer(model: &mut Model, layer: &LayerBlob, blobs: &Blobs) -> Result<()> {
    let sums = apply(model, blobs.blob(layer)?.stream, Some(layer))?;
    match (layer.digest, layer.size, layer.diff_id) == (sums.blob, sums.blob_size, sums.diff_id) {
        true => Ok(()),
        false => Err(Error::refused("its digests are not those that the image states")),
    }
}

fn tar(stream: Box<dyn Read + Send>, name: &str, keep_marks: bool) -> Result<Original> {
    let mut model = if keep_marks { Model::keeping_marks() } else { Model::default() };
    let sums = apply(&mut model, stream, None).map_err(|e| e.in_layer(name))?;
    Ok(Original { model, chain_id: Some(sums.diff_id) })
}

fn directory(path: &Path) -> Result<Original> {
    // What is left out, the conversion has told of.
    let (model, _) = Model::of_directory(path)?;
    Ok(Original { model, chain_id: None })
}

fn apply(model: &mut Model, blob: Box<dyn Read + Send>, layer: Option<&LayerBlob>) -> Result<ReadSums> {
    let mut reader = Reader::new(LayerStream::new(blob, layer.map_or(u64::MAX, |layer| layer.size))?);
    model.apply_reader(&mut reader)?;
    // What stands behind the archive is part of the blob, and of nothing else.
    reader.rest()?;
    reader.into_inner().finish()
}

/// The stacks that the store has for a tree of the source.
async fn stored(refs: &Refs, original: &Original, tag: Option<&TagName>) -> Result<Stacks> {
    let stacks = match (tag, original.chain_id) {
        (Some(tag), _) => {
            let tag = refs.tag(tag).await.map_err(store)?;
            tag.map(|tag| Stacks { plain: tag.stack, collapsed: tag.collapsed })
        }
        (None, Some(chain_id)) => {
            let chain = refs.chain(&chain_id).await.map_err(store)?;
            chain.map(|chain| Stacks { plain: chain.stack, collapsed: chain.collapsed })
        }
        (None, None) => {
            return Err(Error::refused(
                "a directory is compared with the tag under which it was converted, and none was given",
            ));
        }
    };
    stacks.ok_or_else(|| {
        Error::failed(
            "comparing",
            "the store has nothing for this source: it was not converted, or is in another store (--store) or under another tag",
        )
    })
}

impl Comparison {
    async fn verify(&mut self, refs: &Refs, key: &str, entry: &blobstore::refs::StackEntry) -> Result<()> {
        let verified = verify_object(&**refs.store(), key, Some(&entry.layer)).await;
        let verified = verified.map_err(|e| Error::failed(format!("verifying {key}"), e))?;
        self.layers += 1;
        self.bytes += verified.file_len;
        Ok(())
    }

    fn compare(mut self, below: &Below, original: &Model, runtime: &Handle) -> Result<Self> {
        let shown = shown(&below.merged, &mut StoredContents::new(below.layers(), runtime))?;
        let Self { count, differences, .. } = &mut self;
        let names = shown.compare(original, ["store", "source"], &mut |path, what| {
            *count += 1;
            if differences.len() < LISTED {
                differences.push(format!("/{}: {what}", crate::error::show(path)));
            }
        });
        self.names += names;
        Ok(self)
    }
}

/// A hash of a file's bytes, as [`ContentHash`] takes it.
pub(crate) fn content_hash(contents: &mut StoredContents<'_>, layer: usize, content: &Content) -> Result<[u8; 32]> {
    let mut hash = ContentHash::new(content.size());
    for run in runs(content) {
        let mut at = run.offset;
        contents.read(layer, &run, &mut |piece| {
            hash.write(at, piece);
            at += piece.len() as u64;
            Ok(())
        })?;
    }
    Ok(hash.finish())
}

/// The tree of the store, every file's contents read.
pub(crate) fn shown(merged: &Merged, contents: &mut StoredContents<'_>) -> Result<Model> {
    let mut model = Model::default();
    let mut known = HashMap::new();
    let mut open: Vec<_> = merged.root().map(|root| (PathId::ROOT, root)).into_iter().collect();
    while let Some((path, id)) = open.pop() {
        let node = merged.node(id);
        let names: Vec<_> = merged.names(id).collect();
        for name in names.into_iter().rev() {
            let path = model.child(path, name);
            open.extend(merged.child(id, name).map(|child| (path, child)));
        }
        if let Some(&inode) = known.get(&id) {
            model.link(path, inode, 0);
            continue;
        }
        let kind = match &node.kind {
            erofs::Kind::File(content) => {
                Kind::File { size: content.size(), content: content_hash(contents, node.layer, content)? }
            }
            erofs::Kind::Directory => Kind::Directory,
            erofs::Kind::Symlink(target) => Kind::Symlink(target.clone()),
            erofs::Kind::Char(major, minor) => Kind::Char(*major, *minor),
            erofs::Kind::Block(major, minor) => Kind::Block(*major, *minor),
            erofs::Kind::Fifo => Kind::Fifo,
            erofs::Kind::Socket => Kind::Socket,
        };
        let inode = model.set(path, Inode { attributes: node.attributes.clone(), kind }, 0);
        known.insert(id, inode);
    }
    Ok(model)
}

#[cfg(test)]
mod tests;
