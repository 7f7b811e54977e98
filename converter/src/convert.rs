//! From a source to a store.

use crate::build::Input;
use crate::error::{Error, Result, store};
use crate::options::Options;
use crate::report::Report;
use crate::session::Session;
use crate::source::{Opened, Source, open};
use blobstore::refs::Refs;

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
    match open(source, &options.platforms, &options.registries).await? {
        Opened::Images(images) => session.images(images).await,
        Opened::Tar { blob, name, bytes } => session.single(Input::Tar(blob, None), &name, bytes).await,
        Opened::Directory(path) => {
            let name = path.display().to_string();
            session.single(Input::Directory(path), &name, None).await
        }
    }
}
