//! Choosing the images of an OCI image layout or a registry, and checking that their documents agree.

use super::blobs::Blobs;
use super::manifest::{Config, Descriptor, Document, WirePlatform, parse};
use crate::error::{Error, Result};
use blobstore::refs::{Digest, Platform};
use std::collections::HashSet;
use std::str::FromStr;

/// How deep indexes may nest.
const DEPTH_MAX: usize = 4;

/// More than any image has, and than overlayfs stacks.
const LAYERS_MAX: usize = 512;

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
        name,
        documents: Vec::new(),
        seen: HashSet::new(),
        images: Vec::new(),
        blobs,
    };
    images.document(root, media_type, manifest, platforms, 0)?;
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
    let mut fitting = chosen.iter().filter(|d| chosen.len() == 1 || wanted(d, platforms) == Some(true));
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some(one), Some(two)) if one.digest == two.digest => Ok(one.clone()),
        _ => {
            let names: Vec<&str> = chosen.iter().map(|d| d.annotation(REF_NAME).unwrap_or(d.digest.as_str())).collect();
            Err(Error::refused(format!("the layout holds several images, name one of them: {}", names.join(", "))))
        }
    }
}

/// Whether a descriptor's platform is wanted; `None` if it does not say.
fn wanted(descriptor: &Descriptor, platforms: &Platforms) -> Option<bool> {
    let platform = descriptor.platform.as_ref().map(WirePlatform::platform)?;
    if descriptor.platform.as_ref().is_some_and(WirePlatform::is_mountable) {
        return Some(false);
    }
    Some(match platforms {
        // Attestations and signatures travel under this platform.
        Platforms::All => platform.os != "unknown",
        Platforms::One(one) => platform.fits(one),
    })
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

    fn collect(&mut self, descriptor: &Descriptor, platforms: &Platforms, depth: usize) -> Result<()> {
        let digest = descriptor.digest()?;
        if !self.seen.insert(digest) {
            return Ok(());
        }
        let bytes = self.blobs.document(descriptor)?;
        self.document(digest, &descriptor.media_type, bytes, platforms, depth)
    }

    /// Takes an index or a manifest whose descriptor has this media type.
    fn document(
        &mut self,
        digest: Digest,
        described: &str,
        bytes: Vec<u8>,
        platforms: &Platforms,
        depth: usize,
    ) -> Result<()> {
        let document: Document = parse(&digest.to_string(), &bytes)?;
        self.documents.push(bytes);
        let media_type = document.media_type.as_deref().unwrap_or(described);
        if !described.is_empty() && media_type != described {
            let what = format!("{digest}: its media type is '{media_type}', its descriptor says '{described}'");
            return Err(Error::refused(what));
        }
        if depth == 0 {
            self.media_type = media_type.to_owned();
        }
        match (document.manifests, document.layers) {
            (Some(manifests), None) if depth < DEPTH_MAX => self.index(&manifests, platforms, depth),
            (Some(_), None) => Err(Error::refused(format!("{digest}: indexes nest too deep"))),
            (None, Some(layers)) => {
                let config = document.config.ok_or_else(|| Error::refused(format!("{digest}: no config")))?;
                self.manifest(digest, &config, &layers, platforms, depth)
            }
            _ => Err(Error::refused(format!("{digest}: neither an index nor a manifest ('{media_type}')"))),
        }
    }

    fn index(&mut self, manifests: &[Descriptor], platforms: &Platforms, depth: usize) -> Result<()> {
        for descriptor in manifests {
            if wanted(descriptor, platforms) == Some(false) {
                continue;
            }
            self.collect(descriptor, platforms, depth + 1)?;
            if matches!(platforms, Platforms::One(_)) && !self.images.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn manifest(
        &mut self,
        manifest: Digest,
        config: &Descriptor,
        layers: &[Descriptor],
        platforms: &Platforms,
        depth: usize,
    ) -> Result<()> {
        let bytes = self.blobs.document(config)?;
        let parsed: Config = parse(&config.digest, &bytes)?;
        let (os, architecture, variant) = (parsed.os, parsed.architecture, parsed.variant);
        let own = WirePlatform { os, architecture, variant, features: None };
        let platform = own.platform();
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
            return Err(Error::refused(format!("{manifest}: {layers} layers, {LAYERS_MAX} are possible")));
        }
        if diff_ids.len() != layers.len() {
            let (layers, diff_ids) = (layers.len(), diff_ids.len());
            return Err(Error::refused(format!("{manifest}: {layers} layers, but {diff_ids} diff_ids in its config")));
        }
        let layers =
            layers.iter().zip(&diff_ids).map(|(layer, diff_id)| layer_blob(layer, diff_id)).collect::<Result<_>>()?;
        self.documents.push(bytes);
        let environment = parsed.config.unwrap_or_default().env.unwrap_or_default();
        self.images.push(Image { manifest, config: config.digest()?, platform, environment, layers });
        Ok(())
    }
}

fn layer_blob(layer: &Descriptor, diff_id: &str) -> Result<LayerBlob> {
    let named = |e: Error| e.in_layer(&layer.digest);
    layer.check_layer().map_err(named)?;
    let diff_id = diff_id.parse().map_err(|e| Error::refused(format!("unsupported diff_id: {e}"))).map_err(named)?;
    Ok(LayerBlob { digest: layer.digest()?, size: layer.size, diff_id })
}
