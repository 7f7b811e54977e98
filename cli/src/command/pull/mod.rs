//! `lamina pull`: an image of the store becomes one of containerd's, its layers lazy. No registry is asked.
//!
//! What goes into containerd is the index, the manifest and the config, byte for byte, and a snapshot for each chain id;
//! no layer. Order: snapshots and blobs under a lease, the image's name last, so that a pull that was cut short leaves
//! nothing that looks whole.

mod containerd;

use self::containerd::Containerd;
use super::Context;
use super::interrupt::{Stop, interruptible};
use super::suggest;
use crate::args::Pull;
use crate::failure::Failure;
use crate::output;
use ::containerd::types::Descriptor;
use blobstore::refs::{Digest, ImageName, ManifestDoc, Name, Refs, TagKind, TagName};
use converter::media_type;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;

/// As much of an index or a manifest as is needed to point at it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MediaType {
    media_type: Option<String>,
    #[serde(default)]
    manifests: Vec<serde::de::IgnoredAny>,
}

/// What containerd is to be given.
struct Plan {
    name: String,
    /// Digest that the name stands for: the index's, or the manifest's.
    top: Digest,
    manifest: ManifestDoc,
    /// Digest, bytes and labels, referred-to ones first.
    blobs: Vec<(Digest, Vec<u8>, HashMap<String, String>)>,
}

pub(super) async fn run(context: &Context, arguments: &Pull) -> Result<(), Failure> {
    let name = image_name(&arguments.image)?;
    let refs = context.refs()?;
    let pulled = interruptible(async |mut stop: Stop| {
        let Some(plan) = stop.or(plan(&refs, &name, &arguments.snapshotter)).await? else { return Ok(None) };
        let containerd = Containerd::open(&arguments.address, &arguments.namespace).await?;
        let done = stop.or(write(&containerd, &plan, arguments)).await;
        // The lease goes in any case: what a pull made that came to no end is the garbage collector's.
        let closed = containerd.close().await;
        done.and_then(|done| closed.map(|()| done.map(|()| plan)))
    });
    report(context, &pulled.await?)
}

/// Names of images, whose short forms may look like a tag's: those are the store's, and containerd knows none of them.
fn image_name(text: &str) -> Result<ImageName, Failure> {
    match text.parse::<Name>() {
        Ok(Name::Image(name)) => Ok(name),
        Ok(Name::Tag(tag)) => Err(Failure::usage(format!(
            "{tag} is a tag, and lamina pull takes images (for an image of that name: image:{tag}). lamina mount {tag} DIR mounts \
             it{}",
            label_of(&tag)
        ))),
        Ok(_) => Err(Failure::usage(format!(
            "{text} is no image's name, and lamina pull takes images: lamina store ls lists them; lamina mount mounts anything else"
        ))),
        Err(error) => Err(Failure::usage(error.to_string())),
    }
}

/// How a tag comes above a container's image, where its kind does.
fn label_of(tag: &TagName) -> String {
    let label = match tag.kind {
        TagKind::Base => return String::new(),
        TagKind::Workspace => "workspace",
        TagKind::Toolkit => "toolkits",
    };
    format!(
        "; above a container's image it comes by a label on the container's snapshot, \
         containerd.io/snapshot/lamina.{label}={tag} (see the README)"
    )
}

async fn plan(refs: &Refs, name: &ImageName, snapshotter: &str) -> Result<Plan, Failure> {
    let missing =
        |what: &str| Failure::failed(format!("{name}: {what}; convert it first: lamina convert SOURCE --name {name}"));
    let because = |e: blobstore::refs::Error| Failure::because(name, &e);
    let top = match name.digest() {
        Some(digest) => *digest,
        None => match refs.image(name).await.map_err(because)? {
            Some(digest) => digest,
            None => {
                let meant = suggest::or_else(refs, &Name::Image(name.clone())).await;
                return Err(missing("the store has no image of this name").with(&meant));
            }
        },
    };
    let found = refs.way_to_manifest(&top).await.map_err(because)?;
    let (manifest, indexes) = found.ok_or_else(|| missing("the store has no manifest of it"))?;
    let mut blobs = Vec::new();
    let mut add = async |digest: Digest, labels: Vec<(&str, String)>| {
        let blob = refs.blob(&digest).await.map_err(because)?;
        let blob = blob.ok_or_else(|| missing(&format!("blob {digest} is not in the store")))?;
        let labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        blobs.push((digest, blob.to_vec(), labels));
        Ok::<(), Failure>(())
    };
    let chain = manifest.chains.last().map(|c| c.chain_id.to_string());
    let snapshot_label = format!("containerd.io/gc.ref.snapshot.{snapshotter}");
    add(manifest.config, chain.into_iter().map(|c| (snapshot_label.as_str(), c)).collect()).await?;
    add(manifest.digest, vec![("containerd.io/gc.ref.content.config", manifest.config.to_string())]).await?;
    let mut below = manifest.digest;
    for index in indexes.into_iter().rev() {
        add(index, vec![("containerd.io/gc.ref.content.m.0", below.to_string())]).await?;
        below = index;
    }
    Ok(Plan { name: name.to_string(), top, manifest, blobs })
}

async fn write(containerd: &Containerd, plan: &Plan, arguments: &Pull) -> Result<(), Failure> {
    let mut parent = String::new();
    for chain in &plan.manifest.chains {
        let id = chain.chain_id.to_string();
        if !containerd.commit_remote(&arguments.snapshotter, &id, &parent).await? {
            return Err(Failure::failed(format!(
                "{}: the snapshotter {} cannot serve {id} lazily: is laminad running, and does it use the same store? \
                 (lamina status; the snapshotter's log says why)",
                plan.name, arguments.snapshotter
            )));
        }
        parent = id;
    }
    for (digest, blob, labels) in &plan.blobs {
        containerd.put_blob(&digest.to_string(), blob.clone(), labels.clone()).await?;
    }
    containerd.put_image(&plan.name, descriptor(plan)?).await
}

fn descriptor(plan: &Plan) -> Result<Descriptor, Failure> {
    let found = plan.blobs.iter().find(|(digest, ..)| *digest == plan.top);
    let (digest, blob, _) = found.ok_or_else(|| Failure::failed(format!("{}: no blob {}", plan.name, plan.top)))?;
    let parsed: MediaType =
        serde_json::from_slice(blob).map_err(|e| Failure::because(format!("{}: blob {digest}", plan.name), &e))?;
    let kind = if parsed.manifests.is_empty() { media_type::MANIFEST } else { media_type::INDEX };
    Ok(Descriptor {
        media_type: parsed.media_type.unwrap_or_else(|| kind.to_owned()),
        digest: digest.to_string(),
        size: i64::try_from(blob.len()).unwrap_or(i64::MAX),
        annotations: HashMap::new(),
    })
}

fn report(context: &Context, plan: &Plan) -> Result<(), Failure> {
    let layers = plan.manifest.stack().map_or(0, |s| s.len());
    let bytes: u64 = plan.manifest.stack().into_iter().flatten().map(|l| l.size).sum();
    if context.json {
        return output::json(&json!({
            "image": plan.name, "digest": plan.top.to_string(), "manifest": plan.manifest.digest.to_string(),
            "chains": plan.manifest.chains.len(), "layers": layers, "layer_bytes": bytes,
        }));
    }
    output::done(format!(
        "{}: {} of {}, only their metadata fetched yet",
        plan.name,
        output::count(layers as u64, "lazy layer"),
        output::bytes(bytes)
    ));
    Ok(())
}
