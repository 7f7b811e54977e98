//! `lamina convert`.

use super::Context;
use super::interrupt::{Stop, interruptible};
use crate::args::Convert;
use crate::environment;
use crate::failure::Failure;
use crate::output;
use crate::progress;
use crate::registries;
use blobstore::refs::{ImageName, TagName};
use blobstore::small_file;
use converter::{CollapsedLayer, Event, First, LayerReport, Options, Report, Source};
use indicatif::ProgressBar;
use std::sync::Arc;
use tokio::runtime::Runtime;

pub(super) fn run(context: &Context, runtime: &Runtime, arguments: &Convert) -> Result<(), Failure> {
    let source: Source = arguments.source.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    not_yet(arguments)?;
    let is_single = matches!(source, Source::Tar(_) | Source::Directory(_));
    if arguments.collapse.is_some() && is_single {
        return Err(Failure::usage("--collapse is for images: a tar or a directory is one layer already"));
    }
    if arguments.push.is_some() && is_single {
        let text = "--push pushes images: a tar or a directory has no original that others could run";
        return Err(Failure::usage(text));
    }
    if arguments.name.is_some() && is_single {
        let text = "--name names images; name the layer of a tar or a directory with --tag KIND/NAME:VERSION";
        return Err(Failure::usage(text));
    }
    let mut options = options(context, arguments)?;
    let (bar, lines) = (progress::bar("converting"), !context.json);
    let shown = bar.clone();
    options.progress = Some(Arc::new(move |event: &Event<'_>| show(&shown, lines, event)));
    let refs = context.refs()?;
    let work = environment::work_directory();
    let done = runtime.block_on(interruptible(async |mut stop: Stop| {
        let done = converter::convert_until(&refs, &source, &work, &options, stop.wait()).await;
        done.map_err(Failure::from)
    }));
    bar.finish_and_clear();
    let report = done?;
    if let (Some(first), Some(path)) = (&options.first, &arguments.profile) {
        unused_profile(&report, first).iter().for_each(|why| tracing::warn!("--profile {}: {why}", path.display()));
    }
    if context.json {
        return output::json(&report);
    }
    total(&report, &source);
    Ok(())
}

/// Understood by scripts that are written for what is to come: they get a clear word.
fn not_yet(arguments: &Convert) -> Result<(), Failure> {
    match arguments.output {
        Some(_) => Err(Failure::failed("--output is not built yet (the README lists what is not)")),
        None => Ok(()),
    }
}

fn options(context: &Context, arguments: &Convert) -> Result<Options, Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::usage(e.to_string());
    let mut options = Options {
        chunk_size: arguments.chunk_size,
        level: arguments.level,
        again: arguments.again,
        registries: registries::settings(&context.config),
        ..Options::default()
    };
    if let Some(tag) = &arguments.tag {
        let tag: TagName = tag.trim_start_matches("tag:").parse().map_err(|e| usage(&e))?;
        options.tag = Some(tag);
    }
    if let Some(name) = &arguments.name {
        let parsed: ImageName = name.trim_start_matches("image:").parse().map_err(|e| usage(&e))?;
        if parsed.digest().is_some() {
            return Err(Failure::usage(format!(
                "--name {name}: a tag names an image, its digest comes from what is converted"
            )));
        }
        options.name = Some(parsed);
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
    if let Some(path) = &arguments.profile {
        let list = small_file::read(path, First::LONGEST);
        let list = list.map_err(|e| Failure::usage(format!("--profile {}: {e}", path.display())))?;
        let first = First::parse(&list).map_err(|e| Failure::refused(format!("--profile {}: {e}", path.display())))?;
        options.first = Some(Arc::new(first));
    }
    options.collapse = arguments.collapse;
    options.jobs = arguments.jobs.map_or(0, usize::from);
    Ok(options)
}

/// Where a list of what starts read changed nothing, or not all: why.
fn unused_profile(report: &Report, first: &First) -> Option<String> {
    if first.is_empty() {
        return Some("it names no file, and nothing is laid out by it".to_owned());
    }
    let layers = || report.images.iter().flat_map(|image| &image.layers);
    let as_they_were = layers().filter(|layer| layer.reused && !layer.resumed && !layer.shared).count();
    match layers().count() {
        0 => None,
        all if as_they_were == all => {
            Some("no layer is laid out by it: the store had them all already; --again converts them anew".to_owned())
        }
        all if as_they_were > 0 => Some(format!(
            "{as_they_were} of {all} layers are not laid out by it: the store had them already; --again converts them anew"
        )),
        // What another conversion made was made by the same list.
        _ if first.was_found() || layers().any(|layer| layer.resumed) => None,
        _ => Some("no layer is laid out by it: none has a file that it names".to_owned()),
    }
}

/// The bar says what is under way; lines say what is done.
fn show(bar: &ProgressBar, lines: bool, event: &Event<'_>) {
    let begin = |what: String, bytes: u64| {
        bar.reset();
        progress::set_length(bar, bytes);
        bar.set_message(what);
    };
    match event {
        Event::Started { layer, bytes } => begin(format!("reading {}", short(layer)), bytes.unwrap_or(0)),
        Event::Read(bytes) | Event::Stored(bytes) => bar.inc(*bytes),
        Event::Packing => bar.set_message("packing"),
        Event::Waiting { layer } => begin(format!("another conversion makes {}: waiting", short(layer)), 0),
        Event::Collapsing => begin("collapsing".to_owned(), 0),
        Event::Storing(bytes) => begin("storing".to_owned(), *bytes),
        Event::Ready(layer) if lines => bar.suspend(|| line(layer)),
        _ => {}
    }
}

/// A digest as people recognize it.
fn short(name: &str) -> &str {
    name.strip_prefix("sha256:").map_or(name, |hex| &hex[..12.min(hex.len())])
}

/// One line a layer, as soon as it is done.
fn line(layer: &LayerReport) {
    for warning in &layer.warnings {
        tracing::warn!("{warning}");
    }
    let from = short(layer.source.as_deref().unwrap_or("-"));
    let how = match layer {
        LayerReport { resumed: true, .. } => {
            "made before, by a conversion that was interrupted or ran beside".to_owned()
        }
        LayerReport { shared: true, .. } => "the same as another layer of this source".to_owned(),
        LayerReport { reused: true, .. } => "in the store already".to_owned(),
        LayerReport { made: None, .. } => "in the store".to_owned(),
        LayerReport { made: Some(made), .. } => format!(
            "{} entries, {} -> {} in {}, {} shared within, {} repeated from below, {:.1} s",
            made.entries,
            output::bytes(layer.bytes_in.max(made.bytes_tar)),
            output::bytes(layer.bytes_out),
            output::count(made.chunks.into(), "chunk"),
            output::bytes(made.bytes_deduplicated),
            output::bytes(made.bytes_repeated),
            made.seconds
        ),
    };
    output::done(format!("{from} -> {}: {how}", layer.layer));
}

/// One line a layer that was made of several.
fn collapsed_line(layer: &CollapsedLayer) {
    output::done(format!(
        "{} -> {}: {} entries, {} -> {} in {}, {} in chunks that these have, {:.1} s",
        output::count(layer.from.len() as u64, "layer"),
        layer.layer,
        layer.entries,
        output::bytes(layer.bytes_in),
        output::bytes(layer.bytes_out),
        output::count(layer.chunks.into(), "chunk"),
        output::bytes(layer.bytes_same),
        layer.seconds
    ));
}

fn total(report: &Report, source: &Source) {
    report.images.iter().filter_map(|i| i.collapsed.as_ref()).flat_map(|c| &c.layers).for_each(collapsed_line);
    if report.images.iter().any(|i| i.collapsed.as_ref().is_some_and(|c| c.kept > 0 && c.kept == i.layers.len() as u64))
    {
        output::done(
            "--collapse made nothing: the collapsed stack that the image has already is kept; --again makes it anew",
        );
    }
    let layers = || report.images.iter().flat_map(|i| &i.layers);
    let fresh = layers().filter(|l| !l.reused).count();
    let (from, to) = (layers().map(|l| l.bytes_in).sum(), layers().map(|l| l.bytes_out).sum());
    // What is pushed has the registry's name in the store too.
    let pushed =
        report.pushed.as_ref().map(|pushed| &pushed.name).filter(|pushed| report.name.as_ref() != Some(pushed));
    let names: Vec<&str> = report.name.iter().chain(&report.tag).chain(pushed).map(String::as_str).collect();
    let option = match source {
        Source::Tar(_) | Source::Directory(_) => "--tag KIND/NAME:VERSION",
        _ => "--name IMAGE",
    };
    let named = if names.is_empty() { format!("no name ({option} gives one)") } else { names.join(", ") };
    let stacks = report.images.iter().filter_map(|i| i.collapsed.as_ref()).map(|c| c.stack.len() as u64);
    let collapsed = stacks.reduce(|a, b| a + b).map_or(String::new(), |n| format!(", collapsed to {n}"));
    output::done(format!(
        "{named}: {}{collapsed}, {fresh} converted, {} -> {}",
        output::count(layers().count() as u64, "layer"),
        output::bytes(from),
        output::bytes(to)
    ));
    if let Some(pushed) = &report.pushed {
        output::done(format!(
            "pushed {}@{}: {} sent in {}, {} mounted, {} there already",
            pushed.name,
            pushed.digest,
            output::bytes(pushed.bytes_sent),
            output::count(pushed.sent, "blob"),
            pushed.mounted,
            pushed.present
        ));
        for image in &pushed.images {
            output::done(format!("with converted layers for {}: {}", image.platform, image.manifest));
        }
    }
}
