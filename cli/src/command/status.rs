//! `lamina status`.

use super::Context;
use crate::failure::Failure;
use crate::output;
use control::v1::StatusReply;
use serde_json::json;

pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    let reply = context.daemon().status(control::v1::StatusRequest {}).await;
    let status = context.answer(reply)?;
    if context.json {
        return output::json(&as_json(&status));
    }
    print(&status);
    Ok(())
}

fn as_json(s: &StatusReply) -> serde_json::Value {
    let features: Vec<_> =
        s.features.iter().map(|f| json!({"name": f.name, "present": f.present, "detail": f.detail})).collect();
    let mounts: Vec<_> =
        s.mounts.iter().map(|m| json!({"target": m.target, "layer": m.layer, "kind": m.kind})).collect();
    json!({
        "pid": s.pid, "holder_pid": s.holder_pid, "version": s.version, "face": s.face, "features": features,
        "mounts": mounts, "store": s.store, "store_error": s.store_error, "cache_bytes": s.cache_bytes,
        "cache_limit": s.cache_limit, "fetched_bytes": s.fetched_bytes, "fetches": s.fetches,
        "takeovers": s.takeovers, "device_read_bytes": s.device_read_bytes,
    })
}

fn print(s: &StatusReply) {
    output::line(format!("laminad {}, worker {}, holder {}", s.version, s.pid, s.holder_pid));
    output::line(format!("face      {}", s.face));
    for f in &s.features {
        output::line(format!("          {} {}: {}", if f.present { "+" } else { "-" }, f.name, f.detail));
    }
    let health = if s.store_error.is_empty() { "answers" } else { &s.store_error };
    output::line(format!("store     {}: {health}", s.store));
    let (used, limit) = (output::bytes(s.cache_bytes), output::bytes(s.cache_limit));
    output::line(format!("cache     {used} of {limit}"));
    let (fetched, served) = (output::bytes(s.fetched_bytes), output::bytes(s.device_read_bytes));
    output::line(format!("fetched   {fetched} in {} requests; served {served}", s.fetches));
    output::line(format!("takeovers {}", s.takeovers));
    output::line(format!("mounts    {}", s.mounts.len()));
    for m in &s.mounts {
        output::line(format!("          {} {} {}", m.kind, m.target, m.layer));
    }
}
