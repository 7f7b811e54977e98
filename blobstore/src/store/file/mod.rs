//! A directory as a store: each object a file, each key its path below the root.
//!
//! Reads go through kept descriptors; blocking calls run on tokio's blocking threads. Objects are written under a
//! temporary name in their own directory, synced, then linked (exclusively) or renamed (replacing), and the directory
//! is synced: readers see all of an object or nothing, also after a power cut. What a crash leaves behind is a
//! temporary name, which is never listed. Directories that have long been empty are removed by [`Store::tidy`]. Symbolic links
//! below the root are followed when a key is read, and not listed; the root itself may be one.

pub(super) mod descriptors;
mod directories;
mod list;
mod write;

use super::unfinished::Unfinished;
use super::{Listed, Pieces, Result, Stat, Store, StoreError, WHOLE_MAX, check_key, check_prefix};
use async_trait::async_trait;
use bytes::Bytes;
use descriptors::Descriptors;
use futures_util::StreamExt;
use futures_util::stream;
use rustix::buffer::spare_capacity;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use write::Wanted;

/// Bytes read at a time where a body is asked for in pieces: most chunks are one.
const PIECE: u64 = 512 << 10;

/// What is written first, whatever is: what messages name of a store that takes no writes.
const FIRST: &str = "format";

/// A store in a directory; see the module.
#[derive(Debug, Clone)]
pub struct FileStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    root: PathBuf,
    descriptors: Descriptors,
    /// Writes: whoever waited for one may have gone away.
    writes: Unfinished,
}

impl FileStore {
    /// The store in `root`, an absolute path. The directory is made by the first write.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::with_scheme("file", root)
    }

    /// The same, under a URL of another scheme.
    pub(super) fn with_scheme(scheme: &str, root: impl Into<PathBuf>) -> Self {
        // Components drop a slash at the end: one directory, one URL.
        let root: PathBuf = root.into().components().collect();
        let url = format!("{scheme}://{}", root.display());
        Self { inner: Arc::new(Inner { url, root, descriptors: Descriptors::new(), writes: Unfinished::default() }) }
    }

    /// Runs `work` on a blocking thread with the key checked; its `io::Error`s are told with store and key.
    async fn blocking<T, F>(&self, key: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner, &str) -> Result<T> + Send + 'static,
    {
        check_key(&self.inner.url, key)?;
        self.spawn(key, work).await
    }

    /// The same, for what writes: it ends early when nobody waits for it any more.
    async fn writing<F>(&self, key: &str, work: F) -> Result<()>
    where
        F: FnOnce(&Inner, &str, &Wanted) -> Result<()> + Send + 'static,
    {
        let (wanted, task) = (Wanted::default(), self.inner.writes.begin());
        let _waiting = wanted.until_dropped();
        let work = move |inner: &Inner, key: &str| {
            let _task = task;
            work(inner, key, &wanted)
        };
        self.blocking(key, work).await
    }

    async fn spawn<T, F>(&self, key: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner, &str) -> Result<T> + Send + 'static,
    {
        let (inner, owned) = (self.inner.clone(), key.to_owned());
        let ended = tokio::task::spawn_blocking(move || work(&inner, &owned)).await;
        ended.unwrap_or_else(|error| Err(self.inner.error(key, io::Error::other(error))))
    }
}

impl Inner {
    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// The kinds that callers act on, from what the system said.
    fn error(&self, key: &str, source: io::Error) -> StoreError {
        let (store, key) = (self.url.clone(), key.to_owned());
        match source.kind() {
            // A part of the key that is a file is no directory for the rest of it.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotFound { store, key },
            io::ErrorKind::AlreadyExists => StoreError::AlreadyExists { store, key },
            _ => StoreError::Io { store, key, source },
        }
    }

    /// As [`Inner::error`], for writing: that a directory is missing is no missing object.
    fn write_error(&self, key: &str, source: io::Error) -> StoreError {
        match source.kind() {
            io::ErrorKind::AlreadyExists => self.error(key, source),
            _ => StoreError::Io { store: self.url.clone(), key: key.to_owned(), source },
        }
    }

    fn get(&self, key: &str) -> io::Result<Bytes> {
        let mut file = descriptors::open_object(&self.path(key))?;
        let mut body = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&mut file, WHOLE_MAX + 1), &mut body)?;
        match body.len() as u64 > WHOLE_MAX {
            true => Err(io::Error::other(format!("more than {WHOLE_MAX} bytes, too many to be read at once"))),
            false => Ok(body.into()),
        }
    }

    fn get_range(&self, key: &str, range: &Range<u64>) -> Result<Bytes> {
        let (file, size) = self.descriptors.get(&self.path(key)).map_err(|error| self.error(key, error))?;
        if range.start > range.end || range.end > size {
            let what = format!("bytes {}..{} of an object of {size}", range.start, range.end);
            return Err(StoreError::Answer { store: self.url.clone(), key: key.to_owned(), what });
        }
        // Fits: it is at most the length of a file whose bytes are about to be in memory.
        let length = (range.end - range.start) as usize;
        let body = read_exact_at(&file, range.start, length).map_err(|error| self.error(key, error))?;
        Ok(body.into())
    }

    fn stat(&self, key: &str) -> io::Result<Stat> {
        let found = std::fs::metadata(self.path(key))?;
        match found.is_file() {
            true => Ok(Stat { size: found.len(), modified: found.modified()? }),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn delete(&self, key: &str) -> io::Result<()> {
        let path = self.path(key);
        self.descriptors.forget(&path);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        match directories::sync(path.parent().unwrap_or(&self.root)) {
            // A collector has removed it, which was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced,
        }
    }
}

/// Opens the file that is to be stored.
fn open_local(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| StoreError::Local { path: path.to_owned(), source })
}

/// Whether there is no object, as far as deleting it is concerned.
fn gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory)
}

/// So many bytes of a file, into memory that nobody filled with zeros before.
fn read_exact_at(file: &File, mut at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => at += count as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The allocator may have given room for more.
    bytes.truncate(length);
    Ok(bytes)
}

#[async_trait]
impl Store for FileStore {
    fn url(&self) -> &str {
        &self.inner.url
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.blocking(key, |inner, key| inner.get(key).map_err(|error| inner.error(key, error))).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.blocking(key, move |inner, key| inner.get_range(key, &range)).await
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        let end = range.end;
        let first = self.get_range(key, range.start..end.min(range.start.saturating_add(PIECE))).await?;
        let at = range.start + first.len() as u64;
        let (store, key) = (self.clone(), key.to_owned());
        let rest = stream::unfold(at, move |at| {
            let (store, key) = (store.clone(), key.clone());
            async move {
                let to = end.min(at.saturating_add(PIECE));
                (at < end).then_some(())?;
                Some(match store.get_range(&key, at..to).await {
                    Ok(piece) => (Ok(piece), to),
                    Err(error) => (Err(error), end),
                })
            }
        });
        Ok(Box::pin(stream::once(std::future::ready(Ok(first))).chain(rest)))
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.blocking(key, |inner, key| inner.stat(key).map_err(|error| inner.error(key, error))).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.writing(key, move |inner, key, wanted| {
            let written = write::create(&inner.root, &inner.path(key), &mut &body[..], wanted);
            written.map_err(|error| inner.write_error(key, error))
        })
        .await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.writing(key, move |inner, key, wanted| {
            let path = inner.path(key);
            let written = write::replace(&inner.root, &path, &mut &body[..], wanted);
            written.map_err(|error| inner.write_error(key, error))?;
            inner.descriptors.forget(&path);
            Ok(())
        })
        .await
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        let local = file.to_owned();
        self.writing(key, move |inner, key, wanted| {
            let mut source = open_local(&local)?;
            let written = write::create(&inner.root, &inner.path(key), &mut source, wanted);
            written.map_err(|error| inner.write_error(key, error))
        })
        .await
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        let local = file.to_owned();
        self.writing(key, move |inner, key, wanted| {
            let source = open_local(&local)?;
            let adopted = write::adopt(&inner.root, &inner.path(key), &local, &source, wanted);
            adopted.map_err(|error| inner.write_error(key, error))
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(&self.inner.url, prefix)?;
        self.spawn(prefix, |inner, prefix| list::keys(&inner.root, prefix).map_err(|error| inner.error(prefix, error)))
            .await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        check_prefix(&self.inner.url, prefix)?;
        self.spawn(prefix, |inner, prefix| {
            list::objects(&inner.root, prefix).map_err(|error| inner.error(prefix, error))
        })
        .await
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        self.spawn("", move |inner, key| {
            list::leftovers(&inner.root, before, remove).map_err(|error| inner.error(key, error))
        })
        .await
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        check_prefix(&self.inner.url, prefix)?;
        self.spawn(prefix, move |inner, prefix| {
            let removed = directories::remove_all_empty(&inner.root, prefix, before);
            removed.map_err(|error| inner.error(prefix, error))
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.blocking(key, |inner, key| inner.delete(key).map_err(|error| inner.error(key, error))).await
    }

    async fn is_placed(&self) -> Result<bool> {
        self.spawn("", |inner, _| Ok(inner.root.is_dir())).await
    }

    async fn check_writable(&self) -> Result<()> {
        self.spawn(FIRST, |inner, key| {
            write::check_writable(&inner.root).map_err(|error| inner.write_error(key, error))
        })
        .await
    }

    async fn settle(&self) {
        self.inner.writes.settled().await;
    }
}
