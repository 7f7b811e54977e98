//! Reading and writing single objects: envelopes, create-if-absent, replacement, and the memory of sequences seen.

use super::Refs;
use super::envelope::{Document, Header, open, seal};
use super::error::{Error, Result};
use crate::store::StoreError;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(test)]
thread_local! {
    /// What a test says that the time is, on its thread.
    pub(crate) static NOW: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    #[cfg(test)]
    if let Some(now) = NOW.get() {
        return now;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Refs {
    /// The object at `key`, checked, or `None`.
    pub(crate) async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<Document<T>>> {
        self.read_in_series(key, key).await
    }

    /// The object at `key`; its sequence must not be below one seen for `series`.
    pub(super) async fn read_in_series<T: DeserializeOwned>(
        &self,
        key: &str,
        series: &str,
    ) -> Result<Option<Document<T>>> {
        self.check_format().await?;
        let stored = match self.store.get(key).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let document = open(key, &stored)?;
        self.see(series, document.header.sequence)?;
        Ok(Some(document))
    }

    /// Creates `body` at `key`, or gives the one that is there: the loser of a race takes the winner's. One that is damaged
    /// is replaced.
    pub(super) async fn create_or_take<T>(&self, key: &str, body: &T) -> Result<Document<T>>
    where
        T: Serialize + DeserializeOwned + Clone,
    {
        self.create_or_find(key, body).await.map(|mine| mine.unwrap_or_else(|theirs| theirs))
    }

    /// The same for a body that is read as another type than it is written as: `Err` is the winner's.
    pub(super) async fn create_or_find<B, T>(
        &self,
        key: &str,
        body: &B,
    ) -> Result<std::result::Result<Document<B>, Document<T>>>
    where
        B: Serialize + Clone,
        T: DeserializeOwned,
    {
        self.init().await?;
        // Twice: what made the creation fail can have been removed before it is read.
        for _ in 0..2 {
            match self.read(key).await {
                Ok(Some(theirs)) => return Ok(Err(theirs)),
                Ok(None) => {}
                Err(error) if error.is_damaged() => {
                    tracing::warn!(%error, "an object that cannot be read is replaced");
                    return self.replace(key, body).await.map(Ok);
                }
                Err(error) => return Err(error),
            }
            if let Some(mine) = self.create(key, fresh(None), body).await? {
                self.see(key, mine.header.sequence)?;
                return Ok(Ok(mine));
            }
        }
        let theirs = self.read(key).await?.ok_or_else(|| Error::Contended { key: key.to_owned(), times: 2 });
        theirs.map(Err)
    }

    /// Creates `body` at `key`; `None` when the key is taken.
    pub(super) async fn create<T: Serialize + Clone>(
        &self,
        key: &str,
        sequence: u64,
        body: &T,
    ) -> Result<Option<Document<T>>> {
        let header = Header::new(key, sequence, now());
        let stored = seal(&header, body)?;
        match self.store.create(key, Bytes::from(stored)).await {
            Err(StoreError::AlreadyExists { .. }) => Ok(None),
            other => {
                other?;
                let body = body.clone();
                Ok(Some(Document { header, body }))
            }
        }
    }

    /// Writes `body` at `key` whatever is there, with a higher sequence.
    pub(super) async fn replace<T>(&self, key: &str, body: &T) -> Result<Document<T>>
    where
        T: Serialize + Clone,
    {
        self.init().await?;
        // Only the header of what is there is of interest, and something unreadable may be replaced, too.
        let before = match self.read::<serde_json::Value>(key).await {
            Ok(document) => document.map(|d| d.header.sequence),
            Err(e @ (Error::Store(_) | Error::Unsupported { .. })) => return Err(e),
            Err(_) => None,
        };
        let header = Header::new(key, fresh(before.max(self.seen(key))), now());
        let stored = seal(&header, body)?;
        self.store.put(key, Bytes::from(stored)).await?;
        self.see(key, header.sequence)?;
        let body = body.clone();
        Ok(Document { header, body })
    }

    /// Takes note of a sequence; one below what was seen is refused.
    pub(super) fn see(&self, key: &str, sequence: u64) -> Result<()> {
        let mut seen = self.lock_seen();
        let highest = seen.entry(key.to_owned()).or_insert(sequence);
        if sequence < *highest {
            return Err(Error::Older { key: key.to_owned(), sequence, seen: *highest });
        }
        *highest = sequence;
        Ok(())
    }

    /// The highest sequence seen for `key`.
    pub(super) fn seen(&self, key: &str) -> Option<u64> {
        self.lock_seen().get(key).copied()
    }
}

/// The sequence of an object that is no part of a series: the clock's seconds, or one more than before where that is
/// higher. So a ref that was removed and is written anew does not start behind what nodes have seen.
fn fresh(before: Option<u64>) -> u64 {
    now().max(before.map_or(1, |b| b.saturating_add(1)))
}
