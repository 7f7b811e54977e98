//! What the source of an image has, to be copied as it is: every manifest below its root, and their blobs.
//!
//! A layout may hold an index without all that it names: what is not there, and was not converted, is left out with a
//! warning.

use super::document::Document;
use crate::error::{Error, Result};
use crate::limits::{DOCUMENTS, is_too_deep};
use crate::media_type::MANIFEST;
use crate::registry::{BlobToPush, Content};
use crate::source::{Blobs, Descriptor, Images, parse};
use blobstore::refs::Digest;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Originals {
    /// The root, if it is an index.
    pub(super) index: Map<String, Value>,
    /// Manifests and the indexes below the root; what is named comes before what names it.
    pub(super) documents: Vec<Document>,
    /// The root index's entries, as they are; of a root that is a manifest, one for it.
    pub(super) entries: Vec<Entry>,
    /// Digests and sizes, in the order in which they were met.
    blobs: Vec<(Digest, u64)>,
    known: HashSet<Digest>,
    /// Of all documents.
    bytes: u64,
}

/// One entry of the root index.
#[derive(Debug)]
pub(super) struct Entry {
    /// The descriptor.
    pub(super) descriptor: Value,
    /// All manifests that are in it.
    pub(super) manifests: HashSet<Digest>,
}

/// What a document names, whatever it is.
#[derive(Deserialize)]
struct Links {
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    blobs: Option<Vec<Descriptor>>,
}

/// Reads the documents of an image's source.
pub(super) async fn collect(images: &Images) -> Result<Originals> {
    let root = images.documents.first().cloned().unwrap_or_default();
    let (blobs, media_type, is_index) = (images.blobs.clone(), images.media_type.clone(), images.is_index);
    let converted: Vec<_> = images.images.iter().map(|image| (image.manifest, image.platform.clone())).collect();
    let work = move || {
        let mut originals = Originals::default();
        match is_index {
            true => originals.index(&blobs, &root, &converted)?,
            false => originals.root(&blobs, root, media_type, converted.first().map(|(_, platform)| platform))?,
        }
        Ok(originals)
    };
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::failed("reading the source", e))?
}

type Converted = [(Digest, blobstore::refs::Platform)];

impl Originals {
    /// The blobs, to be read from where the documents are from.
    pub(super) fn blobs(&self, source: &Blobs) -> impl Iterator<Item = BlobToPush> {
        self.blobs.iter().map(|&(digest, size)| {
            let content = Arc::new(FromSource { blobs: source.clone(), digest, size });
            BlobToPush { digest, size, content }
        })
    }

    /// The entries of a root that is an index.
    fn index(&mut self, blobs: &Blobs, root: &[u8], converted: &Converted) -> Result<()> {
        self.index = parse("the root", root)?;
        let entries = self.index.get("manifests").and_then(Value::as_array).cloned();
        entries.iter().flatten().try_for_each(|entry| self.entry(blobs, entry, converted))
    }

    /// A root that is a manifest gets an entry.
    fn root(
        &mut self,
        blobs: &Blobs,
        bytes: Vec<u8>,
        media_type: String,
        platform: Option<&blobstore::refs::Platform>,
    ) -> Result<()> {
        let media_type = if media_type.is_empty() { MANIFEST.to_owned() } else { media_type };
        let digest = Digest::of(&bytes);
        let descriptor =
            json!({ "mediaType": media_type, "digest": digest, "size": bytes.len(), "platform": platform });
        let mut manifests = HashSet::new();
        self.document(blobs, Document { media_type, digest, bytes }, &mut manifests, 0)?;
        self.entries.push(Entry { descriptor, manifests });
        Ok(())
    }

    /// An entry of the root index, unless it is what an earlier push made of an image that is pushed now.
    fn entry(&mut self, blobs: &Blobs, value: &Value, converted: &Converted) -> Result<()> {
        let descriptor: Descriptor =
            serde_json::from_value(value.clone()).map_err(|e| Error::refused(format!("an index's entry: {e}")))?;
        let digest = descriptor.digest()?;
        let replaced = |platform: &crate::source::WirePlatform| {
            platform.is_mountable() && converted.iter().any(|(_, other)| Some(other) == platform.platform().as_ref())
        };
        if descriptor.platform.as_ref().is_some_and(replaced) {
            return Ok(());
        }
        let needed = converted.iter().any(|(manifest, _)| *manifest == digest);
        if !needed && is_lacking(blobs, &descriptor, &mut HashSet::new(), 1)? {
            tracing::warn!(%digest, "left out of the pushed index: the source does not have all of it");
            return Ok(());
        }
        let mut manifests = HashSet::new();
        self.tree(blobs, &descriptor, &mut manifests, 1)?;
        self.entries.push(Entry { descriptor: value.clone(), manifests });
        Ok(())
    }

    fn tree(
        &mut self,
        blobs: &Blobs,
        descriptor: &Descriptor,
        manifests: &mut HashSet<Digest>,
        depth: usize,
    ) -> Result<()> {
        let (digest, media_type) = (descriptor.digest()?, descriptor.media_type.clone());
        // Each is read once, however often it is named.
        if self.known.contains(&digest) {
            manifests.insert(digest);
            return Ok(());
        }
        let bytes = blobs.document(descriptor)?;
        self.document(blobs, Document { media_type, digest, bytes }, manifests, depth)
    }

    fn document(
        &mut self,
        blobs: &Blobs,
        document: Document,
        manifests: &mut HashSet<Digest>,
        depth: usize,
    ) -> Result<()> {
        let links: Links = parse(&document.digest.to_string(), &document.bytes)?;
        manifests.insert(document.digest);
        self.bytes += document.bytes.len() as u64;
        if links.is_too_deep(depth) || self.bytes > DOCUMENTS {
            return Err(Error::refused(format!("{}: indexes nest too deep, or hold too much", document.digest)));
        }
        for child in links.manifests.iter().flatten() {
            self.tree(blobs, child, manifests, depth + 1)?;
        }
        for blob in links.blobs() {
            let digest = blob.digest()?;
            if self.known.insert(digest) {
                self.blobs.push((digest, blob.size));
            }
        }
        if self.known.insert(document.digest) {
            self.documents.push(document);
        }
        Ok(())
    }
}

/// Whether something below a descriptor is known not to be there.
fn is_lacking(blobs: &Blobs, descriptor: &Descriptor, seen: &mut HashSet<Digest>, depth: usize) -> Result<bool> {
    let digest = descriptor.digest()?;
    if matches!(blobs, Blobs::Registry { .. }) || !seen.insert(digest) {
        return Ok(false);
    }
    if blobs.lacks(&digest) {
        return Ok(true);
    }
    let links: Links = parse(&digest.to_string(), &blobs.document(descriptor)?)?;
    if links.is_too_deep(depth) {
        return Ok(false);
    }
    for blob in links.blobs() {
        if blobs.lacks(&blob.digest()?) {
            return Ok(true);
        }
    }
    for child in links.manifests.iter().flatten() {
        if is_lacking(blobs, child, seen, depth + 1)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Links {
    /// Whether it is an index that is nested too deep.
    fn is_too_deep(&self, depth: usize) -> bool {
        self.manifests.is_some() && is_too_deep(depth)
    }

    /// The blobs that a registry must have.
    fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        let all = self.config.iter().chain(self.layers.iter().flatten()).chain(self.blobs.iter().flatten());
        all.filter(|blob| blob.urls.as_ref().is_none_or(Vec::is_empty))
    }
}

/// A blob of the source.
struct FromSource {
    blobs: Blobs,
    digest: Digest,
    size: u64,
}

impl Content for FromSource {
    fn open(&self, at: u64) -> Result<Box<dyn Read + Send>> {
        self.blobs.blob_from(&self.digest, self.size, at)
    }

    fn has_elsewhere(&self, error: &Error) -> bool {
        self.blobs.has_elsewhere(&self.digest, error)
    }
}
