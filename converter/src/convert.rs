//! From a source to a store.

use crate::error::{Error, Result, store};
use crate::options::Options;
use crate::report::Report;
use crate::session::Session;
use crate::source::{Opened, Source, open};
use blobstore::refs::Refs;
use std::path::Path;

/// Converts a source into a store and writes its references. What is on the way waits in the directory `work`, which this
/// user's other conversions share; it needs room for all layers that come out, and for the files of the largest.
pub async fn convert(refs: &Refs, source: &Source, work: &Path, options: &Options) -> Result<Report> {
    if options.push.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        return Err(Error::refused("only images are pushed: a tar or a directory has no original to stand beside"));
    }
    if let Some(name) = options.name.as_ref().filter(|name| name.digest().is_some()) {
        return Err(Error::refused(format!(
            "the name {name}: a tag names an image, its digest comes from what is converted"
        )));
    }
    // A store that this build does not understand is said so before hours of work.
    refs.check_format().await.map_err(store)?;
    let session = Session::new(refs, work, options)?;
    let done = match open(source, &options.platforms, &options.registries).await? {
        Opened::Images(images) => session.images(images).await,
        Opened::Tar { blob, name, bytes } => session.tar(blob, &name, bytes).await,
        Opened::Directory(path) => session.directory(path).await,
    };
    session.release().await;
    done
}
