//! From a source to a store: what a caller can ask for, and which kind of source is read how.

use crate::build::Input;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::publish::store;
use crate::registry;
use crate::report::Report;
use crate::session::Session;
use crate::source::{Blob, Blobs, Images, Platforms, Source, open_docker, open_layout, open_registry};
use blobstore::refs::{ImageName, Refs, TagName};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use tokio::runtime::Handle;

/// How to convert.
#[derive(Clone)]
pub struct Options {
    /// Which platforms of an image; this machine's.
    pub platforms: Platforms,
    /// The image name that is to stand for the image; else the one that a layout gives it, if that is a full name.
    pub name: Option<ImageName>,
    /// The tag that is to stand for the result.
    pub tag: Option<TagName>,
    /// Keep the whiteouts and opaque marks of a tar, which hides names of what it will be stacked on: a workspace's or a
    /// toolkit's. Else they hide nothing, since nothing lies below.
    pub whiteouts: bool,
    /// The chunk size that is aimed at, in bytes: a multiple of 4096, 4 MiB at most.
    pub chunk_size: u32,
    /// zstd's compression level.
    pub level: i32,
    /// Threads that compress; 0 is one a processor.
    pub jobs: usize,
    /// Convert and write references even where the store has them.
    pub again: bool,
    /// Make consecutive layers of an image one, while their layer files are at most so many bytes together: a second stack
    /// beside the first.
    pub collapse: Option<u64>,
    /// Directory for what is on the way, shared with this user's other conversions; needs room for all layers that come
    /// out, and for the files of the largest.
    pub work: PathBuf,
    /// Where an image is pushed to, beside its original: a name with a tag.
    pub push: Option<ImageName>,
    /// What is known of registries.
    pub registries: registry::Settings,
    /// Told what happens.
    pub progress: Option<Progress>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            platforms: Platforms::default(),
            name: None,
            tag: None,
            whiteouts: false,
            chunk_size: crate::pack::CHUNK_SIZE,
            level: 3,
            jobs: 0,
            again: false,
            collapse: None,
            work: std::env::temp_dir(),
            push: None,
            registries: registry::Settings::default(),
            progress: None,
        }
    }
}

/// Converts a source into a store and writes its references.
pub async fn convert(refs: &Refs, source: &Source, options: &Options) -> Result<Report> {
    let chunk = options.chunk_size;
    if chunk == 0 || !chunk.is_multiple_of(4096) || chunk > 4 << 20 {
        return Err(Error::refused(format!("a chunk size of {chunk}: multiples of 4096 up to 4 MiB are possible")));
    }
    if options.push.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        return Err(Error::refused("only images are pushed: a tar or a directory has no original to stand beside"));
    }
    // A store that this build does not understand is said so before hours of work.
    refs.check_format().await.map_err(store)?;
    let session = Session::new(refs, options)?;
    match source {
        Source::Oci { directory, reference } => {
            let blobs = Blobs::Directory(directory.clone());
            session.images(open_layout(blobs, reference.as_deref(), &options.platforms)?).await
        }
        Source::OciArchive { file, reference } => {
            session.images(open_layout(Blobs::archive(file)?, reference.as_deref(), &options.platforms)?).await
        }
        Source::DockerArchive { file, reference } => {
            session.images(open_docker(Blobs::archive(file)?, reference.as_deref(), &options.platforms)?).await
        }
        Source::Registry(name) => session.images(from_registry(name, options).await?).await,
        Source::Tar(None) => {
            let stdin: Box<dyn io::Read + Send> = Box::new(io::stdin());
            session.single(Input::Tar(stdin.into(), None), "standard input", None).await
        }
        Source::Tar(Some(path)) => {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|e| Error::failed(name.clone(), e))?;
            let bytes = file.metadata().ok().map(|found| found.len());
            let blob = Blob::part(file, 0, u64::MAX).map_err(|e| Error::failed(name.clone(), e))?;
            session.single(Input::Tar(blob, None), &name, bytes).await
        }
        Source::Directory(path) => {
            session.single(Input::Directory(path.clone()), &path.display().to_string(), None).await
        }
    }
}

/// Asks a registry for an image's documents.
async fn from_registry(name: &ImageName, options: &Options) -> Result<Images> {
    let (name, settings) = (name.clone(), options.registries.clone());
    let (platforms, runtime) = (options.platforms.clone(), Handle::current());
    let open = move || open_registry(&name, &settings, &platforms, &runtime);
    tokio::task::spawn_blocking(open).await.map_err(|e| Error::failed("asking the registry", e))?
}
