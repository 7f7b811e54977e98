//! Where layer files and references lie.
//!
//! [`Store`] is as narrow as a bucket: whole objects, ranges, exclusive creation, listing. Every backend passes the
//! same conformance suite; policy (retry, metering, delay, faults) comes as decorators that forward everything.
//!
//! * [`open`], [`open_with`]: a URL and [`Settings`] to the store it names.
//! * [`FileStore`]: a directory. [`ThreeFsStore`]: one on a 3FS mount. [`S3Store`]: a bucket. [`HttpStore`]: a web server's
//!   directory, read-only.
//! * [`conformance`]: what every backend must do, as code.
//! * [`Retry`], [`Metered`], [`Delay`], [`Fault`]: decorators.
//!
//! Stores know bytes under keys: not what a layer or a reference is, and nothing is trusted for having come from one.

mod body;
mod client;
pub mod conformance;
mod connections;
mod delay;
mod fault;
mod file;
mod identity;
mod key;
mod meter;
mod open;
mod refusal;
mod retry;
mod s3;
mod settings;
mod threefs;
mod unfinished;
mod web;

pub use delay::Delay;
pub use fault::{Action, Fault, Op, Request};
pub use file::FileStore;
pub use key::{TEMPORARY, check_key, check_prefix};
pub use meter::{Counts, Metered};
pub use open::{open, open_with};
pub use retry::Retry;
pub use s3::S3Store;
pub use settings::{Environment, S3Settings, Secret, Settings};
pub use threefs::{ThreeFsStore, USRBIO_LIBRARY};
pub use web::HttpStore;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Longest object that is read whole: the small ones are meant, and this is some hundred times the largest of them.
const WHOLE_MAX: u64 = 256 << 20;

/// What a store says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub size: u64,
    /// When it was last written, by the store's clock.
    pub modified: SystemTime,
}

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its size and time.
    pub stat: Stat,
}

/// Why a store could not do what was asked. The key and the store's URL stand in the text.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No object under this key.
    #[error("{store}: {key}: no such object")]
    NotFound {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
    },
    /// [`Store::create`] or [`Store::upload`] found the key taken.
    #[error("{store}: {key}: exists already")]
    AlreadyExists {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
    },
    /// The answer is not what was asked for: a short body, a range past the end.
    #[error("{store}: {key}: {what}")]
    Answer {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// A key or URL that no store of this kind can have, or an operation it does not do.
    #[error("{store}: {what}")]
    Unsupported {
        /// URL of the store.
        store: String,
        /// What was asked.
        what: String,
    },
    /// The store does not let us: credentials are missing, wrong or over, or do not allow this.
    #[error("{store}: {key}: access denied: {what}")]
    Denied {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
        /// What the store says.
        what: String,
    },
    /// The store cannot answer now; trying again later should help.
    #[error("{store}: {key}: {what}")]
    Busy {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
        /// What the store says.
        what: String,
        /// How long it asks to wait.
        after: Option<Duration>,
    },
    /// There is no such bucket.
    #[error("{store}: there is no such bucket: {what}")]
    NoStore {
        /// URL of the store.
        store: String,
        /// What the service says.
        what: String,
    },
    /// The local file that was to be stored could not be read.
    #[error("{}: {source}", path.display())]
    Local {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The input or output itself failed; trying again may help.
    #[error("{store}: {key}: {source}")]
    Io {
        /// URL of the store.
        store: String,
        /// Key of the object.
        key: String,
        /// What the system or the transport said.
        source: std::io::Error,
    },
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A body as it comes: pieces of any size, in order.
pub type Pieces = BoxStream<'static, Result<Bytes>>;

/// A bucket or a directory. Keys are relative paths of `/`-separated, non-empty parts without `.` and `..`
/// ([`check_key`] has the rule); another key is [`StoreError::Unsupported`]. A key that is the folder of another
/// (`a` and `a/b`) is not to be used: a bucket can hold both, a directory cannot.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The store's URL, for messages and metrics. No secrets.
    fn url(&self) -> &str;

    /// A whole object: for the small ones (references, manifests).
    async fn get(&self, key: &str) -> Result<Bytes>;

    /// Exactly the bytes of `range`; a range that reaches past the end is an error.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes>;

    /// As [`Store::get_range`], the bytes as they come, so that the first of a long range can be used before the last
    /// are here. What is wrong with the range is an error at once or in place of a piece. A store whose answers come
    /// whole need not do anything about it.
    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        let whole = self.get_range(key, range).await?;
        Ok(Box::pin(stream::once(std::future::ready(Ok(whole)))))
    }

    /// Size and time of an object.
    async fn stat(&self, key: &str) -> Result<Stat>;

    /// Creates an object, durably; [`StoreError::AlreadyExists`] when there is one, which is then untouched.
    async fn create(&self, key: &str, body: Bytes) -> Result<()>;

    /// Creates or replaces an object, durably and atomically.
    async fn put(&self, key: &str, body: Bytes) -> Result<()>;

    /// Creates an object from a local file, durably; as [`Store::create`] otherwise.
    async fn upload(&self, key: &str, file: &Path) -> Result<()>;

    /// As [`Store::upload`], of a file that nobody will write to again: a store on the same file system may take the file
    /// itself, under a second name, as modified now. Its first name stays.
    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        self.upload(key, file).await
    }

    /// Keys that start with `prefix` (which ends in `/` or is empty), recursively, in byte order. Objects that are
    /// being written are not among them.
    async fn list(&self, prefix: &str) -> Result<Vec<String>>;

    /// As [`Store::list`], with the size and time of each. Of a bucket that costs nothing more.
    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        for key in self.list(prefix).await? {
            match self.stat(&key).await {
                Ok(stat) => found.push(Listed { key, stat }),
                // Deleted since it was listed.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// What killed writers have left, that was last written before a moment by the store's clock: no objects, and not in
    /// listings. Gives their names, whatever they look like; with `remove`, they are gone then. A bucket shows none: it has
    /// rules of its own for uploads that came to no end.
    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        let _ = (before, remove);
        Ok(Vec::new())
    }

    /// Takes away what is left of deleted objects whose keys began with `prefix` (as for [`Store::list`]), and has not changed
    /// since a moment: empty directories.
    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        let _ = (prefix, before);
        Ok(())
    }

    /// Removes an object; one that is not there is no error.
    async fn delete(&self, key: &str) -> Result<()>;

    /// Whether there is a place for objects: a directory can be missing, which its listings do not tell from an empty one.
    /// That of a bucket is told by every request ([`StoreError::NoStore`]).
    async fn is_placed(&self) -> Result<bool> {
        Ok(true)
    }

    /// An error where this process could write nothing, as far as that can be known before it does: for who has long work
    /// to do first. No object comes of it.
    async fn check_writable(&self) -> Result<()>;

    /// Waits until what callers began, and went away from, is taken back: for a process that is about to end.
    async fn settle(&self) {}
}
