//! `lamina export`: what a stack shows, out of the store again.

use super::Context;
use super::interrupt::{Stop, interruptible};
use super::suggest::unresolved;
use crate::args::Export;
use crate::failure::Failure;
use crate::output;
use crate::progress;
use blobstore::causes;
use blobstore::layer::LayerError;
use blobstore::refs::Name;
use converter::{Error, Exported, Origin, Output};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Runtime;

pub(super) fn run(context: &Context, runtime: &Runtime, arguments: &Export) -> Result<(), Failure> {
    let name: Name = arguments.reference.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    let output = choose_output(context, arguments)?;
    let streams = matches!(output, Output::Stream(_));
    let exported = runtime.block_on(interruptible(async |mut stop: Stop| {
        let Some(origin) = stop.or(origin(context, name)).await? else { return Ok(None) };
        let bar = progress::bar("exporting");
        let (moving, stopped) = (bar.clone(), noted(stop));
        let told = move |done, total| {
            progress::set_length(&moving, total);
            moving.set_position(done);
            match stopped.load(Ordering::Relaxed) {
                false => ControlFlow::Continue(()),
                true => ControlFlow::Break(()),
            }
        };
        let exported = converter::export(&origin, output, Arc::new(told)).await;
        bar.finish_and_clear();
        exported.map(Some).map_err(failure)
    }))?;
    exported.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    match (context.json, streams) {
        (true, _) => output::json(&exported),
        // The standard output is the tar's.
        (false, true) => Ok(()),
        (false, false) => {
            report(&arguments.reference, &exported);
            Ok(())
        }
    }
}

async fn origin(context: &Context, name: Name) -> Result<Origin, Failure> {
    if let Name::File(path) = name {
        return Ok(Origin::File(path));
    }
    let refs = context.refs()?;
    let stack = match refs.resolve(&name).await {
        Ok(stack) => stack,
        Err(error) => return Err(unresolved(&refs, &name, &error).await),
    };
    let store = refs.store().clone();
    Ok(match (&name, stack.layers()) {
        (Name::Layer(_) | Name::LayerPrefix(_), [layer]) => Origin::Layer(store, layer.clone()),
        _ => Origin::Stack(store, stack),
    })
}

/// Where to, in which form.
fn choose_output(context: &Context, arguments: &Export) -> Result<Output, Failure> {
    let path = arguments.output.as_deref().unwrap_or(Path::new("-"));
    let stream = path.as_os_str() == "-";
    let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir();
    if let (None, false, Some(program)) = (&arguments.format, is_directory, compressed(path)) {
        return Err(Failure::usage(format!(
            "{}: what is exported is not compressed: {program}; --format erofs, tar or dir writes that under this name",
            path.display()
        )));
    }
    let format = arguments.format.as_deref().unwrap_or(match path.as_os_str().as_encoded_bytes() {
        b"-" => "tar",
        _ if is_directory => "dir",
        text if text.ends_with(b".tar") => "tar",
        _ => "erofs",
    });
    match (format, stream) {
        ("tar", true) if context.json => {
            Err(Failure::usage("--json and the tar both want the standard output: use --output FILE"))
        }
        ("tar", true) if io::stdout().is_terminal() => {
            Err(Failure::usage("a tar is nothing for a terminal: use --output FILE or a pipe"))
        }
        ("tar", true) => Ok(Output::Stream(Box::new(io::stdout()))),
        ("tar", false) => Ok(Output::Tar(path.to_owned())),
        (format, true) => Err(Failure::usage(format!("--format {format} needs --output: only a tar is a stream"))),
        ("dir", false) => Ok(Output::Directory(path.to_owned())),
        (_, false) => Ok(Output::Erofs(path.to_owned())),
    }
}

/// What a file's name promises that no export is, and how it comes to be.
fn compressed(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let ways = [
        ("gzip", &[".gz", ".tgz"][..]),
        ("zstd", &[".zst", ".tzst"]),
        ("xz", &[".xz", ".txz"]),
        ("bzip2", &[".bz2", ".tbz", ".tbz2"]),
    ];
    let fits = |ends: &&[&str]| ends.iter().any(|end| name.ends_with(end));
    let way = ways.into_iter().find(|(_, ends)| fits(ends));
    match way {
        Some((program, _)) => Some(format!("use --format tar --output - | {program} > {}", path.display())),
        None => name.ends_with(".zip").then(|| "export a tar or a directory, and zip that".to_owned()),
    }
}

/// Set when it is time to end, so that what was begun is taken back.
fn noted(mut stop: Stop) -> Arc<AtomicBool> {
    let stopped = Arc::new(AtomicBool::new(false));
    let set = stopped.clone();
    tokio::spawn(async move {
        stop.wait().await;
        set.store(true, Ordering::Relaxed);
    });
    stopped
}

/// Wrong bytes in the store are a refusal, as everywhere.
fn failure(error: Error) -> Failure {
    if let Error::Failed { source, .. } = &error
        && let Some(LayerError::Malformed(_) | LayerError::Unsupported(_) | LayerError::Corrupt { .. }) =
            source.downcast_ref::<LayerError>()
    {
        return Failure::refused(causes(&error));
    }
    error.into()
}

fn report(reference: &str, exported: &Exported) {
    output::done(format!(
        "{reference}: {}, {}, {} of contents, {} written",
        output::count(exported.layers, "layer"),
        output::count(exported.names, "name"),
        output::bytes(exported.bytes_contents),
        output::bytes(exported.bytes_out)
    ));
}
