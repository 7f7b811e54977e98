//! `lamina cache warm`, `pin` and `verify`: long work of the daemon's, whose progress is shown. It ends with this process.

use crate::command::{Context, answer_about};
use crate::failure::Failure;
use crate::output;
use crate::progress;
use control::v1::{CachePinRequest, CacheProgress, CacheVerified, CacheVerifyRequest, CacheWarmRequest, CacheWarmed};
use serde_json::json;
use tonic::{Response, Status, Streaming};

pub(super) async fn warm(context: &Context, reference: &str, profile: bool) -> Result<(), Failure> {
    let stream = context.cache().warm(CacheWarmRequest { reference: reference.to_owned(), profile }).await;
    let done = follow(context, "warming", &[reference.to_owned()], stream).await?;
    say_warmed(context, "cached", &done.warmed.ok_or_else(no_result)?, profile)
}

pub(super) async fn pin(context: &Context, reference: &str) -> Result<(), Failure> {
    let stream = context.cache().pin(CachePinRequest { reference: reference.to_owned() }).await;
    let done = follow(context, "pinning", &[reference.to_owned()], stream).await?;
    say_warmed(context, "pinned", &done.warmed.ok_or_else(no_result)?, false)
}

pub(super) async fn verify(context: &Context) -> Result<(), Failure> {
    let stream = context.cache().verify(CacheVerifyRequest {}).await;
    let verified = follow(context, "verifying", &[], stream).await?.verified.ok_or_else(no_result)?;
    say_verified(context, &verified)?;
    match verified.unmended.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!("not mended: {}", verified.unmended.join("; ")))),
    }
}

fn no_result() -> Failure {
    Failure::failed("laminad ended before it was done; begun again, it goes on where it was")
}

/// Shows how far the work is; gives its last message.
async fn follow(
    context: &Context,
    what: &str,
    references: &[String],
    stream: Result<Response<Streaming<CacheProgress>>, Status>,
) -> Result<CacheProgress, Failure> {
    let mut stream = answer_about(context, references, stream).await?;
    let bar = progress::bar(what);
    let mut last = CacheProgress::default();
    let end = loop {
        match stream.message().await {
            Ok(Some(message)) => last = message,
            Ok(None) => break Ok(last),
            Err(status) if control::unreachable(&status).is_some() => break Err(no_result()),
            Err(status) => break answer_about(context, references, Err(status)).await,
        }
        progress::set_length(&bar, last.total.max(last.done));
        bar.set_position(last.done);
    };
    bar.finish_and_clear();
    end
}

fn say_warmed(context: &Context, what: &str, w: &CacheWarmed, profile: bool) -> Result<(), Failure> {
    if context.json {
        let mut report = json!({
            "reference": w.reference, "layers": w.layers, "chunks": w.chunks, "bytes": w.bytes,
            "fetched_chunks": w.fetched_chunks, "fetched_bytes": w.fetched_bytes,
        });
        if profile {
            report["profiled_layers"] = w.profiled.into();
        }
        return output::json(&report);
    }
    let profiled = if profile { format!(", {} of them with a profile", w.profiled) } else { String::new() };
    output::done(format!(
        "{}: {}{profiled}, {} ({}) {what}, {} fetched for it",
        w.reference,
        output::count(w.layers, "layer"),
        output::count(w.chunks, "chunk"),
        output::bytes(w.bytes),
        output::bytes(w.fetched_bytes)
    ));
    Ok(())
}

fn say_verified(context: &Context, v: &CacheVerified) -> Result<(), Failure> {
    if context.json {
        return output::json(&json!({
            "chunks": v.chunks, "bytes": v.bytes, "heads": v.heads, "wrong_chunks": v.wrong_chunks,
            "wrong_heads": v.wrong_heads, "mended_chunks": v.mended_chunks, "mended_heads": v.mended_heads,
            "unmended": v.unmended,
        }));
    }
    output::done(format!(
        "{} ({}) and {} right",
        output::count(v.chunks, "chunk"),
        output::bytes(v.bytes),
        output::count(v.heads, "head")
    ));
    if v.wrong_chunks + v.wrong_heads + v.mended_chunks + v.mended_heads != 0 {
        output::line(format!(
            "{} and {} wrong and dropped; {} and {} fetched again",
            output::count(v.wrong_chunks, "chunk"),
            output::count(v.wrong_heads, "head"),
            output::count(v.mended_chunks, "chunk"),
            output::count(v.mended_heads, "head")
        ));
    }
    Ok(())
}
