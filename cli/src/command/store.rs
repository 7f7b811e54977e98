//! `lamina store`: what the store holds.

use super::Context;
use crate::args::StoreCommand;
use crate::failure::Failure;
use crate::output;
use blobstore::layer::{LayerId, read_index};
use serde_json::json;
use std::collections::HashSet;

pub(super) async fn run(context: &Context, command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Ls => list(context).await,
        StoreCommand::Du => du(context).await,
        StoreCommand::Other(words) => {
            let name = words.first().map_or("", String::as_str);
            match ["rm", "revoke", "sign", "gc", "fsck"].contains(&name) {
                true => {
                    Err(Failure::failed(format!("'lamina store {name}' is not built yet; the README says what is")))
                }
                false => {
                    Err(Failure::usage(format!("there is no 'lamina store {name}'; there are: lamina store ls, du")))
                }
            }
        }
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let refs = context.refs()?;
    let failed = |e| Failure::because("cannot list", &e);
    let images: Vec<String> = refs.images().await.map_err(failed)?.iter().map(ToString::to_string).collect();
    let tags: Vec<String> = refs.tags().await.map_err(failed)?.iter().map(ToString::to_string).collect();
    if context.json {
        return output::json(&json!({"images": images, "tags": tags}));
    }
    images.iter().for_each(|name| output::line(format!("image:{name}")));
    tags.iter().for_each(|name| output::line(format!("tag:{name}")));
    Ok(())
}

/// From the layers' indexes alone. Chunks of one hash are the same stored bytes: what is not distinct could be stored once,
/// and is fetched and cached once by a node.
async fn du(context: &Context) -> Result<(), Failure> {
    let store = context.store()?;
    let keys = store.list("layers/").await.map_err(|e| Failure::because("cannot list", &e))?;
    let (mut layers, mut bytes, mut chunk_bytes, mut distinct_bytes) = (0u64, 0u64, 0u64, 0u64);
    let mut seen: HashSet<[u8; 32]> = HashSet::new();
    for key in &keys {
        let Some(id) = key.rsplit('/').next().and_then(|id| id.parse::<LayerId>().ok()) else { continue };
        let index = read_index(store.as_ref(), key, Some(&id)).await.map_err(|e| Failure::layer(key, &e))?;
        layers += 1;
        bytes += index.file_len();
        for chunk in index.chunks() {
            let stored = u64::from(chunk.entry.stored_len);
            chunk_bytes += stored;
            distinct_bytes += if seen.insert(chunk.entry.hash) { stored } else { 0 };
        }
    }
    if context.json {
        return output::json(&json!({
            "layers": layers, "bytes": bytes, "chunk_bytes": chunk_bytes, "distinct_chunk_bytes": distinct_bytes,
            "repeated_chunk_bytes": chunk_bytes - distinct_bytes,
        }));
    }
    let share = 100.0 * (chunk_bytes - distinct_bytes) as f64 / bytes.max(1) as f64;
    output::line(format!(
        "{}, {}: {} in chunks, {} of these distinct; {share:.1} % of all is chunks that occur more than once",
        output::count(layers, "layer"),
        output::bytes(bytes),
        output::bytes(chunk_bytes),
        output::bytes(distinct_bytes)
    ));
    Ok(())
}
