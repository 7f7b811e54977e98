//! Opening a source: what kind it is decides what is there to be read.

use super::{Blobs, Images, OpenBlob, Platforms, Source, docker, layout, remote};
use crate::error::{Error, Result};
use crate::registry::Settings;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use tokio::runtime::Handle;

/// A source that is open.
pub enum Opened {
    /// One image for each wanted platform, its documents read and checked.
    Images(Images),
    /// A tar stream.
    Tar {
        /// The stream, perhaps compressed.
        blob: OpenBlob,
        /// What messages call it.
        name: String,
        /// Its length, where that is known.
        bytes: Option<u64>,
    },
    /// A directory.
    Directory(PathBuf),
}

/// Opens a source. Waits for disks and registries, on a thread of its own.
pub async fn open(source: &Source, platforms: &Platforms, registries: &Settings) -> Result<Opened> {
    let (source, platforms, registries) = (source.clone(), platforms.clone(), registries.clone());
    let runtime = Handle::current();
    let work = move || open_now(source, &platforms, &registries, &runtime);
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::failed("opening the source", e))?
}

fn open_now(source: Source, platforms: &Platforms, registries: &Settings, runtime: &Handle) -> Result<Opened> {
    let images = match source {
        Source::Oci { directory, reference } => {
            layout::open(Blobs::Directory(directory), reference.as_deref(), platforms)?
        }
        Source::OciArchive { file, reference } => {
            layout::open(Blobs::archive(&file)?, reference.as_deref(), platforms)?
        }
        Source::DockerArchive { file, reference } => {
            docker::open(Blobs::archive(&file)?, reference.as_deref(), platforms)?
        }
        Source::Registry(name) => remote::open(&name, registries, platforms, runtime)?,
        Source::Tar(path) => return tar(path),
        Source::Directory(path) => return Ok(Opened::Directory(path)),
    };
    Ok(Opened::Images(images))
}

fn tar(path: Option<PathBuf>) -> Result<Opened> {
    let Some(path) = path else {
        let stdin: Box<dyn io::Read + Send> = Box::new(io::stdin());
        return Ok(Opened::Tar { blob: stdin.into(), name: "standard input".to_owned(), bytes: None });
    };
    let name = path.display().to_string();
    let failed = |e| Error::failed(name.clone(), e);
    let file = File::open(&path).map_err(failed)?;
    let bytes = file.metadata().ok().map(|found| found.len());
    let blob = OpenBlob::part(file, 0, u64::MAX).map_err(failed)?;
    Ok(Opened::Tar { blob, name, bytes })
}
