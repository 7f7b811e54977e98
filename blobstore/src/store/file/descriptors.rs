//! Open files of objects that are read by ranges: a path walk and an open for each chunk cost more than the read.

use lru::LruCache;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors kept: a node reads from some hundred layers, and 1024 is the usual limit of a process.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

#[derive(Debug)]
pub(in crate::store) struct Descriptors {
    open: Mutex<LruCache<PathBuf, Arc<File>>>,
    opener: fn(&Path) -> io::Result<File>,
}

impl Descriptors {
    pub(super) fn new() -> Self {
        Self::opening_with(open_object)
    }

    /// Descriptors that are opened in another way than [`open_object`]'s.
    pub(in crate::store) fn opening_with(opener: fn(&Path) -> io::Result<File>) -> Self {
        Self { open: Mutex::new(LruCache::new(KEPT)), opener }
    }

    /// The object at `path` and its size. A kept file that was meanwhile deleted or replaced, by whomever, has no
    /// link left: it is opened again.
    pub(in crate::store) fn get(&self, path: &Path) -> io::Result<(Arc<File>, u64)> {
        let kept = self.lock().get(path).cloned();
        if let Some(file) = kept {
            let found = file.metadata()?;
            if found.nlink() > 0 {
                return Ok((file, found.len()));
            }
            self.forget(path);
        }
        let file = Arc::new((self.opener)(path)?);
        let size = file.metadata()?.len();
        self.lock().put(path.to_owned(), file.clone());
        Ok((file, size))
    }

    pub(super) fn forget(&self, path: &Path) {
        self.lock().pop(path);
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<PathBuf, Arc<File>>> {
        // Every state of the table is a good one, also that left by a panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the file of an object; a directory or a device is none.
pub(in crate::store) fn open_object(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO that somebody put there would wait for its other end.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    let is_file = file.metadata().as_ref().is_ok_and(Metadata::is_file);
    if is_file { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}
