//! `lamina cache stat` and `lamina cache ls`.

use crate::command::Context;
use crate::failure::Failure;
use crate::output;
use control::v1::{CacheStatReply, CacheStatRequest, CachedLayer};
use serde_json::{Value, json};

async fn ask(context: &Context) -> Result<CacheStatReply, Failure> {
    let reply = context.cache().stat(CacheStatRequest {}).await;
    context.answer(reply)
}

/// `lamina cache stat`
pub(super) async fn stat(context: &Context) -> Result<(), Failure> {
    let reply = ask(context).await?;
    if context.json {
        return output::json(&as_json(&reply));
    }
    print(&reply);
    Ok(())
}

/// `lamina cache ls`
pub(super) async fn list(context: &Context) -> Result<(), Failure> {
    let reply = ask(context).await?;
    if context.json {
        let layers: Vec<Value> = reply.layers.iter().map(layer_as_json).collect();
        return output::json(&json!({"layers": layers}));
    }
    reply.layers.iter().for_each(|layer| output::line(layer_line(layer)));
    Ok(())
}

fn as_json(s: &CacheStatReply) -> Value {
    let layers: Vec<Value> = s.layers.iter().map(layer_as_json).collect();
    json!({
        "dir": s.dir, "domain": s.domain, "bytes": s.bytes, "limit": s.limit, "reserve": s.reserve, "free": s.free,
        "chunks": s.chunks, "pinned_bytes": s.pinned_bytes, "pin_limit": s.pin_limit, "head_bytes": head_bytes(s),
        "evicted_bytes": s.evicted_bytes, "let_go_bytes": s.let_go_bytes, "fetched_bytes": s.fetched_bytes,
        "fetches": s.fetches, "carried_bytes": s.carried_bytes, "refused_chunks": s.refused_chunks,
        "failed_chunks": s.failed_chunks, "verify_failures": s.verify_failures,
        "read_bytes": {"memory": s.read_memory_bytes, "cache": s.read_cache_bytes, "store": s.read_store_bytes},
        "hit_ratio": hit_ratio(s), "loading": s.loading, "trouble": s.trouble, "layers": layers,
    })
}

fn layer_as_json(l: &CachedLayer) -> Value {
    json!({
        "layer": l.id, "head_bytes": l.head_bytes, "chunks": l.chunks, "bytes": l.bytes, "cached_chunks": l.cached_chunks,
        "cached_bytes": l.cached_bytes, "pinned": l.pinned, "pinned_as": l.pinned_as, "in_use": l.in_use,
    })
}

fn head_bytes(s: &CacheStatReply) -> u64 {
    s.layers.iter().map(|layer| layer.head_bytes).sum()
}

/// Which part of what readers got did not come from the store; none where nothing was read.
fn hit_ratio(s: &CacheStatReply) -> Option<f64> {
    let here = s.read_memory_bytes + s.read_cache_bytes;
    let all = here + s.read_store_bytes;
    (all != 0).then(|| here as f64 / all as f64)
}

fn print(s: &CacheStatReply) {
    let domain = if s.domain.is_empty() { String::new() } else { format!(", domain {}", s.domain) };
    output::line(format!("cache     {}{domain}", s.dir));
    let (bytes, limit) = (output::bytes(s.bytes), output::bytes(s.limit));
    let loading = if s.loading { " (still being read)" } else { "" };
    output::line(format!("chunks    {bytes} of {limit}, {}{loading}", output::count(s.chunks, "chunk")));
    output::line(format!("disk      {} free, {} reserved", output::bytes(s.free), output::bytes(s.reserve)));
    output::line(format!("pinned    {} of {}", output::bytes(s.pinned_bytes), output::bytes(s.pin_limit)));
    let [memory, cache, store] = [s.read_memory_bytes, s.read_cache_bytes, s.read_store_bytes].map(output::bytes);
    let hits = hit_ratio(s).map_or(String::new(), |ratio| format!("; {:.1} % without the store", 100.0 * ratio));
    output::line(format!("read      {memory} from memory, {cache} from the cache, {store} from the store{hits}"));
    let fetched = output::bytes(s.fetched_bytes);
    output::line(format!(
        "fetched   {fetched} in {}, compressed, with what came ahead of reads",
        output::count(s.fetches, "request")
    ));
    let [evicted, let_go, carried] = [s.evicted_bytes, s.let_go_bytes, s.carried_bytes].map(output::bytes);
    output::line(format!(
        "evicted   {evicted} to make room, {let_go} by lamina cache evict; {carried} written again to stay"
    ));
    output::line(format!(
        "failures  {} not cached for the disk's sake, {} for too many at once; {} with wrong bytes",
        output::count(s.failed_chunks, "chunk"),
        s.refused_chunks,
        s.verify_failures
    ));
    let trouble = if s.trouble.is_empty() { "none" } else { &s.trouble };
    output::line(format!("trouble   {trouble}"));
    let cached = s.layers.iter().map(|layer| layer.cached_bytes).sum();
    let all = s.layers.iter().map(|layer| layer.bytes).sum();
    output::line(format!(
        "layers    {}, heads {}; {} cached of {}",
        s.layers.len(),
        output::bytes(head_bytes(s)),
        output::bytes(cached),
        output::bytes(all)
    ));
    for layer in &s.layers {
        output::line(format!("          {}", layer_line(layer)));
    }
}

fn layer_line(l: &CachedLayer) -> String {
    let mut line = match l.head_bytes {
        0 => format!("{}  no head", l.id),
        _ => format!(
            "{}  {} of {} chunks, {} of {}",
            l.id,
            l.cached_chunks,
            l.chunks,
            output::bytes(l.cached_bytes),
            output::bytes(l.bytes)
        ),
    };
    if l.pinned {
        line += ", pinned";
    }
    if !l.pinned_as.is_empty() {
        line += &format!(" as {}", l.pinned_as.join(", "));
    }
    line + if l.in_use { ", in use" } else { "" }
}
