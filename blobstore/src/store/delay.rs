//! A store that answers later: the network's part in benchmarks and tests.

use super::{Listed, Pieces, Result, Stat, Store};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Forwards every request after a fixed time; requests do not wait for each other.
#[derive(Debug)]
pub struct Delay {
    inner: Arc<dyn Store>,
    each: Duration,
}

impl Delay {
    /// `inner`, each request `each` later.
    pub fn new(inner: Arc<dyn Store>, each: Duration) -> Self {
        Self { inner, each }
    }

    async fn wait(&self) -> &dyn Store {
        tokio::time::sleep(self.each).await;
        &*self.inner
    }
}

#[async_trait]
impl Store for Delay {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.wait().await.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.wait().await.get_range(key, range).await
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        self.wait().await.read(key, range).await
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.wait().await.stat(key).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.wait().await.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.wait().await.put(key, body).await
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        self.wait().await.upload(key, file).await
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        self.wait().await.adopt(key, file).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.wait().await.list(prefix).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.wait().await.scan(prefix).await
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        self.wait().await.leftovers(before, remove).await
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        self.wait().await.tidy(prefix, before).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.wait().await.delete(key).await
    }

    async fn is_placed(&self) -> Result<bool> {
        self.wait().await.is_placed().await
    }

    async fn check_writable(&self) -> Result<()> {
        self.wait().await.check_writable().await
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }
}
