//! `lamina verify`: every byte of a reference's layers, read again and checked; of a source's, also compared with it.

use super::Context;
use super::suggest::unresolved;
use crate::args::Verify;
use crate::failure::Failure;
use crate::output;
use crate::progress;
use crate::registries;
use blobstore::layer::{LayerError, LayerId, Verified, verify_file, verify_object};
use blobstore::refs::{Name, TagName, layer_key};
use converter::{Platforms, Source};
use serde_json::json;

pub(super) async fn run(context: &Context, arguments: &Verify) -> Result<(), Failure> {
    if Source::is_one(&arguments.what) {
        return compare(context, arguments).await;
    }
    let name: Name = arguments.what.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    let mut verified = Vec::new();
    if let Name::File(path) = &name {
        verified.push(verify_file(path, None).map_err(|e| Failure::layer(path.display(), &e))?);
    } else {
        let refs = context.refs()?;
        let stacks = match refs.resolve_stacks(&name).await {
            Ok(stacks) => stacks,
            Err(error) => return Err(unresolved(&refs, &name, &error).await),
        };
        let layers: Vec<_> = stacks.plain.layers().iter().chain(stacks.collapsed_only()).collect();
        let bar = progress::bar("verifying");
        progress::set_length(&bar, layers.iter().map(|l| l.size).sum());
        for layer in layers {
            let done = verify_object(refs.store().as_ref(), &layer_key(&layer.layer), Some(&layer.layer)).await;
            verified.push(done.map_err(|e| damaged(&layer.layer, &e))?);
            bar.inc(layer.size);
        }
        bar.finish_and_clear();
    }
    report(context, &arguments.what, &verified)
}

/// What can be done about a layer whose bytes are wrong.
fn damaged(layer: &LayerId, error: &LayerError) -> Failure {
    let failure = Failure::layer(format!("layer {layer}"), error);
    match error {
        LayerError::Malformed(_) | LayerError::Corrupt { .. } => {
            failure.with("; convert what has it again, with --again, which puts a good one in its place")
        }
        _ => failure,
    }
}

async fn compare(context: &Context, arguments: &Verify) -> Result<(), Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::usage(e.to_string());
    let source: Source = arguments.what.parse().map_err(|e| usage(&e))?;
    if matches!(source, Source::Directory(_)) && arguments.tag.is_none() {
        return Err(Failure::usage("--tag is needed: under which tag was the directory converted?"));
    }
    let registries = registries::settings(&context.config);
    let tag = arguments.tag.as_ref().map(|tag| tag.trim_start_matches("tag:").parse::<TagName>());
    let tag = tag.transpose().map_err(|e| usage(&e))?;
    let platforms = arguments.platform.as_ref().map(|platform| platform.parse::<Platforms>());
    let platforms = platforms.transpose().map_err(|e| usage(&e))?.unwrap_or_default();
    let refs = context.refs()?;
    let found = converter::compare(&refs, &source, &platforms, &registries, tag.as_ref()).await?;
    if context.json {
        output::json(&found)?;
    } else {
        found.differences.iter().for_each(output::line);
        let (layers, bytes) = (output::count(found.layers, "layer"), output::bytes(found.bytes));
        let verdict = if found.count == 0 { ", no differences" } else { "" };
        output::done(format!("{}: {layers}, {bytes}, {} names compared{verdict}", arguments.what, found.names));
    }
    match found.count {
        0 => Ok(()),
        n => {
            let differences = output::count(n, "difference");
            Err(Failure::failed(format!("{}: the store shows {differences} from the source", arguments.what)))
        }
    }
}

fn report(context: &Context, reference: &str, verified: &[Verified]) -> Result<(), Failure> {
    let bytes: u64 = verified.iter().map(|v| v.file_len).sum();
    if context.json {
        let layers: Vec<_> = verified
            .iter()
            .map(|v| json!({"layer": v.id.to_string(), "bytes": v.file_len, "image_bytes": v.image_bytes, "chunks": v.chunks}))
            .collect();
        return output::json(&json!({"reference": reference, "layers": layers, "bytes": bytes}));
    }
    for v in verified {
        let chunks = output::count(v.chunks.into(), "chunk");
        output::done(format!("{} {} in {chunks}: right", v.id, output::bytes(v.file_len)));
    }
    let layers = output::count(verified.len() as u64, "layer");
    output::done(format!("{reference}: {layers}, {}, every byte right", output::bytes(bytes)));
    Ok(())
}
