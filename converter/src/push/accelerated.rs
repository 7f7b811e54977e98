//! The image whose layers are ours: the original's config with other layers, and a manifest.

use super::digests::{self, Digests};
use super::document::Document;
use crate::error::{Error, Result, store};
use crate::media_type::{CONFIG, LAYER_EROFS, MANIFEST};
use crate::registry::{BlobToPush, Content};
use crate::source::{Image, MOUNTABLE, parse};
use blobstore::layer::LayerId;
use blobstore::refs::{Digest, ManifestDoc, Platform, Refs, Stack, StackEntry, layer_key};
use blobstore::store::Store;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::Arc;
use tokio::runtime::Handle;

/// A hint for whoever looks at the manifest; it decides nothing.
const LAYER_ID: &str = "containerd.io/snapshot/lamina.layer";

/// The most bytes of a layer read from the store at once.
const STEP: u64 = 1 << 20;

/// An image of our layers.
#[derive(Debug)]
pub(super) struct Accelerated {
    pub(super) platform: Platform,
    /// The stack of the original's top, bottom first.
    pub(super) layers: Vec<Layer>,
    /// The stack with fewer layers that stands beside it, if one does.
    pub(super) collapsed: Option<Stack>,
    pub(super) config: Document,
    pub(super) manifest: Document,
}

/// A layer of it.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) entry: StackEntry,
    pub(super) digests: Digests,
}

/// Makes the image from what the store has of the original; `None` if that has no layers. `known` are layers that were read
/// before.
pub(super) async fn make(
    refs: &Refs,
    image: &Image,
    known: &mut HashMap<LayerId, Digests>,
) -> Result<Option<Accelerated>> {
    let missing = || Error::failed(image.manifest.to_string(), "the store does not have what was just converted");
    let converted = refs.manifest(&image.manifest).await.map_err(store)?.ok_or_else(missing)?;
    let Some(stack) = converted.stack() else { return Ok(None) };
    let mut layers = Vec::new();
    for entry in stack {
        let digests = match known.get(&entry.layer) {
            Some(digests) => *digests,
            None => digests::of(&**refs.store(), entry).await?,
        };
        known.insert(entry.layer, digests);
        layers.push(Layer { entry: entry.clone(), digests });
    }
    let original = |digest: Digest| async move {
        let bytes = refs.blob(&digest).await.map_err(store)?.ok_or_else(missing)?;
        parse::<Map<String, Value>>(&digest.to_string(), &bytes)
    };
    let config = config(original(image.config).await?, &kept(&converted, stack), &layers);
    let config = Document::new(CONFIG, &Value::Object(config))?;
    let manifest = manifest(&original(image.manifest).await?, &config, &layers);
    let manifest = Document::new(MANIFEST, &manifest)?;
    let collapsed = converted.stacks().and_then(|stacks| stacks.collapsed);
    Ok(Some(Accelerated { platform: image.platform.clone(), layers, collapsed, config, manifest }))
}

/// Of each layer of the original, whether it is in the stack: one that occurs twice is at its highest place only, and what
/// lies below an opaque root is not.
fn kept(converted: &ManifestDoc, stack: &Stack) -> Vec<bool> {
    let tops: Vec<_> = converted.chains.iter().map(|chain| chain.stack.layers().last().map(|e| e.layer)).collect();
    let occurs = |number: usize| {
        let again = tops[number + 1..].contains(&tops[number]);
        !again && stack.layers().iter().any(|entry| Some(entry.layer) == tops[number])
    };
    (0..tops.len()).map(occurs).collect()
}

fn config(mut config: Map<String, Value>, kept: &[bool], layers: &[Layer]) -> Map<String, Value> {
    let features = config.entry("os.features").or_insert_with(|| json!([]));
    add_feature(features);
    let diff_ids: Vec<_> = layers.iter().map(|layer| layer.digests.image).collect();
    config.insert("rootfs".to_owned(), json!({ "type": "layers", "diff_ids": diff_ids }));
    if let Some(history) = config.get("history").and_then(Value::as_array) {
        match consistent(history, kept, layers.len()) {
            Some(history) => config.insert("history".to_owned(), Value::Array(history)),
            None => config.remove("history"),
        };
    }
    config
}

/// Adds the feature by which those who mount layers as they are choose.
pub(super) fn add_feature(features: &mut Value) {
    match features {
        Value::Array(list) if list.iter().any(|feature| feature == MOUNTABLE) => {}
        Value::Array(list) => list.push(MOUNTABLE.into()),
        other => *other = json!([MOUNTABLE]),
    }
}

/// The history with as many steps that made a layer as there are layers; `None` if it was not right before.
fn consistent(history: &[Value], kept: &[bool], layers: usize) -> Option<Vec<Value>> {
    let is_empty = |step: &Value| step.get("empty_layer").and_then(Value::as_bool).unwrap_or(false);
    let mut kept = kept.iter();
    let mut changed = history.to_vec();
    for step in &mut changed {
        if !is_empty(step) && !*kept.next()? {
            step.as_object_mut()?.insert("empty_layer".to_owned(), true.into());
        }
    }
    let right = kept.next().is_none() && changed.iter().filter(|step| !is_empty(step)).count() == layers;
    right.then_some(changed)
}

fn manifest(original: &Map<String, Value>, config: &Document, layers: &[Layer]) -> Value {
    let layer = |layer: &Layer| {
        json!({
            "mediaType": LAYER_EROFS,
            "digest": layer.digests.file,
            "size": layer.digests.size,
            "annotations": { LAYER_ID: layer.entry.layer.to_string() },
        })
    };
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": { "mediaType": CONFIG, "digest": config.digest, "size": config.bytes.len() },
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    });
    if let Some(annotations) = original.get("annotations") {
        manifest["annotations"] = annotations.clone();
    }
    manifest
}

impl Layer {
    /// What is pushed of it.
    pub(super) fn blob(&self, refs: &Refs) -> BlobToPush {
        let content = FromStore {
            store: refs.store().clone(),
            key: layer_key(&self.entry.layer),
            size: self.digests.size,
            runtime: Handle::current(),
        };
        BlobToPush { digest: self.digests.file, size: self.digests.size, content: Arc::new(content) }
    }
}

/// An object of the store.
#[derive(Clone)]
struct FromStore {
    store: Arc<dyn Store>,
    key: String,
    size: u64,
    runtime: Handle,
}

/// The same, from some byte on.
struct Reader {
    object: FromStore,
    at: u64,
    rest: Bytes,
}

impl Content for FromStore {
    fn open(&self, at: u64) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(Reader { object: self.clone(), at, rest: Bytes::new() }))
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let object = &self.object;
        if self.rest.is_empty() && self.at < object.size {
            let range = self.at..object.size.min(self.at + STEP);
            self.rest = object
                .runtime
                .block_on(object.store.get_range(&object.key, range))
                .map_err(|e| io::Error::other(Error::failed(object.key.clone(), e)))?;
            self.at += self.rest.len() as u64;
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_keeps_as_many_layers_as_there_are() {
        let history = [json!({"created_by": "a"}), json!({"empty_layer": true}), json!({"created_by": "b"})];
        let same = consistent(&history, &[true, true], 2).unwrap();
        assert_eq!(same, history);
        let one = consistent(&history, &[false, true], 1).unwrap();
        assert_eq!(one[0], json!({"created_by": "a", "empty_layer": true}));
        assert_eq!(one[1..], history[1..]);
        assert!(consistent(&history, &[true], 1).is_none(), "more steps than layers");
        assert!(consistent(&history, &[true, true, true], 3).is_none(), "fewer steps than layers");
    }

    #[test]
    fn a_config_keeps_what_it_says_beside_its_layers() {
        let Value::Object(original) = json!({
            "architecture": "amd64", "os": "linux", "config": {"Cmd": ["x"], "Odd": 1.5},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:x"]}, "os.features": ["win32k"],
        }) else {
            panic!()
        };
        let made = config(original.clone(), &[true], &[]);
        assert_eq!(made["os.features"], json!(["win32k", "erofs"]));
        assert_eq!(made["rootfs"]["diff_ids"], json!([]));
        assert_eq!((&made["config"], &made["os"]), (&original["config"], &original["os"]));
    }
}
