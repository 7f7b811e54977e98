//! A directory on a 3FS mount as a store: `3fs:///MOUNT/DIR`.
//!
//! Written as any directory is ([`FileStore`]). Read past the page cache, in large aligned pieces and several at once
//! ([`direct`]): 3FS's own cache is remote flash, and what the kernel kept of it would be kept twice, since chunks go
//! into the node's cache and decoded ones into memory. Where the file system takes no direct reads, they are ordinary ones.
//! With [`Settings::usrbio`], 3FS's own process reads instead of the kernel ([`usrbio`]).

mod direct;
mod usrbio;

use super::file::FileStore;
use super::settings::Settings;
use super::{Listed, Result, Stat, Store, StoreError, check_key};
use async_trait::async_trait;
use bytes::Bytes;
use direct::Direct;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use usrbio::Usrbio;

/// The name of 3FS's user-space library, as the system's loader finds it.
pub const USRBIO_LIBRARY: &str = "libhf3fs_api_shared.so";

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ThreeFsStore {
    files: FileStore,
    root: PathBuf,
    reader: Arc<Reader>,
}

/// How ranges are read.
#[derive(Debug)]
enum Reader {
    Direct(Direct),
    Usrbio(Box<Usrbio>),
}

impl Reader {
    /// The bytes of a range, or the file's size where the range reaches past it.
    fn read(&self, path: &Path, range: Range<u64>) -> io::Result<std::result::Result<Bytes, u64>> {
        match self {
            Self::Direct(direct) => direct.read(path, range),
            Self::Usrbio(usrbio) => usrbio.read(path, range),
        }
    }
}

impl ThreeFsStore {
    /// The store in `root`, an absolute path. The directory is made by the first write.
    pub fn new(root: impl Into<PathBuf>, settings: &Settings) -> Result<Self> {
        let root: PathBuf = root.into().components().collect();
        let files = FileStore::with_scheme("3fs", &root);
        let reader = match &settings.usrbio {
            None => Reader::Direct(Direct::new()),
            Some(library) => {
                let refuse = |e| StoreError::Unsupported {
                    store: files.url().to_owned(),
                    what: format!("[store] usrbio: cannot load 3FS's library {}: {e}", library.display()),
                };
                Reader::Usrbio(Box::new(Usrbio::new(library, &root).map_err(refuse)?))
            }
        };
        Ok(Self { files, root, reader: Arc::new(reader) })
    }

    fn error(&self, key: &str, source: io::Error) -> StoreError {
        let (store, key) = (self.url().to_owned(), key.to_owned());
        match source.kind() {
            // A part of the key that is a file is no directory for the rest of it.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotFound { store, key },
            _ => StoreError::Io { store, key, source },
        }
    }
}

#[async_trait]
impl Store for ThreeFsStore {
    fn url(&self) -> &str {
        self.files.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.files.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        check_key(self.url(), key)?;
        let (reader, path, asked) = (self.reader.clone(), self.root.join(key), range.clone());
        let read = tokio::task::spawn_blocking(move || reader.read(&path, asked)).await;
        match read.unwrap_or_else(|e| Err(io::Error::other(e))) {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(size)) => {
                let what = format!("bytes {}..{} of an object of {size}", range.start, range.end);
                Err(StoreError::Answer { store: self.url().to_owned(), key: key.to_owned(), what })
            }
            Err(source) => Err(self.error(key, source)),
        }
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.files.stat(key).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.files.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.files.put(key, body).await
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        self.files.upload(key, file).await
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        self.files.adopt(key, file).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.files.list(prefix).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.files.scan(prefix).await
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        self.files.leftovers(before, remove).await
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        self.files.tidy(prefix, before).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.files.delete(key).await
    }

    async fn is_placed(&self) -> Result<bool> {
        self.files.is_placed().await
    }

    async fn check_writable(&self) -> Result<()> {
        self.files.check_writable().await
    }

    async fn settle(&self) {
        self.files.settle().await;
    }
}
