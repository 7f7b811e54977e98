//! How to convert.

use crate::progress::Progress;
use crate::registry;
use crate::source::Platforms;
use blobstore::refs::{ImageName, TagName};
use std::path::PathBuf;

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
