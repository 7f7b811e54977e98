//! What is needed: everything that a name or a lease reaches.
//!
//! An image name reaches a digest; a digest reaches the manifest and the blob under it; a manifest reaches its documents and
//! every layer of every chain in it, plain and collapsed; an index reaches what it lists. A tag reaches its layers, the
//! collapsed ones, and those it was made over. Chain, diff and digest references reach nothing: they are weak.
//!
//! What cannot be read stops the collector: nobody can tell what it reaches.

use super::error::Result;
use crate::refs::{Digest, Image, ManifestDoc, Refs, Stack, Tag, blob_key, layer_key};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::Value;
use std::collections::BTreeSet;

/// Keys that are needed.
#[derive(Debug, Default)]
pub(super) struct Reach {
    pub(super) keys: BTreeSet<String>,
    pub(super) images: usize,
    pub(super) tags: usize,
}

/// What one digest adds.
#[derive(Default)]
struct Found {
    keys: Vec<String>,
    digests: Vec<Digest>,
}

/// What leases that hold `held`, and all names, reach. `at_once` requests are made at a time.
pub(super) async fn reach(refs: &Refs, held: &BTreeSet<String>, at_once: usize) -> Result<Reach> {
    let mut reach = Reach { keys: held.clone(), ..Reach::default() };
    let mut open: Vec<Digest> = held.iter().filter_map(|key| digest_of(key)).collect();
    let images = refs.newest_below::<Image>("images/", at_once).await?;
    reach.images = images.len();
    open.extend(images.into_iter().map(|(_, image)| image.digest));
    let tags = refs.newest_below::<Tag>("tags/", at_once).await?;
    reach.tags = tags.len();
    for (_, tag) in tags {
        let made_over = tag.made_over.map(|made_over| made_over.stack);
        reach.keys.extend(layer_keys([Some(&tag.stack), tag.collapsed.as_ref(), made_over.as_ref()]));
    }
    reach.close(refs, open, at_once).await?;
    Ok(reach)
}

/// What leases alone reach.
pub(super) async fn held_reach(refs: &Refs, held: &BTreeSet<String>, at_once: usize) -> Result<BTreeSet<String>> {
    let mut reach = Reach { keys: held.clone(), ..Reach::default() };
    reach.close(refs, held.iter().filter_map(|key| digest_of(key)).collect(), at_once).await?;
    Ok(reach.keys)
}

impl Reach {
    /// Adds what digests reach, level by level.
    async fn close(&mut self, refs: &Refs, mut open: Vec<Digest>, at_once: usize) -> Result<()> {
        let mut seen: BTreeSet<Digest> = BTreeSet::new();
        loop {
            open.retain(|digest| seen.insert(*digest));
            if open.is_empty() {
                return Ok(());
            }
            let level = stream::iter(std::mem::take(&mut open)).map(|digest| visit(refs, digest));
            for found in level.buffer_unordered(at_once).try_collect::<Vec<_>>().await? {
                self.keys.extend(found.keys);
                open.extend(found.digests);
            }
        }
    }
}

async fn visit(refs: &Refs, digest: Digest) -> Result<Found> {
    let mut found = Found { keys: vec![ManifestDoc::key(&digest), blob_key(&digest)], digests: Vec::new() };
    if let Some(manifest) = refs.manifest(&digest).await? {
        found.keys.push(blob_key(&manifest.config));
        let stacks = manifest.chains.iter().flat_map(|chain| [Some(&chain.stack), chain.collapsed.as_ref()]);
        found.keys.extend(layer_keys(stacks));
    }
    if let Some(blob) = refs.blob(&digest).await?
        && let Ok(Value::Object(document)) = serde_json::from_slice(&blob)
    {
        found.digests = document.get("manifests").map(digests_in).unwrap_or_default();
        // A config, and whatever else is named: it is kept if it lies here, and reaches nothing.
        let others = document.iter().filter(|(name, _)| *name != "manifests").flat_map(|(_, value)| digests_in(value));
        found.keys.extend(others.map(|digest| blob_key(&digest)));
    }
    Ok(found)
}

/// Every `digest` in a document.
fn digests_in(value: &Value) -> Vec<Digest> {
    match value {
        Value::Array(list) => list.iter().flat_map(digests_in).collect(),
        Value::Object(fields) => {
            let own = fields.get("digest").and_then(Value::as_str).and_then(|text| text.parse().ok());
            own.into_iter().chain(fields.values().flat_map(digests_in)).collect()
        }
        _ => Vec::new(),
    }
}

fn layer_keys<'a>(stacks: impl IntoIterator<Item = Option<&'a Stack>>) -> Vec<String> {
    stacks.into_iter().flatten().flatten().map(|entry| layer_key(&entry.layer)).collect()
}

/// The digest that a manifest or blob is kept under.
fn digest_of(key: &str) -> Option<Digest> {
    let kept = ["manifests/", "blobs/"].iter().any(|prefix| key.starts_with(prefix));
    kept.then(|| Digest::of_key(key)).flatten()
}
