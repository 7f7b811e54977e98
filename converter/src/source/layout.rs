//! Choosing the images of an OCI image layout or a registry, and checking that their documents agree.

use super::blobs::Blobs;
use super::manifest::{Config, Descriptor, Document, WirePlatform, parse};
use crate::error::{Error, Result};
use crate::limits::{DOCUMENTS, LAYERS as LAYERS_MAX, is_too_deep};
use blobstore::refs::{Digest, Platform};
use std::collections::HashSet;
use std::str::FromStr;

const REF_NAME: &str = "org.opencontainers.image.ref.name";
const IMAGE_NAME: &str = "io.containerd.image.name";

/// Which platforms of an image are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platforms {
    /// All of them.
    All,
    /// The one that fits this.
    One(Platform),
}

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

/// A layer as the documents describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerBlob {
    /// Digest of the blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Digest of the tar in it.
    pub diff_id: Digest,
}

impl Default for Platforms {
    /// This machine's.
    fn default() -> Self {
        Self::One(Platform::host())
    }
}

impl FromStr for Platforms {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            ["all"] => return Ok(Self::All),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(Error::refused(format!("'{text}' is no platform: OS/ARCH, OS/ARCH/VARIANT or 'all'"))),
        };
        Ok(Self::One(Platform { os: os.to_owned(), architecture: architecture.to_owned(), variant }))
    }
}

/// The images that `reference` stands for in a layout; without one the layout must hold a single one.
pub fn open(blobs: Blobs, reference: Option<&str>, platforms: &Platforms) -> Result<Images> {
    let index: Document = parse("index.json", &blobs.named("index.json")?)?;
    let all = index.manifests.unwrap_or_default();
    let chosen: Vec<Descriptor> = match reference {
        None => all.clone(),
        Some(wanted) => all.iter().filter(|descriptor| is_called(descriptor, wanted)).cloned().collect(),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().filter_map(|descriptor| descriptor.annotation(REF_NAME)).collect();
        let wanted = reference.unwrap_or("any");
        return Err(Error::refused(format!("the layout has no image '{wanted}'; it has: {}", names.join(", "))));
    }
    let root = choose_root(&chosen, platforms)?;
    let mut images = Images {
        root: root.digest()?,
        media_type: String::new(),
        is_index: false,
        name: full_name(&root),
        documents: Vec::new(),
        seen: HashSet::new(),
        images: Vec::new(),
        blobs,
    };
    images.collect(&root, platforms, 0)?;
    images.not_empty(platforms)
}

/// The images of an index or a manifest that no layout names.
pub(super) fn of_root(
    blobs: Blobs,
    manifest: Vec<u8>,
    media_type: &str,
    name: Option<String>,
    platforms: &Platforms,
) -> Result<Images> {
    let root = Digest::of(&manifest);
    let mut images = Images {
        root,
        media_type: String::new(),
        is_index: false,
        name,
        documents: Vec::new(),
        seen: HashSet::new(),
        images: Vec::new(),
        blobs,
    };
    let descriptor = Descriptor::of_document(media_type, &root, manifest.len() as u64);
    images.document(root, &descriptor, manifest, platforms, 0)?;
    images.not_empty(platforms)
}

fn is_called(descriptor: &Descriptor, wanted: &str) -> bool {
    let names = [descriptor.annotation(REF_NAME), descriptor.annotation(IMAGE_NAME), Some(&descriptor.digest)];
    names.into_iter().flatten().any(|name| name == wanted)
}

/// The full name among a descriptor's annotations; a bare tag is none.
fn full_name(descriptor: &Descriptor) -> Option<String> {
    let names = [descriptor.annotation(IMAGE_NAME), descriptor.annotation(REF_NAME)];
    names.into_iter().flatten().find(|name| name.contains('/')).map(str::to_owned)
}

/// Of several descriptors of one name, the one for the platform.
fn choose_root(chosen: &[Descriptor], platforms: &Platforms) -> Result<Descriptor> {
    if let [one] = chosen {
        return Ok(one.clone());
    }
    let said = |d: &&Descriptor| !d.is_attached() && matches!(fit(d, platforms), Fit::Said(_));
    let mut fitting: Vec<&Descriptor> = chosen.iter().filter(said).collect();
    fitting.sort_by_key(|descriptor| fit(descriptor, platforms));
    match fitting[..] {
        [one] => Ok(one.clone()),
        [one, two, ..] if one.digest == two.digest || fit(one, platforms) < fit(two, platforms) => Ok(one.clone()),
        _ => {
            let names: Vec<&str> = chosen.iter().map(|d| d.annotation(REF_NAME).unwrap_or(d.digest.as_str())).collect();
            Err(Error::refused(format!("the layout holds several images, name one of them: {}", names.join(", "))))
        }
    }
}

/// How well a descriptor's platform fits what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It does; 0 is the best.
    Said(u32),
    /// It does not say: the config knows.
    Unsaid,
    /// It does not.
    Not,
}

fn fit(descriptor: &Descriptor, platforms: &Platforms) -> Fit {
    let Some(platform) = descriptor.platform.as_ref().and_then(WirePlatform::platform) else { return Fit::Unsaid };
    if descriptor.platform.as_ref().is_some_and(WirePlatform::is_mountable) {
        return Fit::Not;
    }
    match platforms {
        Platforms::All => Fit::Said(0),
        Platforms::One(one) => platform.distance(one).map_or(Fit::Not, Fit::Said),
    }
}

fn describe(platforms: &Platforms) -> String {
    match platforms {
        Platforms::All => "any platform".to_owned(),
        Platforms::One(one) => one.to_string(),
    }
}

impl Images {
    fn not_empty(self, platforms: &Platforms) -> Result<Self> {
        match self.images.is_empty() {
            true => Err(Error::refused(format!("the image has no manifest for {}", describe(platforms)))),
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
        let document: Document = parse(&digest.to_string(), &bytes)?;
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
        let config = serde_json::from_slice::<Document>(&bytes).ok().and_then(|document| document.config);
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
        let fits = match platforms {
            Platforms::One(one) => platform.fits(one),
            Platforms::All => true,
        };
        if !fits && depth > 0 {
            return Ok(());
        }
        if !fits {
            return Err(Error::refused(format!("the image is for {platform}, wanted is {}", describe(platforms))));
        }
        let diff_ids = parsed.rootfs.diff_ids.unwrap_or_default();
        if layers.len() > LAYERS_MAX {
            let layers = layers.len();
            return Err(Error::refused(format!("{digest}: {layers} layers, {LAYERS_MAX} are possible")));
        }
        if diff_ids.len() != layers.len() {
            let (layers, diff_ids) = (layers.len(), diff_ids.len());
            return Err(Error::refused(format!("{digest}: {layers} layers, but {diff_ids} diff_ids in its config")));
        }
        let layers =
            layers.iter().zip(&diff_ids).map(|(layer, diff_id)| layer_blob(layer, diff_id)).collect::<Result<_>>()?;
        self.keep(bytes)?;
        self.keep(config_bytes)?;
        let environment = parsed.config.unwrap_or_default().env.unwrap_or_default();
        self.images.push(Image { manifest: digest, config: config.digest()?, platform, environment, layers });
        Ok(())
    }
}

fn layer_blob(layer: &Descriptor, diff_id: &str) -> Result<LayerBlob> {
    let named = |e: Error| e.in_layer(&layer.digest);
    layer.check_layer().map_err(named)?;
    let diff_id = diff_id.parse().map_err(|e| Error::refused(format!("unsupported diff_id: {e}"))).map_err(named)?;
    Ok(LayerBlob { digest: layer.digest()?, size: layer.size, diff_id })
}
