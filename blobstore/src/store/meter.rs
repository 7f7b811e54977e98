//! A store that counts what goes through it.

use super::{Listed, Pieces, Result, Stat, Store};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// What went through a [`Metered`] store since it was made. Plain counters: each is right, together they are no
/// snapshot.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests made, whatever became of them.
    pub requests: AtomicU64,
    /// Those among them that read bodies: `get`, `get_range` and `read`.
    pub reads: AtomicU64,
    /// Requests that failed.
    pub errors: AtomicU64,
    /// Bytes of bodies read.
    pub bytes_read: AtomicU64,
    /// Bytes of bodies written.
    pub bytes_written: AtomicU64,
}

impl Counts {
    fn answered<T>(&self, answer: Result<T>) -> Result<T> {
        self.requests.fetch_add(1, Relaxed);
        self.errors.fetch_add(u64::from(answer.is_err()), Relaxed);
        answer
    }

    fn read(&self, answer: Result<Bytes>) -> Result<Bytes> {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(answer.as_ref().map_or(0, |body| body.len() as u64), Relaxed);
        self.answered(answer)
    }

    fn wrote(&self, bytes: u64, answer: Result<()>) -> Result<()> {
        self.bytes_written.fetch_add(if answer.is_ok() { bytes } else { 0 }, Relaxed);
        self.answered(answer)
    }
}

/// Forwards every request and counts it when it is answered.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Store>,
    counts: Arc<Counts>,
}

impl Metered {
    /// `inner`, counted from zero.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, counts: Arc::default() }
    }

    /// The counters, which go on counting.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }
}

#[async_trait]
impl Store for Metered {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.counts.read(self.inner.get(key).await)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.counts.read(self.inner.get_range(key, range).await)
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        self.counts.reads.fetch_add(1, Relaxed);
        let body = self.counts.answered(self.inner.read(key, range).await)?;
        let counts = self.counts.clone();
        Ok(Box::pin(body.inspect(move |piece| match piece {
            Ok(bytes) => drop(counts.bytes_read.fetch_add(bytes.len() as u64, Relaxed)),
            Err(_) => drop(counts.errors.fetch_add(1, Relaxed)),
        })))
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.counts.answered(self.inner.stat(key).await)
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        let length = body.len() as u64;
        self.counts.wrote(length, self.inner.create(key, body).await)
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        let length = body.len() as u64;
        self.counts.wrote(length, self.inner.put(key, body).await)
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        let length = tokio::fs::metadata(file).await.map_or(0, |found| found.len());
        self.counts.wrote(length, self.inner.upload(key, file).await)
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        let length = tokio::fs::metadata(file).await.map_or(0, |found| found.len());
        self.counts.wrote(length, self.inner.adopt(key, file).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.counts.answered(self.inner.list(prefix).await)
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.counts.answered(self.inner.scan(prefix).await)
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        self.counts.answered(self.inner.leftovers(before, remove).await)
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        self.counts.answered(self.inner.tidy(prefix, before).await)
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.counts.answered(self.inner.delete(key).await)
    }

    async fn is_placed(&self) -> Result<bool> {
        self.counts.answered(self.inner.is_placed().await)
    }

    async fn check_writable(&self) -> Result<()> {
        self.counts.answered(self.inner.check_writable().await)
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }
}
