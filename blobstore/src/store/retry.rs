//! A store whose short troubles pass unnoticed.
//!
//! Tries again what got no answer or was asked to come later, a few times within seconds; whoever can wait longer asks
//! again. Uploads are not begun again here: backends try again what they are made of. A creation whose first answer was lost
//! finds what it has made itself, and says that it exists: callers look at what is there in any case.

use super::{Listed, Pieces, Result, Stat, Store, StoreError};
use crate::pause::pause;
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often one thing is tried.
const TRIES: u32 = 4;

/// Before the second try; it doubles with each.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause, whatever a server asks for: longer ones are the caller's to make.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The longest pauses for a range, together: who reads chunks waits ten seconds for an attempt, then comes back by himself, and
/// is to hear why there was no answer.
const RANGE_PAUSES: Duration = Duration::from_secs(6);

/// Does something, and again while another try can help.
pub(super) async fn tried<T, F>(once: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    tried_within(Duration::MAX, once).await
}

/// As [`tried`], with pauses of so long together.
async fn tried_within<T, F>(mut pauses: Duration, once: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut tries = 1;
    loop {
        match once().await {
            Err(error) if tries < TRIES && waited_within(&mut pauses, &error, tries).await => tries += 1,
            last => return last,
        }
    }
}

/// Waits as long as is due after so many tries, where another can help; says no at once where not.
pub(super) async fn waited(error: &StoreError, tries: u32) -> bool {
    let mut left = Duration::MAX;
    waited_within(&mut left, error, tries).await
}

/// As [`waited`], where that much time is left; it is less then.
async fn waited_within(left: &mut Duration, error: &StoreError, tries: u32) -> bool {
    let Some(least) = passing(error).filter(|least| *least <= PAUSE_MAX) else { return false };
    let pause = pause(PAUSE, PAUSE_MAX, tries).max(least);
    let Some(rest) = left.checked_sub(pause) else { return false };
    *left = rest;
    tracing::debug!(%error, tries, "trying again");
    tokio::time::sleep(pause).await;
    true
}

/// How long to wait at least before another try, where one can help.
fn passing(error: &StoreError) -> Option<Duration> {
    match error {
        StoreError::Busy { after, .. } => Some(after.unwrap_or_default()),
        StoreError::Io { .. } => Some(Duration::ZERO),
        _ => None,
    }
}

/// See the module.
#[derive(Debug)]
pub struct Retry {
    inner: Arc<dyn Store>,
}

impl Retry {
    /// `inner`, with short troubles tried again.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl Store for Retry {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        tried(|| self.inner.get(key)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        tried_within(RANGE_PAUSES, || self.inner.get_range(key, range.clone())).await
    }

    /// A body that breaks off is the caller's: it knows what it has had of it.
    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        tried_within(RANGE_PAUSES, || self.inner.read(key, range.clone())).await
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        tried(|| self.inner.stat(key)).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        tried(|| self.inner.create(key, body.clone())).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        tried(|| self.inner.put(key, body.clone())).await
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        self.inner.upload(key, file).await
    }

    async fn adopt(&self, key: &str, file: &Path) -> Result<()> {
        self.inner.adopt(key, file).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        tried(|| self.inner.list(prefix)).await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        tried(|| self.inner.scan(prefix)).await
    }

    async fn leftovers(&self, before: SystemTime, remove: bool) -> Result<Vec<Listed>> {
        self.inner.leftovers(before, remove).await
    }

    async fn tidy(&self, prefix: &str, before: SystemTime) -> Result<()> {
        self.inner.tidy(prefix, before).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        tried(|| self.inner.delete(key)).await
    }

    async fn is_placed(&self) -> Result<bool> {
        tried(|| self.inner.is_placed()).await
    }

    async fn check_writable(&self) -> Result<()> {
        tried(|| self.inner.check_writable()).await
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }
}
