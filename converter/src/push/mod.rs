//! Converted images to a registry: an index that holds the original image, untouched and first, and ours behind it.
//!
//! * `originals`: what the source has, and how it is copied; * `digests`: what a layer file is called by registries;
//! * `accelerated`: config and manifest of the image whose layers are ours; * `index`: the index of both. * `document`: what
//!   of it is documents.
//!
//! Who knows nothing of EROFS takes the first manifest that fits his platform, the original. Everything here follows from
//! the source's bytes and the layers: the same input gives the same index. References to our manifest are written in
//! the store too, so that those who pull it with our snapshotter get its layers lazily.

mod accelerated;
mod digests;
mod document;
mod index;
mod originals;

use crate::error::{Result, held, store};
use crate::ready::{chain_ids_of, chain_layers};
use crate::registry::{BlobToPush, Pushed, Repository, Settings};
use crate::report::{PushReport, PushedImage};
use crate::source::{Blobs, Images};
use accelerated::Accelerated;
use blobstore::collect::{Held, Lease};
use blobstore::refs::{Chain, Digest, ImageName, ManifestDoc, Refs, blob_key};
use document::Document;
use originals::Originals;
use std::collections::HashMap;

/// Pushes images that the store has, with their originals, as `name`.
pub(crate) async fn push(
    refs: &Refs,
    lease: &Lease,
    images: &Images,
    name: &ImageName,
    settings: &Settings,
) -> Result<PushReport> {
    let target = Target { repository: Repository::new(name, settings)?, report: PushReport::default() };
    let originals = originals::collect(images).await?;
    let (mut ours, mut known) = (Vec::new(), HashMap::new());
    for image in &images.images {
        let made = accelerated::make(refs, image, &mut known).await?;
        ours.extend(made.map(|made| (image.manifest, made)));
    }
    let index = index::make(&originals, &ours)?;
    lease.hold(written(&index, &ours)).await.map_err(held)?;
    lease.settle().await.map_err(held)?;
    for (_, made) in &ours {
        remember(refs, lease, made).await?;
    }
    refs.put_blob(index.bytes.clone().into()).await.map_err(store)?;
    let report = target.send(refs, images, &originals, &ours, &index, name).await?;
    lease.check().await.map_err(held)?;
    refs.put_image(name, index.digest).await.map_err(store)?;
    let images = ours.iter().map(|(_, made)| PushedImage {
        platform: made.platform.to_string(),
        manifest: made.manifest.digest.to_string(),
    });
    Ok(PushReport { name: name.to_string(), digest: index.digest.to_string(), images: images.collect(), ..report })
}

/// Where it goes, and what went there so far.
struct Target {
    repository: Repository,
    report: PushReport,
}

impl Target {
    /// Everything, in an order in which nothing names what is not there.
    async fn send(
        mut self,
        refs: &Refs,
        images: &Images,
        originals: &Originals,
        ours: &[(Digest, Accelerated)],
        index: &Document,
        name: &ImageName,
    ) -> Result<PushReport> {
        let beside = match &images.blobs {
            Blobs::Registry { repository, .. } => repository.beside(&self.repository).map(str::to_owned),
            _ => None,
        };
        for blob in originals.blobs(&images.blobs) {
            self.blob(&blob, beside.as_deref()).await?;
        }
        for document in &originals.documents {
            self.document(document, &document.digest.to_string()).await?;
        }
        for (_, made) in ours {
            for layer in &made.layers {
                self.blob(&layer.blob(refs), None).await?;
            }
            self.blob(&made.config.blob(), None).await?;
            self.document(&made.manifest, &made.manifest.digest.to_string()).await?;
        }
        self.document(index, name.tag().unwrap_or("latest")).await?;
        Ok(self.report)
    }

    async fn blob(&mut self, blob: &BlobToPush, from: Option<&str>) -> Result<()> {
        match self.repository.push_blob(blob, from).await.map_err(|e| e.in_layer(&blob.digest.to_string()))? {
            Pushed::There => self.report.present += 1,
            Pushed::Mounted => self.report.mounted += 1,
            Pushed::Sent => {
                self.report.sent += 1;
                self.report.bytes_sent += blob.size;
            }
        }
        Ok(())
    }

    async fn document(&self, document: &Document, reference: &str) -> Result<()> {
        self.repository.push_document(reference, &document.media_type, &document.bytes).await
    }
}

/// The keys of what the store gets besides.
fn written(index: &Document, ours: &[(Digest, Accelerated)]) -> Vec<String> {
    let mut keys = vec![blob_key(&index.digest), ManifestDoc::key(&index.digest)];
    for (_, made) in ours {
        let (config, manifest) = (&made.config.digest, &made.manifest.digest);
        keys.extend([blob_key(config), blob_key(manifest), ManifestDoc::key(manifest)]);
    }
    keys
}

/// References for our manifest: its chain ids stand for the same stacks as the original's.
async fn remember(refs: &Refs, lease: &Lease, made: &Accelerated) -> Result<()> {
    let mut references = Held::new(refs, lease);
    let chain_ids = chain_ids_of(made.layers.iter().map(|layer| &layer.digests.image));
    let layers = chain_layers(&chain_ids, made.layers.iter().map(|layer| &layer.entry));
    let mut chains = references.write_chains(&layers, false).await.map_err(held)?;
    if let (Some(top), Some(collapsed)) = (chains.last_mut(), &made.collapsed) {
        let with = Chain { collapsed: Some(collapsed.clone()), ..top.clone() };
        let stands = references.add_collapsed(&[with], false).await.map_err(held)?;
        stands.into_iter().for_each(|chain| *top = chain);
    }
    let diff_ids = made.layers.iter().map(|layer| &layer.digests.image);
    let (digest, config) = (made.manifest.digest, made.config.digest);
    let document = ManifestDoc::new(digest, config, made.platform.clone(), chains, diff_ids);
    for bytes in [&made.config.bytes, &made.manifest.bytes] {
        refs.put_blob(bytes.clone().into()).await.map_err(store)?;
    }
    refs.put_manifest(&document).await.map_err(store)
}
