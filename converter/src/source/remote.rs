//! An image of a registry: what its name stands for is asked once, and all else goes by digests.

use super::blobs::Blobs;
use super::image::Images;
use super::platform::Platforms;
use crate::error::Result;
use crate::registry::{Repository, Settings};
use blobstore::refs::ImageName;
use tokio::runtime::Handle;

/// The images that a name stands for in its registry. Blocks: not for the threads of `runtime` itself.
pub(super) fn open(name: &ImageName, settings: &Settings, platforms: &Platforms, runtime: &Handle) -> Result<Images> {
    let repository = Repository::new(name, settings)?;
    let root = runtime.block_on(repository.root(name))?;
    let blobs = Blobs::Registry { repository, runtime: runtime.clone() };
    Images::of_document(blobs, root.bytes, &root.media_type, Some(name.to_string()), platforms)
}
