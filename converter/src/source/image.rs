//! From an index or a manifest to the images below it: which manifests are taken, and that their documents agree.

use super::blobs::Blobs;
use super::document::{Config, Descriptor, IndexOrManifest, LayerBlob, WirePlatform, parse};
use super::platform::{Fit, Platforms, fit};
use crate::error::{Error, Result};
use crate::limits::{DOCUMENTS, LAYERS as LAYERS_MAX, is_too_deep};
use blobstore::refs::{Digest, Platform};
use std::collections::HashSet;

/// What a reference of a layout stands for.
#[derive(Debug)]
pub struct Images {
    /// Digest of the index or manifest.
    pub root: Digest,
    /// Its media type.
    pub media_type: String,
    /// Whether it is an index.
    pub is_index: bool,
    /// The full image name that the layout gives it, if it does.
    pub name: Option<String>,
    /// Every document on the way: indexes, manifests, configs, byte for byte.
    pub documents: Vec<Vec<u8>>,
    /// Indexes and manifests that were looked at: each is once, however often it is named.
    seen: HashSet<Digest>,
    /// The images, one a platform.
    pub images: Vec<Image>,
    /// Where the layers are.
    pub blobs: Blobs,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the manifest.
    pub manifest: Digest,
    /// Digest of the config.
    pub config: Digest,
    /// What it runs on.
    pub platform: Platform,
    /// The environment of its processes, `NAME=value`.
    pub environment: Vec<String>,
    /// Its layers, bottom to top.
    pub layers: Vec<LayerBlob>,
}

/// A manifest that is being looked at.
struct Manifest<'a> {
    digest: Digest,
    bytes: Vec<u8>,
    config: Descriptor,
    layers: Vec<Descriptor>,
    /// The platform that its descriptor names.
    said: Option<&'a WirePlatform>,
}

impl Images {
    /// The images of what a layout names.
    pub(super) fn of_descriptor(
        blobs: Blobs,
        root: &Descriptor,
        name: Option<String>,
        platforms: &Platforms,
    ) -> Result<Self> {
        let mut images = Self::none(blobs, root.digest()?, name);
        images.collect(root, platforms, 0)?;
        images.not_empty(platforms)
    }

    /// The images of an index or a manifest that no layout names.
    pub(super) fn of_document(
        blobs: Blobs,
        document: Vec<u8>,
        media_type: &str,
        name: Option<String>,
        platforms: &Platforms,
    ) -> Result<Self> {
        let root = Digest::of(&document);
        let descriptor = Descriptor::of_document(media_type, &root, document.len() as u64);
        let mut images = Self::none(blobs, root, name);
        images.document(root, &descriptor, document, platforms, 0)?;
        images.not_empty(platforms)
    }

    fn none(blobs: Blobs, root: Digest, name: Option<String>) -> Self {
        Self {
            root,
            media_type: String::new(),
            is_index: false,
            name,
            documents: Vec::new(),
            seen: HashSet::new(),
            images: Vec::new(),
            blobs,
        }
    }

    fn not_empty(self, platforms: &Platforms) -> Result<Self> {
        match self.images.is_empty() {
            true => Err(Error::refused(format!("the image has no manifest for {platforms}"))),
            false => Ok(self),
        }
    }

    /// Takes what a descriptor stands for, with all below it.
    fn collect(&mut self, descriptor: &Descriptor, platforms: &Platforms, depth: usize) -> Result<()> {
        let digest = descriptor.digest()?;
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let bytes = self.blobs.document(descriptor)?;
        self.document(digest, descriptor, bytes, platforms, depth)
    }

    /// Takes an index or a manifest, whose bytes were checked.
    fn document(
        &mut self,
        digest: Digest,
        descriptor: &Descriptor,
        bytes: Vec<u8>,
        platforms: &Platforms,
        depth: usize,
    ) -> Result<()> {
        let document: IndexOrManifest = parse(&digest.to_string(), &bytes)?;
        let described = descriptor.media_type.as_str();
        let media_type = document.media_type.as_deref().unwrap_or(described);
        if !described.is_empty() && media_type != described {
            let what = format!("{digest}: its media type is '{media_type}', its descriptor says '{described}'");
            return Err(Error::refused(what));
        }
        if depth == 0 {
            self.media_type = media_type.to_owned();
            self.is_index = document.manifests.is_some();
        }
        match (document.manifests, document.layers) {
            (Some(manifests), None) if !is_too_deep(depth) => {
                self.keep(bytes)?;
                self.index(&manifests, platforms, depth)
            }
            (Some(_), None) => Err(Error::refused(format!("{digest}: indexes nest too deep"))),
            (None, Some(layers)) => {
                let config = document.config.ok_or_else(|| Error::refused(format!("{digest}: no config")))?;
                let manifest = Manifest { digest, bytes, config, layers, said: descriptor.platform.as_ref() };
                self.manifest(manifest, platforms, depth)
            }
            _ => Err(Error::refused(format!("{digest}: neither an index nor a manifest ('{media_type}')"))),
        }
    }

    fn keep(&mut self, document: Vec<u8>) -> Result<()> {
        self.documents.push(document);
        match self.documents.iter().map(|document| document.len() as u64).sum::<u64>() > DOCUMENTS {
            true => Err(Error::refused(format!("the image's documents have more than {DOCUMENTS} bytes"))),
            false => Ok(()),
        }
    }

    /// Takes the wanted manifests of an index: all, or the one that containerd would choose, which asks those that do
    /// not say their platform last.
    fn index(&mut self, manifests: &[Descriptor], platforms: &Platforms, depth: usize) -> Result<()> {
        let mut fitting: Vec<&Descriptor> = manifests.iter().filter(|d| fit(d, platforms) != Fit::Not).collect();
        if *platforms != Platforms::All {
            fitting.retain(|descriptor| !descriptor.is_attached());
            fitting.sort_by_key(|descriptor| fit(descriptor, platforms));
        }
        for descriptor in fitting {
            match descriptor.is_attached() {
                true => self.attached(descriptor)?,
                false => self.collect(descriptor, platforms, depth + 1)?,
            }
            if *platforms != Platforms::All && !self.images.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Keeps the documents of an attestation or a signature as they are; what they name besides is left alone. Where the
    /// source does not have them, the image is none the worse.
    fn attached(&mut self, descriptor: &Descriptor) -> Result<()> {
        let Ok(digest) = descriptor.digest() else { return Ok(()) };
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let Some(bytes) = self.blobs.document_if_there(descriptor)? else { return Ok(()) };
        let config = serde_json::from_slice::<IndexOrManifest>(&bytes).ok().and_then(|document| document.config);
        self.keep(bytes)?;
        if let Some(config) = config {
            self.blobs.document_if_there(&config)?.into_iter().try_for_each(|document| self.keep(document))?;
        }
        Ok(())
    }

    fn manifest(&mut self, manifest: Manifest<'_>, platforms: &Platforms, depth: usize) -> Result<()> {
        let Manifest { digest, bytes, config, layers, said } = manifest;
        if depth > 0 && !config.is_image_config() {
            if *platforms == Platforms::All {
                self.keep(bytes)?;
                self.blobs.document_if_there(&config)?.into_iter().try_for_each(|document| self.keep(document))?;
            }
            return Ok(());
        }
        let config_bytes = self.blobs.document(&config)?;
        let parsed: Config = parse(&config.digest, &config_bytes)?;
        let (os, architecture, variant) = (parsed.os, parsed.architecture, parsed.variant);
        let own = WirePlatform { os, architecture, variant, features: None };
        // The index's word counts where there is one, as everywhere: configs are often wrong about it.
        let platform = said.and_then(WirePlatform::platform).unwrap_or_else(|| own.as_it_is());
        match platforms.take(&platform) {
            true => {}
            false if depth > 0 => return Ok(()),
            false => return Err(Error::refused(format!("the image is for {platform}, wanted is {platforms}"))),
        }
        let layers = layer_blobs(&digest, &layers, &parsed.rootfs.diff_ids.unwrap_or_default())?;
        self.keep(bytes)?;
        self.keep(config_bytes)?;
        let environment = parsed.config.unwrap_or_default().env.unwrap_or_default();
        self.images.push(Image { manifest: digest, config: config.digest()?, platform, environment, layers });
        Ok(())
    }
}

/// The layers of a manifest, with the diff ids that its config states.
fn layer_blobs(manifest: &Digest, layers: &[Descriptor], diff_ids: &[String]) -> Result<Vec<LayerBlob>> {
    let count = layers.len();
    if count > LAYERS_MAX {
        return Err(Error::refused(format!("{manifest}: {count} layers, {LAYERS_MAX} are possible")));
    }
    if diff_ids.len() != count {
        let diff_ids = diff_ids.len();
        return Err(Error::refused(format!("{manifest}: {count} layers, but {diff_ids} diff_ids in its config")));
    }
    layers.iter().zip(diff_ids).map(|(layer, diff_id)| layer.layer(diff_id)).collect()
}
