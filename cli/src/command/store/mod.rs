//! `lamina store`: what the store holds, and what is to go.

use super::Context;
use crate::args::StoreCommand;
use crate::failure::Failure;
use crate::output;
use blobstore::layer::read_index;
use blobstore::refs::{Refs, layer_of};
use serde_json::json;
use std::collections::HashSet;

mod fsck;
mod gc;
mod ls;
mod revoke;
mod rm;

pub(super) async fn run(context: &Context, command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Ls(arguments) => ls::run(context, arguments).await,
        StoreCommand::Du => du(context).await,
        StoreCommand::Rm(arguments) => rm::rm(context, arguments).await,
        StoreCommand::Revoke(arguments) => revoke::revoke(context, arguments).await,
        StoreCommand::Unrevoke(arguments) => revoke::unrevoke(context, arguments).await,
        StoreCommand::Gc(arguments) => gc::run(context, arguments).await,
        StoreCommand::Fsck(arguments) => fsck::run(context, arguments).await,
        StoreCommand::Other(words) => match words.first().map_or("", String::as_str) {
            "sign" => Err(Failure::failed("'lamina store sign' is not built yet (the README lists what is not)")),
            name => Err(Failure::usage(format!(
                "there is no 'lamina store {name}'; there are: lamina store ls, du, rm, revoke, unrevoke, gc, fsck"
            ))),
        },
    }
}

/// That there is a store, for lists of what is in it: one that was mistyped, or is not mounted, looks like an empty one. Where
/// there could be one, and nothing was written yet, the list is empty, and a word is said.
async fn there(refs: &Refs) -> Result<(), Failure> {
    let said = "it is no store yet, or not the one that was meant: nothing was ever written there by lamina";
    match refs.check_there().await {
        Ok(true) => {}
        Ok(false) => tracing::warn!("{}: {said}", refs.store().url()),
        Err(error) => return Err(Failure::failed(blobstore::causes(&error))),
    }
    Ok(())
}

/// From the layers' indexes alone. Chunks of one hash are the same stored bytes: what is not distinct could be stored once,
/// and is fetched and cached once by a node.
async fn du(context: &Context) -> Result<(), Failure> {
    let refs = context.refs()?;
    there(&refs).await?;
    let store = refs.store();
    let keys = store.list("layers/").await.map_err(|e| Failure::because("cannot list", &e))?;
    let (mut layers, mut bytes, mut chunk_bytes, mut distinct_bytes) = (0u64, 0u64, 0u64, 0u64);
    let mut seen: HashSet<[u8; 32]> = HashSet::new();
    for key in &keys {
        let Some(id) = layer_of(key) else { continue };
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
