//! Movable names: series of objects `<prefix><sequence>`, created exclusively, of which the highest wins.
//!
//! So a name moves without compare-and-swap, and its history stays. Sequences start at 1 and are written with ten
//! digits (more when they need more), so that listings are in order. Beside them lies `<prefix>latest`,
//! `{"sequence": n}`: a hint, for stores that cannot list. A reader starts there and looks upwards; a writer never goes
//! below it, so that a series whose objects were removed goes on where it was.

use super::Refs;
use super::envelope::Document;
use super::error::{Error, Result};
use crate::store::StoreError;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often a writer tries to be first at a sequence.
const ATTEMPTS: u32 = 32;

/// How far a reader without listing looks upwards from the hint.
const LOOK_UP: u64 = 10_000;

#[derive(Serialize, Deserialize)]
struct Latest {
    sequence: u64,
}

fn key(prefix: &str, sequence: u64) -> String {
    format!("{prefix}{sequence:010}")
}

/// The sequence in a key of the series; other objects beside it (`latest`) have none.
fn parse(prefix: &str, listed: &str) -> Option<u64> {
    let sequence = listed.strip_prefix(prefix)?.parse().ok()?;
    (key(prefix, sequence) == listed).then_some(sequence)
}

/// Prefix and sequence of a key that is of some series.
pub(crate) fn split(listed: &str) -> Option<(&str, u64)> {
    let at = listed.rfind('/')? + 1;
    let (prefix, _) = listed.split_at(at);
    parse(prefix, listed).map(|sequence| (prefix, sequence))
}

impl Refs {
    /// The object of a series with the highest sequence.
    pub(super) async fn newest<T: DeserializeOwned>(&self, prefix: &str) -> Result<Option<Document<T>>> {
        let highest = self.highest(prefix).await?;
        self.top(prefix, highest).await
    }

    async fn top<T: DeserializeOwned>(&self, prefix: &str, highest: Option<u64>) -> Result<Option<Document<T>>> {
        match highest {
            Some(sequence) => self.member(prefix, sequence).await,
            None => Ok(None),
        }
    }

    /// All sequences of a series, ascending. Empty where the store cannot list.
    pub(super) async fn sequences(&self, prefix: &str) -> Result<Option<Vec<u64>>> {
        match self.store.list(prefix).await {
            Ok(keys) => {
                let mut found: Vec<u64> = keys.iter().filter_map(|k| parse(prefix, k)).collect();
                found.sort_unstable();
                Ok(Some(found))
            }
            Err(StoreError::Unsupported { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Puts `body` on top of a series, unless what is on top says the same; gives the sequence it has. What is damaged is
    /// no object that says something: above it, nobody reads it any more.
    pub(super) async fn append<T>(&self, prefix: &str, body: &T) -> Result<u64>
    where
        T: Serialize + DeserializeOwned + Clone + PartialEq,
    {
        self.init().await?;
        for _ in 0..ATTEMPTS {
            let highest = self.highest(prefix).await?;
            let top = match self.top::<T>(prefix, highest).await {
                Err(error) if error.is_damaged() => {
                    tracing::warn!(%error, "a name that cannot be read is written anew");
                    None
                }
                top => top?,
            };
            if let Some(top) = top.as_ref().filter(|top| top.body == *body) {
                return Ok(top.header.sequence);
            }
            let below = [highest, self.hint(prefix).await?, self.seen(prefix)];
            let sequence = below.into_iter().flatten().max().unwrap_or(0).saturating_add(1);
            if self.create(&key(prefix, sequence), sequence, body).await?.is_some() {
                self.see(prefix, sequence)?;
                self.put_hint(prefix, sequence).await?;
                return Ok(sequence);
            }
        }
        Err(Error::Contended { key: prefix.to_owned(), times: ATTEMPTS })
    }

    /// Removes all objects of a series but its hint, the highest last, so that readers see it whole or not at all.
    pub(super) async fn remove_series(&self, prefix: &str) -> Result<()> {
        for sequence in self.sequences(prefix).await?.unwrap_or_default() {
            self.store.delete(&key(prefix, sequence)).await?;
        }
        Ok(())
    }

    /// The newest of each series below `root`, `at_once` of them asked for at a time. Those that are removed meanwhile
    /// are left out.
    pub(crate) async fn newest_below<T: DeserializeOwned>(
        &self,
        root: &str,
        at_once: usize,
    ) -> Result<Vec<(String, T)>> {
        self.check_format().await?;
        let mut tops: BTreeMap<String, u64> = BTreeMap::new();
        for (prefix, sequence) in self.store.list(root).await?.iter().filter_map(|key| split(key)) {
            let top = tops.entry(prefix.to_owned()).or_default();
            *top = sequence.max(*top);
        }
        let read = |(prefix, sequence): (String, u64)| async move {
            let found = match self.member::<T>(&prefix, sequence).await? {
                None => self.newest::<T>(&prefix).await?,
                found => found,
            };
            Ok::<_, Error>(found.map(|document| (prefix, document.body)))
        };
        let all: Vec<_> = stream::iter(tops).map(read).buffer_unordered(at_once).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }

    async fn member<T: DeserializeOwned>(&self, prefix: &str, sequence: u64) -> Result<Option<Document<T>>> {
        let key = key(prefix, sequence);
        let document = self.read_in_series::<T>(&key, prefix).await?;
        match &document {
            Some(d) if d.header.sequence != sequence => {
                Err(Error::malformed(&key, format!("it says it is number {}", d.header.sequence)))
            }
            _ => Ok(document),
        }
    }

    async fn highest(&self, prefix: &str) -> Result<Option<u64>> {
        if let Some(listed) = self.sequences(prefix).await? {
            return Ok(listed.last().copied());
        }
        let start = self.hint(prefix).await?.unwrap_or(1);
        let mut highest = None;
        for sequence in start..start.saturating_add(LOOK_UP) {
            match self.store.stat(&key(prefix, sequence)).await {
                Ok(_) => highest = Some(sequence),
                Err(StoreError::NotFound { .. }) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(highest)
    }

    async fn hint(&self, prefix: &str) -> Result<Option<u64>> {
        match self.store.get(&format!("{prefix}latest")).await {
            // Only a hint: garbage is as good as none.
            Ok(body) => Ok(serde_json::from_slice::<Latest>(&body).ok().map(|l| l.sequence)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    async fn put_hint(&self, prefix: &str, sequence: u64) -> Result<()> {
        let key = format!("{prefix}latest");
        let body = serde_json::to_vec(&Latest { sequence }).map_err(|e| Error::malformed(&key, e))?;
        Ok(self.store.put(&key, Bytes::from(body)).await?)
    }
}
