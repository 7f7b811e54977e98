//! `lamina cache`: what this node has cached, through laminad. Each says what was done.

mod stat;
mod work;

use super::{Context, answer_about};
use crate::args::CacheCommand;
use crate::failure::Failure;
use crate::output;
use control::v1;
use serde_json::json;

pub(super) async fn run(context: &Context, command: &CacheCommand) -> Result<(), Failure> {
    match command {
        CacheCommand::Stat => stat::stat(context).await,
        CacheCommand::Ls => stat::list(context).await,
        CacheCommand::Warm { reference, profile } => work::warm(context, reference, *profile).await,
        CacheCommand::Pin { reference } => work::pin(context, reference).await,
        CacheCommand::Unpin { reference } => unpin(context, reference).await,
        CacheCommand::Evict { reference } => evict(context, reference).await,
        CacheCommand::Verify => work::verify(context).await,
        CacheCommand::Gc => collect(context).await,
    }
}

async fn unpin(context: &Context, reference: &str) -> Result<(), Failure> {
    let reply = context.cache().unpin(v1::CacheUnpinRequest { reference: reference.to_owned() }).await;
    let reply = context.answer(reply)?;
    if context.json {
        return output::json(&json!({"layers": reply.layers, "kept": reply.kept}));
    }
    let kept = match reply.kept {
        0 => String::new(),
        n => format!("; {} pinned under other names", stay(n)),
    };
    output::done(format!("{} no longer pinned{kept}", output::count(reply.layers, "layer")));
    Ok(())
}

fn stay(layers: u64) -> String {
    format!("{} {}", output::count(layers, "layer"), if layers == 1 { "stays" } else { "stay" })
}

async fn evict(context: &Context, reference: &str) -> Result<(), Failure> {
    let reply = context.cache().evict(v1::CacheEvictRequest { reference: reference.to_owned() }).await;
    let reply = answer_about(context, &[reference.to_owned()], reply).await?;
    if context.json {
        return output::json(&json!({
            "layers": reply.layers, "chunks": reply.chunks, "bytes": reply.bytes, "heads": reply.heads,
            "pinned_chunks": reply.pinned_chunks,
        }));
    }
    let pinned = match reply.pinned_chunks {
        0 => String::new(),
        n => format!("; {} pinned and stay", output::count(n, "chunk")),
    };
    output::done(format!(
        "{} ({}) and {} of {} dropped{pinned}",
        output::count(reply.chunks, "chunk"),
        output::bytes(reply.bytes),
        output::count(reply.heads, "head"),
        output::count(reply.layers, "layer")
    ));
    Ok(())
}

async fn collect(context: &Context) -> Result<(), Failure> {
    let reply = context.cache().collect(v1::CacheCollectRequest {}).await;
    let reply = context.answer(reply)?;
    if context.json {
        return output::json(&json!({
            "chunk_bytes": reply.chunk_bytes, "heads": reply.heads, "head_bytes": reply.head_bytes, "files": reply.files,
            "file_bytes": reply.file_bytes, "bytes": reply.bytes, "limit": reply.limit, "trouble": reply.trouble,
        }));
    }
    output::done(format!(
        "freed {} of chunks, {} ({}), {} that belonged to nothing ({}); {} of {} used",
        output::bytes(reply.chunk_bytes),
        output::count(reply.heads, "head"),
        output::bytes(reply.head_bytes),
        output::count(reply.files, "file"),
        output::bytes(reply.file_bytes),
        output::bytes(reply.bytes),
        output::bytes(reply.limit)
    ));
    if !reply.trouble.is_empty() {
        output::line(format!("quota and reserve could not be reached: {}", reply.trouble));
    }
    Ok(())
}
