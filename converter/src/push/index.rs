//! The index that is pushed: the source's own with an entry for each of our images, right behind its original.

use super::accelerated::{Accelerated, add_feature};
use super::document::Document;
use super::originals::{Entry, Originals};
use crate::error::Result;
use crate::media_type::{INDEX, MANIFEST};
use blobstore::refs::Digest;
use serde_json::{Value, json};

/// The index of the originals and `ours`, each with the manifest that it was made from.
pub(super) fn make(originals: &Originals, ours: &[(Digest, Accelerated)]) -> Result<Document> {
    let mut index = originals.index.clone();
    let mut open: Vec<_> = ours.iter().collect();
    let mut entries = Vec::new();
    for entry in &originals.entries {
        entries.push(entry.descriptor.clone());
        let (here, later) = open.into_iter().partition(|(original, _)| entry.manifests.contains(original));
        open = later;
        let here: Vec<&(Digest, Accelerated)> = here;
        entries.extend(here.iter().map(|(original, made)| descriptor(entry, original, made)));
    }
    index.insert("schemaVersion".to_owned(), 2.into());
    index.insert("mediaType".to_owned(), INDEX.into());
    index.insert("manifests".to_owned(), Value::Array(entries));
    Document::new(INDEX, &Value::Object(index))
}

/// The entry of an image made from `original`, which `entry` is or holds.
fn descriptor(entry: &Entry, original: &Digest, made: &Accelerated) -> Value {
    // What else the original's entry says of the platform counts for ours as well.
    let own = entry.descriptor["digest"] == original.to_string();
    let platform = entry.descriptor.get("platform").filter(|platform| own && platform.is_object());
    let mut platform = platform.cloned().unwrap_or_else(|| json!(made.platform));
    add_feature(&mut platform["os.features"]);
    json!({
        "mediaType": MANIFEST,
        "digest": made.manifest.digest,
        "size": made.manifest.bytes.len(),
        "platform": platform,
    })
}
