//! What a conversion tells of itself while it runs.

use crate::report::LayerReport;
use std::io::{self, Read};
use std::sync::Arc;

/// Told what happens, from several threads; must not take long.
pub type Progress = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Something that happens in a conversion.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A layer is about to be read.
    Started {
        /// The blob's digest, or the name of a file or directory.
        layer: &'a str,
        /// Bytes of the blob, where they are known.
        bytes: Option<u64>,
    },
    /// So many more bytes of it were read.
    Read(u64),
    /// All of it was read: it is being packed.
    Packing,
    /// Another conversion makes this layer, and is waited for.
    Waiting {
        /// The layer's diff id.
        layer: &'a str,
    },
    /// A layer is done: made, or found.
    Ready(&'a LayerReport),
    /// All layers are ready, and consecutive ones are being made one.
    Collapsing,
    /// So many bytes of new layers are about to be written to the store.
    Storing(u64),
    /// So many more of them are there.
    Stored(u64),
}

/// A reader that tells how much was read.
pub(crate) struct ReadProgress<R> {
    inner: R,
    progress: Option<Progress>,
}

impl<R> ReadProgress<R> {
    pub(crate) fn new(inner: R, progress: Option<Progress>) -> Self {
        Self { inner, progress }
    }
}

impl<R: Read> Read for ReadProgress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(progress) = &self.progress {
            match count {
                0 if !buffer.is_empty() => progress(&Event::Packing),
                count => progress(&Event::Read(count as u64)),
            }
        }
        Ok(count)
    }
}
