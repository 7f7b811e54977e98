//! What `docker save` and `podman save` write: `manifest.json`, which names a config and tar files.
//!
//! Docker since 25 puts an image layout beside it, which is then what is read. Without one, the image has no manifest:
//! one is made here from the config's digest and those of its layers, the same for the same image.

use super::blobs::Blobs;
use super::document::{Config, parse};
use super::image::Images;
use super::layout;
use super::platform::Platforms;
use crate::error::{Error, Result};
use crate::media_type;
use blobstore::refs::Digest;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The image that `reference` stands for in an archive; without one the archive must hold a single one.
pub fn open(mut blobs: Blobs, reference: Option<&str>, platforms: &Platforms) -> Result<Images> {
    if blobs.has("index.json") {
        return layout::open(blobs, reference, platforms);
    }
    let list: Vec<Saved> = parse("manifest.json", &blobs.named("manifest.json")?)?;
    let saved = choose(&list, reference)?;
    let config = blobs.named(&saved.config)?;
    let parsed: Config = parse(&saved.config, &config)?;
    let diff_ids = parsed.rootfs.diff_ids.unwrap_or_default();
    if diff_ids.len() != saved.layers.len() {
        let (layers, diff_ids) = (saved.layers.len(), diff_ids.len());
        return Err(Error::refused(format!("{}: {layers} layers, but {diff_ids} diff_ids", saved.config)));
    }
    let mut layers = Vec::new();
    for (name, diff_id) in saved.layers.iter().zip(&diff_ids) {
        let digest: Digest = diff_id.parse().map_err(|e| Error::refused(format!("unsupported diff_id: {e}")))?;
        // Docker stores layers as they are, ko, kaniko and crane compressed: then the blob is not what its diff id says.
        let (digest, kind) = match blobs.compression(name)? {
            Some("gzip") => (blobs.digest(name)?, media_type::LAYER_GZIP),
            Some("zstd") => (blobs.digest(name)?, media_type::LAYER_ZSTD),
            _ => (digest, media_type::LAYER),
        };
        let size = blobs.alias(name, &digest)?;
        layers.push(descriptor(kind, &digest, size));
    }
    let config_digest = Digest::of(&config);
    blobs.alias(&saved.config, &config_digest)?;
    let config = descriptor(media_type::CONFIG, &config_digest, config.len() as u64);
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type::MANIFEST, "config": config, "layers": layers,
    });
    let manifest = serde_json::to_vec(&manifest).map_err(|e| Error::failed("making a manifest", e))?;
    let name = saved.repo_tags.iter().flatten().next().cloned();
    Images::of_document(blobs, manifest, media_type::MANIFEST, name, platforms)
}

fn choose<'a>(list: &'a [Saved], reference: Option<&str>) -> Result<&'a Saved> {
    let called = |saved: &&Saved| match reference {
        None => true,
        Some(wanted) => saved.repo_tags.iter().flatten().any(|tag| tag == wanted),
    };
    let mut fitting = list.iter().filter(called);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        _ => {
            let names: Vec<&str> = list.iter().flat_map(|s| s.repo_tags.iter().flatten()).map(String::as_str).collect();
            Err(Error::refused(match reference {
                None => format!("the archive holds several images, name one of them: {}", names.join(", ")),
                Some(wanted) => format!("the archive has no image '{wanted}'; it has: {}", names.join(", ")),
            }))
        }
    }
}

fn descriptor(media_type: &str, digest: &Digest, size: u64) -> serde_json::Value {
    serde_json::json!({ "mediaType": media_type, "digest": digest, "size": size })
}
