//! What a node keeps of the layers it uses.
//!
//! ```text
//! <dir>/format            {"version": 2}
//! <dir>/lock              flock: one process owns the directory
//! <dir>/heads/<layer id>  metadata and index of a layer: heads.rs
//! <dir>/chunks/<n>.seg    compressed chunks: segment.rs
//! <dir>/chunks/<n>.keep   those that were wanted again: evict.rs
//! <dir>/chunks/<name>.pin which chunks must stay: pins.rs
//! <dir>/pins.json         under which references they were pinned: names.rs
//! ```
//!
//! Heads are durable and verified when they are opened; a mount needs them. Chunks are a convenience: nothing of them
//! is trusted (a reader verifies what it reads by hash), nothing but what is pinned is synced, and everything that goes
//! wrong with them means "not cached". What a layer or a chunk is for, and what to fetch when, is not known here.
//!
//! Version 1 had other segments: its chunks are dropped, its heads are the same. A version that is not known is refused.

mod admin;
mod chunks;
mod disk;
mod domain;
mod evict;
mod ghost;
mod heads;
mod map;
mod names;
mod pinned;
mod pins;
mod segment;
mod shared;
mod write;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod evict_tests;
#[cfg(test)]
mod pin_tests;
#[cfg(test)]
mod sim_disk;

pub use admin::{Usage, Verified};
pub use chunks::{Chunks, Stats};
pub use heads::{HeadFile, Heads};
pub use names::PinNames;

use crate::meter::Meter;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Version of the directory's layout.
const VERSION: u32 = 2;

/// Why the cache could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file system failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Another process owns the directory.
    #[error("{path}: another process uses this cache")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// There is no room for more pins.
    #[error(
        "all pins together would take {wanted} bytes of the cache; at most {limit}, 2/5 of its size, may be pinned"
    )]
    Pinned {
        /// Bytes of all of them.
        wanted: u64,
        /// Most bytes.
        limit: u64,
    },
    /// The cache is too small for what was to be in it.
    #[error("it would take {wanted} bytes of the cache, which has room for {limit} ([cache] size)")]
    TooSmall {
        /// Bytes of it.
        wanted: u64,
        /// Bytes that there are for chunks.
        limit: u64,
    },
    /// The directory was made by another version.
    #[error("{path}: a cache of an unknown version ({found}); remove the directory to start anew")]
    Version {
        /// Its `format` file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

/// Result of a cache operation.
pub type Result<T> = std::result::Result<T, CacheError>;

/// How much the cache may take.
#[derive(Debug, Clone)]
pub struct Options {
    /// Most bytes of chunks.
    pub size: u64,
    /// What is kept free on the file system.
    pub reserve: Reserve,
    /// Bytes of a segment file: what is dropped at once.
    pub segment: u64,
    /// Chunks that may wait to be written; further ones are not cached.
    pub queue: usize,
    /// Bytes of chunks that may wait to be written.
    pub queue_bytes: u64,
    /// Whose chunks these are: what was put under one domain is not found under another.
    pub domain: String,
}

/// Space kept free on the file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserve {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the file system.
    Percent(f64),
}

impl Options {
    /// At most `size` bytes of chunks, 5 % of the file system kept free.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            reserve: Reserve::Percent(5.0),
            // Some 256 segments: fine enough to evict, few enough descriptors to keep them all open.
            segment: (size / 256).clamp(1 << 20, 1 << 30),
            queue: 1024,
            queue_bytes: 64 << 20,
            domain: String::new(),
        }
    }
}

/// An owned cache directory.
#[derive(Debug)]
pub struct Cache {
    /// Heads of layers.
    pub heads: Heads,
    /// Chunks; `None` where they could not be set up: fetching works without.
    pub chunks: Option<Chunks>,
}

/// The lock on the directory, held as long as any part of the cache is used.
#[derive(Debug)]
struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was just forked has the file open until it is another program.
        let _ = self.file.unlock();
    }
}

impl Cache {
    /// Takes the directory (made if it is not there), and removes what a crash left behind. Takes as long for a full
    /// cache as for an empty one, but for opening some 256 files: which chunks are in them is read in the background.
    pub fn open(dir: &Path, options: &Options, meter: &Meter) -> Result<Self> {
        fs::create_dir_all(dir).map_err(io_error(dir, "creating"))?;
        let lock = Arc::new(Lock::take(dir)?);
        check_version(dir)?;
        let heads = Heads::open(&dir.join("heads"), lock.clone())?;
        let chunks = match Chunks::open(&dir.join("chunks"), options, meter, lock) {
            Ok(chunks) => Some(chunks),
            Err(error) => {
                tracing::warn!(%error, "the chunk cache cannot be used: every miss goes to the store");
                None
            }
        };
        Ok(Self { heads, chunks })
    }
}

impl Lock {
    fn take(dir: &Path) -> Result<Self> {
        let path = dir.join("lock");
        let file = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
            // A file system that an error has made read-only still has heads and chunks to read.
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(&path),
            file => file,
        };
        let file = file.map_err(io_error(&path, "opening"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(CacheError::Locked { path: dir.to_owned() }),
            Err(e) => Err(io_error(&path, "locking")(e.into())),
        }
    }
}

/// Whether nobody owns the cache in `dir`; `Locked` when somebody does. To be asked before what a dead owner left is taken
/// away.
pub fn check_unowned(dir: &Path) -> Result<()> {
    match dir.join("lock").exists() {
        true => Lock::take(dir).map(drop),
        false => Ok(()),
    }
}

#[derive(Serialize, Deserialize)]
struct Format {
    version: u32,
}

fn check_version(dir: &Path) -> Result<()> {
    let path = dir.join("format");
    let found = match fs::read(&path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return write_version(&path);
        }
        Err(e) => return Err(io_error(&path, "reading")(e)),
    };
    match serde_json::from_slice::<Format>(&found) {
        Ok(Format { version: VERSION }) => Ok(()),
        Ok(Format { version: 1 }) => {
            start_anew(&dir.join("chunks"))?;
            write_version(&path)
        }
        _ => Err(CacheError::Version { path, found: String::from_utf8_lossy(&found).trim().to_owned() }),
    }
}

fn write_version(path: &Path) -> Result<()> {
    let text = format!("{{\"version\": {VERSION}}}\n");
    replace_file(path, &[text.as_bytes()]).map_err(io_error(path, "writing"))
}

/// Removes all chunks.
fn start_anew(chunks: &Path) -> Result<()> {
    match fs::remove_dir_all(chunks) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error(chunks, "removing")(e)),
        _ => Ok(()),
    }
}

fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError::Io { path, what, source }
}

/// First characters of files that are not finished; `Heads::open` removes them.
const UNFINISHED: &str = ".new-";

/// Writes a file so that it is there, whole, after a crash, or not at all.
fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    use std::io::Write;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_owns_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let (options, meter) = (Options::new(1 << 20), Meter::default());
        let first = Cache::open(dir.path(), &options, &meter).unwrap();
        let second = Cache::open(dir.path(), &options, &meter).unwrap_err();
        assert!(matches!(second, CacheError::Locked { .. }), "{second}");
        assert!(matches!(check_unowned(dir.path()), Err(CacheError::Locked { .. })));
        drop(first);
        check_unowned(dir.path()).unwrap();
        Cache::open(dir.path(), &options, &meter).unwrap();
    }

    #[test]
    fn a_lock_goes_with_its_owner_also_where_a_child_has_its_file_open_still() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let _child = lock.file.try_clone().unwrap();
        drop(lock);
        check_unowned(dir.path()).unwrap();
    }

    #[test]
    fn a_cache_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("format"), "{\"version\": 3}").unwrap();
        let error = Cache::open(dir.path(), &Options::new(1 << 20), &Meter::default()).unwrap_err();
        assert!(error.to_string().contains("\"version\": 3"), "{error}");
    }

    #[test]
    fn a_cache_of_the_first_version_keeps_its_heads_and_loses_its_chunks() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("format", "{\"version\": 1}"), ("heads/x", "x"), ("chunks/0000000000000001.seg", "x")] {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        }
        for _ in 0..2 {
            let cache = Cache::open(dir.path(), &Options::new(1 << 20), &Meter::default()).unwrap();
            assert_eq!(cache.chunks.unwrap().stats().segments, 0);
            assert!(dir.path().join("heads/x").exists());
        }
    }
}
