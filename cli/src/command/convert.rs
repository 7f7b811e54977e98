//! `lamina convert`.

use super::Context;
use crate::args::Convert;
use crate::failure::Failure;
use crate::output;
use crate::registries;
use blobstore::refs::ImageName;
use control::causes;
use converter::{LayerReport, Options, Report, Source};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Runtime;

pub(super) fn run(context: &Context, runtime: &Runtime, arguments: &Convert) -> Result<(), Failure> {
    let source: Source = arguments.source.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    not_yet(arguments)?;
    if arguments.push.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        let text = "--push pushes images: a tar or a directory has no original that others could run";
        return Err(Failure::usage(text));
    }
    if arguments.name.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        let text = "--name names images; name the layer of a tar or a directory with --tag KIND/NAME:VERSION";
        return Err(Failure::usage(text));
    }
    let options = options(context, arguments)?;
    let refs = context.refs()?;
    let report = runtime.block_on(converter::convert(&refs, &source, &options)).map_err(failure)?;
    if context.json {
        return output::json(&report);
    }
    total(&report, &source);
    Ok(())
}

/// Understood by scripts that are written for what is to come: they get a clear word.
fn not_yet(arguments: &Convert) -> Result<(), Failure> {
    let given = [
        ("--collapse", arguments.collapse.is_some()),
        ("--profile", arguments.profile.is_some()),
        ("--output", arguments.output.is_some()),
    ];
    match given.iter().find(|(_, is)| *is) {
        Some((option, _)) => Err(Failure::failed(format!("{option} is not built yet; the README says what is"))),
        None => Ok(()),
    }
}

/// Where decompressed contents wait: a disk, not the memory that /tmp may be.
pub(super) fn work_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

pub(super) fn failure(error: converter::Error) -> Failure {
    match error.is_refusal() {
        true => Failure::refused(format!("refused: {}", causes(&error))),
        false => Failure::failed(causes(&error)),
    }
}

fn options(context: &Context, arguments: &Convert) -> Result<Options, Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::usage(e.to_string());
    let mut options = Options {
        level: arguments.level,
        again: arguments.again,
        work: work_directory(),
        registries: registries::settings(&context.config),
        ..Options::default()
    };
    if let Some(chunk_size) = arguments.chunk_size {
        if chunk_size == 0 || !chunk_size.is_multiple_of(4096) || chunk_size > 4 << 20 {
            return Err(Failure::usage(format!(
                "--chunk-size {chunk_size}: a multiple of 4096 up to 4194304 is needed"
            )));
        }
        options.chunk_size = chunk_size;
    }
    if let Some(tag) = &arguments.tag {
        options.tag = Some(tag.trim_start_matches("tag:").parse().map_err(|e| usage(&e))?);
    }
    if let Some(name) = &arguments.name {
        options.name = Some(name.trim_start_matches("image:").parse().map_err(|e| usage(&e))?);
    }
    if let Some(push) = &arguments.push {
        let name: ImageName = push.trim_start_matches("docker://").parse().map_err(|e| usage(&e))?;
        if name.digest().is_some() {
            return Err(Failure::usage(format!(
                "--push {push}: a tag is pushed to, its digest comes from what is pushed"
            )));
        }
        options.push = Some(name);
    }
    if let Some(platform) = &arguments.platform {
        options.platforms = platform.parse().map_err(|e| usage(&e))?;
    }
    options.jobs = arguments.jobs.map_or(0, usize::from);
    if !context.json {
        options.progress = Some(Arc::new(|layer: &LayerReport| line(layer)));
    }
    Ok(options)
}

/// One line a layer, as soon as it is done.
fn line(layer: &LayerReport) {
    for warning in &layer.warnings {
        tracing::warn!("{warning}");
    }
    let from = layer.source.as_deref().unwrap_or("-");
    let from = from.strip_prefix("sha256:").map_or(from, |hex| &hex[..12.min(hex.len())]);
    let how = match layer.reused {
        true => "in the store already".to_owned(),
        false => format!(
            "{} entries, {} -> {} in {}, {} shared, {:.1} s",
            layer.entries,
            output::bytes(layer.bytes_in.max(layer.bytes_tar)),
            output::bytes(layer.bytes_out),
            output::count(layer.chunks.into(), "chunk"),
            output::bytes(layer.bytes_deduplicated),
            layer.seconds
        ),
    };
    output::line(format!("{from} -> {}: {how}", layer.layer));
}

fn total(report: &Report, source: &Source) {
    let layers = || report.images.iter().flat_map(|i| &i.layers);
    let fresh = layers().filter(|l| !l.reused).count();
    let (from, to) = (layers().map(|l| l.bytes_in).sum(), layers().map(|l| l.bytes_out).sum());
    let names: Vec<&str> = report.name.iter().chain(&report.tag).map(String::as_str).collect();
    let option = match source {
        Source::Tar(_) | Source::Directory(_) => "--tag KIND/NAME:VERSION",
        _ => "--name IMAGE",
    };
    let named = if names.is_empty() { format!("no name ({option} gives one)") } else { names.join(", ") };
    output::line(format!(
        "{named}: {}, {fresh} converted, {} -> {}",
        output::count(layers().count() as u64, "layer"),
        output::bytes(from),
        output::bytes(to)
    ));
    if let Some(pushed) = &report.pushed {
        output::line(format!(
            "pushed {}@{}: {} sent in {}, {} mounted, {} there already",
            pushed.name,
            pushed.digest,
            output::bytes(pushed.bytes_sent),
            output::count(pushed.sent, "blob"),
            pushed.mounted,
            pushed.present
        ));
    }
}
