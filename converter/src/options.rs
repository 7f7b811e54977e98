//! How to convert.

use crate::chunk_size::ChunkSize;
use crate::pack::First;
use crate::progress::Progress;
use crate::registry;
use crate::source::Platforms;
use blobstore::refs::{ImageName, TagKind, TagName};
use std::sync::Arc;

pub use blobstore::layer::LEVEL;

/// How to convert.
#[derive(Clone)]
pub struct Options {
    /// Which platforms of an image; this machine's.
    pub platforms: Platforms,
    /// The image name that is to stand for the image; else the one that a layout gives it, if that is a full name.
    pub name: Option<ImageName>,
    /// The tag that is to stand for the result.
    pub tag: Option<TagName>,
    /// The chunk size that is aimed at.
    pub chunk_size: ChunkSize,
    /// Files whose contents come first in their layer's data: those that starts read.
    pub first: Option<Arc<First>>,
    /// zstd's compression level.
    pub level: i32,
    /// Threads that compress; 0 is one a processor.
    pub jobs: usize,
    /// Convert and write references even where the store has them.
    pub again: bool,
    /// Make consecutive layers of an image one, while their layer files are at most so many bytes together: a second stack
    /// beside the first.
    pub collapse: Option<u64>,
    /// Where an image is pushed to, beside its original: a name with a tag.
    pub push: Option<ImageName>,
    /// What is known of registries.
    pub registries: registry::Settings,
    /// Told what happens.
    pub progress: Option<Progress>,
}

impl Options {
    /// Whether a tar that is no image's keeps its whiteouts and opaque marks.
    pub(crate) fn keeps_marks(&self) -> bool {
        self.tag.as_ref().is_some_and(keeps_marks)
    }
}

/// Whether a tar that becomes this keeps its whiteouts and opaque marks. Those of a workspace or a toolkit hide names of
/// what it will be stacked on; in any other they hide nothing, since nothing lies below.
pub(crate) fn keeps_marks(tag: &TagName) -> bool {
    tag.kind != TagKind::Base
}

impl Default for Options {
    fn default() -> Self {
        Self {
            platforms: Platforms::default(),
            name: None,
            tag: None,
            chunk_size: ChunkSize::DEFAULT,
            first: None,
            level: LEVEL,
            jobs: 0,
            again: false,
            collapse: None,
            push: None,
            registries: registry::Settings::default(),
            progress: None,
        }
    }
}
