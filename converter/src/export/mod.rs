//! What a stack shows, out of the store again: a flat EROFS image, a tar, or a directory.
//!
//! Every chunk is verified before it is used. Equal stacks give equal images and tars. The tar of a layer that took nothing
//! from below converts back to the same layer. Nothing half-done is left where it looks whole. One layer by itself, as a
//! tar, keeps its whiteouts and opaque marks, in OCI's form; everything else shows what a mount shows.

mod archive;
mod attributes;
mod directory;
mod image;
mod output;
mod pax;
mod view;

use crate::below::{self, Below, StoredLayer};
use crate::error::{Error, Result};
use crate::stored::{Run, StoredContents};
use blobstore::layer::{LayerError, read_head_file};
use blobstore::refs::{Stack, StackEntry};
use blobstore::store::{FileStore, Store};
use output::{NewDirectory, NewFile};
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use view::View;

/// What is exported.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A stack of a store.
    Stack(Arc<dyn Store>, Stack),
    /// One layer of a store, by itself.
    Layer(Arc<dyn Store>, StackEntry),
    /// A layer file of this machine.
    File(PathBuf),
}

/// Where it goes.
pub enum Output {
    /// A flat EROFS image, in a file that is made or replaced.
    Erofs(PathBuf),
    /// A tar, likewise.
    Tar(PathBuf),
    /// A tar, as a stream.
    Stream(Box<dyn Write + Send>),
    /// A directory that is new or empty. Needs root.
    Directory(PathBuf),
}

/// Told of bytes of contents that are done, and of how many there are; `Break` ends the export with an error.
pub type ExportProgress = Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>;

/// What an export did.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Exported {
    /// Layers of the stack.
    pub layers: u64,
    /// Names in the tree, the root's included.
    pub names: u64,
    /// Bytes of the files' contents, holes left out.
    pub bytes_contents: u64,
    /// Bytes of the image or tar; of a directory, of the contents.
    pub bytes_out: u64,
    /// What was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Exports a stack or a layer.
///
/// # Errors
/// [`Error::Refused`] for what a tar or an image cannot hold; [`Error::Failed`] also for what the target's file system
/// cannot.
pub async fn export(origin: &Origin, output: Output, progress: ExportProgress) -> Result<Exported> {
    let loaded = load(origin).await?;
    let runtime = Handle::current();
    let work = move || run(loaded, output, &*progress, &runtime);
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::failed("the export's thread", e))?
}

/// Contents on their way out.
struct Work<'a> {
    contents: StoredContents<'a>,
    progress: &'a dyn Fn(u64, u64) -> ControlFlow<()>,
    done: u64,
    total: u64,
}

impl Work<'_> {
    /// As [`StoredContents::read`], counted.
    fn read(&mut self, layer: usize, run: &Run, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Self { contents, progress, done, total } = self;
        contents.read(layer, run, &mut |bytes| {
            *done += bytes.len() as u64;
            match progress(*done, *total) {
                ControlFlow::Continue(()) => sink(bytes),
                ControlFlow::Break(()) => Err(Error::failed("exporting", "interrupted")),
            }
        })
    }
}

/// The layers, and the tree to be exported.
struct Loaded {
    below: Below,
    view: View,
}

async fn load(origin: &Origin) -> Result<Loaded> {
    let mut below = Below::default();
    let (layer, tree) = match origin {
        Origin::Stack(store, stack) => {
            for entry in stack {
                below.load(store, entry).await?;
            }
            let view = View::merged(&below)?;
            return Ok(Loaded { below, view });
        }
        Origin::Layer(store, entry) => below::open(store, entry).await?,
        Origin::File(path) => open_file(path)?,
    };
    let root_opaque = layer.root_opaque();
    below.push(layer, &tree, root_opaque)?;
    Ok(Loaded { below, view: View::layer(tree, root_opaque) })
}

/// A layer file, as an object of a store that is its directory.
fn open_file(path: &Path) -> Result<(StoredLayer, erofs::Tree)> {
    let failed = |e: &dyn std::fmt::Display| Error::failed(path.display().to_string(), e.to_string());
    let head = read_head_file(path).map_err(|e| match e {
        // It names the file itself.
        LayerError::Io { .. } => Error::failed("exporting a layer file", e),
        e => Error::failed(path.display().to_string(), e),
    })?;
    let path = std::path::absolute(path).map_err(|e| failed(&e))?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(failed(&"a name in UTF-8 is needed"));
    };
    below::opened(Arc::new(FileStore::new(directory)), name.to_owned(), head)
}

fn run(
    loaded: Loaded,
    output: Output,
    progress: &dyn Fn(u64, u64) -> ControlFlow<()>,
    runtime: &Handle,
) -> Result<Exported> {
    let Loaded { below, mut view } = loaded;
    if view.marks && !matches!(output, Output::Tar(_) | Output::Stream(_)) {
        view = View::merged(&below)?;
    }
    let total = view.bytes();
    let contents = StoredContents::new(below.layers(), runtime);
    let mut work = Work { contents, progress, done: 0, total };
    let mut exported = Exported {
        layers: below.layers().len() as u64,
        names: view.tree.walk().count() as u64,
        bytes_contents: total,
        ..Exported::default()
    };
    match output {
        Output::Erofs(path) => {
            let file = NewFile::new(&path)?;
            exported.bytes_out = image::write(&view, &mut work, file.file())?;
            file.finish()?;
        }
        Output::Tar(path) => {
            let file = NewFile::new(&path)?;
            exported.bytes_out = archive::write(&view, &mut work, &mut buffered(file.file()))?;
            file.finish()?;
        }
        Output::Stream(stream) => exported.bytes_out = archive::write(&view, &mut work, &mut buffered(stream))?,
        Output::Directory(path) => {
            exported.warnings = into_directory(&view, &mut work, &path)?;
            exported.bytes_out = total;
        }
    }
    Ok(exported)
}

fn into_directory(view: &View, work: &mut Work<'_>, path: &Path) -> Result<Vec<String>> {
    if !rustix::process::geteuid().is_root() {
        let why = "an export into a directory gives files owners and makes devices: it needs root";
        return Err(Error::failed(path.display().to_string(), why));
    }
    let directory = NewDirectory::new(path)?;
    let root = directory.open()?;
    let warnings = directory::write(view, work, root.as_fd()).map_err(|e| directory.unfinished(e))?;
    directory.finish()?;
    Ok(warnings)
}

fn buffered<W: Write>(out: W) -> BufWriter<W> {
    BufWriter::with_capacity(1 << 20, out)
}
