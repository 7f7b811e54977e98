//! A store that fails as it is told to: for the tests of everything that reads from one.

use super::{Listed, Pieces, Result, Stat, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // Named after the operations.
pub enum Op {
    Get,
    GetRange,
    /// A range piece by piece.
    Read,
    Stat,
    Create,
    Put,
    /// Also of a file that the store may take as it is.
    Upload,
    /// Also with sizes and times.
    List,
    Delete,
}

/// A request, as the injector sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// How many requests came before it.
    pub number: u64,
    /// What is asked.
    pub op: Op,
    /// Of which key (or prefix).
    pub key: String,
    /// Which bytes, for [`Op::GetRange`] and [`Op::Read`].
    pub range: Option<Range<u64>>,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It is forwarded.
    Pass,
    /// It is not forwarded, and fails with [`StoreError::Io`] of this kind.
    Error(io::ErrorKind),
    /// It is not forwarded; there is no such object.
    NotFound,
    /// It is not forwarded; the store asks to come back after this time, if it says when.
    Busy(Option<Duration>),
    /// It is forwarded, and then fails with [`StoreError::Io`] of this kind: done, but the answer is lost.
    ErrorAfter(io::ErrorKind),
    /// It is forwarded; the byte at this offset of the body that comes back (modulo its length) is inverted.
    WrongByte(usize),
    /// It is forwarded; only this many bytes of the body come back, against the trait's promise.
    Short(usize),
    /// It is forwarded after this time.
    Stall(Duration),
    /// It is never answered.
    Never,
    /// It is forwarded; after this many bytes of the body nothing more comes, ever. Only for [`Op::Read`]: others are
    /// never answered.
    Hang(usize),
}

type Injector = Box<dyn Fn(&Request) -> Action + Send + Sync>;

/// Asks an injector about every request.
pub struct Fault {
    inner: Arc<dyn Store>,
    injector: Injector,
    count: AtomicU64,
}

impl Fault {
    /// `inner`, with what becomes of each request decided by `injector`.
    pub fn new(inner: Arc<dyn Store>, injector: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Self {
        Self { inner, injector: Box::new(injector), count: AtomicU64::new(0) }
    }

    /// `inner`, the first requests treated as in `actions`, one each, later ones passed.
    pub fn script(inner: Arc<dyn Store>, actions: impl IntoIterator<Item = Action>) -> Self {
        let left = Mutex::new(actions.into_iter().collect::<VecDeque<_>>());
        Self::new(inner, move |_| {
            left.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(Action::Pass)
        })
    }

    /// Requests seen so far.
    pub fn requests(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Does to a request what is to be done before it is forwarded; what is left to do is returned.
    async fn before(&self, op: Op, key: &str, range: Option<Range<u64>>) -> Result<Action> {
        let number = self.count.fetch_add(1, Relaxed);
        let action = (self.injector)(&Request { number, op, key: key.to_owned(), range });
        match action {
            Action::Error(kind) => Err(self.error(key, kind)),
            Action::NotFound => Err(StoreError::NotFound { store: self.url().to_owned(), key: key.to_owned() }),
            Action::Busy(after) => {
                let what = "injected fault: come back later".to_owned();
                Err(StoreError::Busy { store: self.url().to_owned(), key: key.to_owned(), what, after })
            }
            Action::Stall(time) => {
                tokio::time::sleep(time).await;
                Ok(Action::Pass)
            }
            Action::Never => std::future::pending().await,
            Action::Hang(_) if op != Op::Read => std::future::pending().await,
            after => Ok(after),
        }
    }

    fn error(&self, key: &str, kind: io::ErrorKind) -> StoreError {
        let source = io::Error::new(kind, "injected fault");
        StoreError::Io { store: self.url().to_owned(), key: key.to_owned(), source }
    }

    /// Does what is left to do to an answer without a body.
    fn after<T>(&self, action: &Action, key: &str, answer: Result<T>) -> Result<T> {
        match action {
            Action::ErrorAfter(kind) => answer.and_then(|_| Err(self.error(key, *kind))),
            _ => answer,
        }
    }

    /// Does what is left to do to a body.
    fn body(&self, action: &Action, key: &str, answer: Result<Bytes>) -> Result<Bytes> {
        let body = self.after(action, key, answer)?;
        match action {
            Action::WrongByte(at) if !body.is_empty() => {
                let mut wrong = body.to_vec();
                let at = at % wrong.len();
                wrong[at] = !wrong[at];
                Ok(wrong.into())
            }
            Action::Short(length) => Ok(body.slice(..body.len().min(*length))),
            _ => Ok(body),
        }
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault").field("inner", &self.inner).field("requests", &self.requests()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for Fault {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        let action = self.before(Op::Get, key, None).await?;
        self.body(&action, key, self.inner.get(key).await)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let action = self.before(Op::GetRange, key, Some(range.clone())).await?;
        self.body(&action, key, self.inner.get_range(key, range).await)
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        let action = self.before(Op::Read, key, Some(range.clone())).await?;
        match action {
            Action::Pass => self.inner.read(key, range).await,
            Action::Hang(length) => {
                let kept = range.start..range.end.min(range.start + length as u64);
                let body = self.inner.read(key, kept).await?;
                Ok(body.chain(stream::pending()).boxed())
            }
            // What changes a body needs all of it.
            other => {
                let body = self.body(&other, key, self.inner.get_range(key, range).await)?;
                Ok(stream::iter([Ok(body)]).boxed())
            }
        }
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        let action = self.before(Op::Stat, key, None).await?;
        self.after(&action, key, self.inner.stat(key).await)
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        let action = self.before(Op::Create, key, None).await?;
        self.after(&action, key, self.inner.create(key, body).await)
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        let action = self.before(Op::Put, key, None).await?;
        self.after(&action, key, self.inner.put(key, body).await)
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        let action = self.before(Op::Upload, key, None).await?;
        self.after(&action, key, self.inner.upload(key, file).await)
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        let action = self.before(Op::Upload, key, None).await?;
        self.after(&action, key, self.inner.adopt(key, file).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let action = self.before(Op::List, prefix, None).await?;
        self.after(&action, prefix, self.inner.list(prefix).await)
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        let action = self.before(Op::List, prefix, None).await?;
        self.after(&action, prefix, self.inner.scan(prefix).await)
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        let action = self.before(Op::List, "", None).await?;
        self.after(&action, "", self.inner.leftovers(before, remove).await)
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        let action = self.before(Op::Delete, prefix, None).await?;
        self.after(&action, prefix, self.inner.tidy(prefix, before).await)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let action = self.before(Op::Delete, key, None).await?;
        self.after(&action, key, self.inner.delete(key).await)
    }

    async fn is_placed(&self) -> Result<bool> {
        let action = self.before(Op::Stat, "", None).await?;
        self.after(&action, "", self.inner.is_placed().await)
    }

    async fn check_writable(&self) -> Result<()> {
        let action = self.before(Op::Put, "", None).await?;
        self.after(&action, "", self.inner.check_writable().await)
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }
}
