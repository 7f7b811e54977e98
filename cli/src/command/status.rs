//! `lamina status`.

use super::Context;
use crate::failure::Failure;
use crate::output;
use control::v1::{Mounted, StatusReply};
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
    let mounts: Vec<_> = s.mounts.iter().map(mount_as_json).collect();
    json!({
        "pid": s.pid, "holder_pid": s.holder_pid, "version": s.version, "face": s.face, "features": features,
        "mounts": mounts, "store": s.store, "store_error": s.store_error, "cache_bytes": s.cache_bytes,
        "cache_limit": s.cache_limit, "fetched_bytes": s.fetched_bytes, "fetches": s.fetches,
        "takeovers": s.takeovers, "device_read_bytes": s.device_read_bytes,
    })
}

fn mount_as_json(m: &Mounted) -> serde_json::Value {
    let mut value = json!({"target": m.target, "layer": m.layer, "kind": m.kind});
    if m.kind == "stack" {
        value["layers"] = json!(m.layers);
        value["upper"] = json!(Some(&m.upper).filter(|upper| !upper.is_empty()));
    }
    value
}

/// A line of a mount: a stack's with its layers, the lowest first.
fn mount_line(m: &Mounted) -> String {
    let writable = if m.upper.is_empty() { String::new() } else { format!(", writes in {}", m.upper) };
    let what = match m.layers.as_slice() {
        // Of a laminad that does not say which.
        [] => m.layer.clone(),
        layers => {
            let short: Vec<&str> = layers.iter().map(|layer| layer.get(..12).unwrap_or(layer)).collect();
            format!("{} ({}){writable}", output::count(layers.len() as u64, "layer"), short.join(" "))
        }
    };
    format!("{} {} {what}", m.kind, m.target).trim_end().to_owned()
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
    let requests = output::count(s.fetches, "request");
    output::line(format!("fetched   {fetched} in {requests}, served {served}, since the worker started"));
    output::line(format!("takeovers {}", s.takeovers));
    output::line(format!("mounts    {}", s.mounts.len()));
    for m in &s.mounts {
        output::line(format!("          {}", mount_line(m)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_told_with_its_layers_and_nothing_ends_in_a_blank() {
        let stack = Mounted { target: "/mnt".into(), kind: "stack".into(), ..Mounted::default() };
        assert_eq!(mount_line(&stack), "stack /mnt");
        let layers = vec!["0123456789abcdef".to_owned(), "fedcba9876543210".to_owned()];
        let stack = Mounted { layers, upper: "/up".into(), ..stack };
        assert_eq!(mount_line(&stack), "stack /mnt 2 layers (0123456789ab fedcba987654), writes in /up");
        let layer = Mounted { target: "/run/l".into(), layer: "01".into(), kind: "layer".into(), ..Mounted::default() };
        assert_eq!(mount_line(&layer), "layer /run/l 01");
    }
}
