//! An OCI image layout: which descriptor of its `index.json` is meant.

use super::blobs::Blobs;
use super::document::{Descriptor, IndexOrManifest, parse};
use super::image::Images;
use super::platform::{Fit, Platforms, fit};
use crate::error::{Error, Result};

const REF_NAME: &str = "org.opencontainers.image.ref.name";
const IMAGE_NAME: &str = "io.containerd.image.name";

/// The images that `reference` stands for in a layout; without one the layout must hold a single one.
pub fn open(blobs: Blobs, reference: Option<&str>, platforms: &Platforms) -> Result<Images> {
    let index: IndexOrManifest = parse("index.json", &blobs.named("index.json")?)?;
    let all = index.manifests.unwrap_or_default();
    let chosen: Vec<Descriptor> = match reference {
        None => all.clone(),
        Some(wanted) => all.iter().filter(|descriptor| is_called(descriptor, wanted)).cloned().collect(),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().filter_map(|descriptor| descriptor.annotation(REF_NAME)).collect();
        return Err(Error::refused(match reference {
            None => "the layout's index.json names no image".to_owned(),
            Some(wanted) => format!("the layout has no image '{wanted}'; it has: {}", names.join(", ")),
        }));
    }
    let root = choose_root(&chosen, platforms)?;
    let name = full_name(&root);
    Images::of_descriptor(blobs, &root, name, platforms)
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
            Err(Error::refused(format!(
                "the layout holds several images, name one of them as in oci:DIR:REF: {}",
                names.join(", ")
            )))
        }
    }
}
