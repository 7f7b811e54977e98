//! A store whose bodies come slowly and steadily.

use async_trait::async_trait;
use blobstore::store::{Pieces, Result, Stat, Store};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Forwards everything; of the body of a [`Store::read`], so many bytes come at a time, each after a pause.
#[derive(Debug)]
pub struct Trickle {
    inner: Arc<dyn Store>,
    bytes: usize,
    pause: Duration,
}

impl Trickle {
    pub fn new(inner: Arc<dyn Store>, bytes: usize, pause: Duration) -> Self {
        Self { inner, bytes, pause }
    }
}

#[async_trait]
impl Store for Trickle {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(key, range).await
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        let (whole, bytes, pause) = (self.inner.get_range(key, range).await?, self.bytes, self.pause);
        let pieces = (0..whole.len()).step_by(bytes).map(move |at| whole.slice(at..whole.len().min(at + bytes)));
        let slowly = stream::iter(pieces).then(move |piece| async move {
            tokio::time::sleep(pause).await;
            Ok(piece)
        });
        Ok(slowly.boxed())
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.inner.stat(key).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.put(key, body).await
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        self.inner.upload(key, file).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list(prefix).await
    }

    async fn check_writable(&self) -> Result<()> {
        self.inner.check_writable().await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.inner.delete(key).await
    }
}
