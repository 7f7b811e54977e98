//! From a source to a store.

use crate::error::{Error, Result, store};
use crate::options::Options;
use crate::report::Report;
use crate::session::Session;
use crate::source::{Opened, Source, open};
use blobstore::refs::Refs;
use std::path::Path;
use std::time::Duration;

/// How long it may take to take back what was begun in the store: whoever stops a program wants it to stop.
const SETTLE: Duration = Duration::from_secs(8);

/// Converts a source into a store and writes its references. What is on the way waits in the directory `work`, which this
/// user's other conversions share; it needs room for all layers that come out, and for the files of the largest.
pub async fn convert(refs: &Refs, source: &Source, work: &Path, options: &Options) -> Result<Report> {
    let done = convert_until(refs, source, work, options, std::future::pending()).await?;
    done.ok_or_else(|| Error::failed("converting", "it was told to end"))
}

/// The same until `stop` is done: `None` then, when what was begun in the store is taken back. Layers that were made are kept
/// in `work`, and taken over by the same conversion begun again. Threads in the middle of a layer end with the process.
pub async fn convert_until(
    refs: &Refs,
    source: &Source,
    work: &Path,
    options: &Options,
    stop: impl Future<Output = ()>,
) -> Result<Option<Report>> {
    if options.push.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        return Err(Error::refused("only images are pushed: a tar or a directory has no original to stand beside"));
    }
    if let Some(name) = options.name.as_ref().filter(|name| name.digest().is_some()) {
        return Err(Error::refused(format!(
            "the name {name}: a tag names an image, its digest comes from what is converted"
        )));
    }
    // A store that this build does not understand, or that takes no writes, is said so before hours of work.
    refs.check_format().await.map_err(store)?;
    let unwritable = |e| Error::failed("nothing was converted: the store cannot be written to", e);
    refs.store().check_writable().await.map_err(unwritable)?;
    let session = Session::new(refs, work, options)?;
    let all = async {
        match open(source, &options.platforms, &options.registries).await? {
            Opened::Images(images) => session.images(images).await,
            Opened::Tar { blob, name, bytes } => session.tar(blob, &name, bytes).await,
            Opened::Directory(path) => session.directory(path).await,
        }
    };
    let done = tokio::select! {
        done = all => done.map(Some),
        () = stop => Ok(None),
    };
    let settled = match done {
        Ok(Some(_)) => true,
        _ => tokio::time::timeout(SETTLE, refs.store().settle()).await.is_ok(),
    };
    // A name that is still being written needs what the lease holds: that ends by itself then.
    if settled {
        session.release().await;
    }
    done
}
