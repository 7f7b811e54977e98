//! Revoked layers: `revoked/<layer id>`. They get no new mount; writers treat what names them as absent.
//!
//! The object's being there is what counts, whatever is in it: revoking must not fail for a formality. The list is
//! short, and asked for at most every five seconds.

use super::error::{Error, Result};
use super::{Refs, Stack};
use crate::layer::LayerId;
use crate::store::StoreError;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::{JoinError, JoinSet};

/// How old the list of revoked layers may be: an image of many layers is resolved once per layer within seconds.
pub(super) const MAX_AGE: Duration = Duration::from_secs(5);

/// Where revocations lie.
const PREFIX: &str = "revoked/";

/// Questions about single layers that are under way at once, to a store that cannot list.
const AT_ONCE: usize = 16;

/// Body of `revoked/<layer id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The layer.
    pub layer: LayerId,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

/// The list as it was last read.
#[derive(Debug, Default)]
pub(super) struct Revocations(Mutex<Option<(Instant, Arc<HashSet<LayerId>>)>>);

fn key(layer: &LayerId) -> String {
    format!("{PREFIX}{layer}")
}

fn layer_of(key: &str) -> Option<LayerId> {
    key.strip_prefix(PREFIX)?.parse().ok()
}

impl Refs {
    /// Revokes a layer.
    pub async fn revoke(&self, layer: &LayerId, reason: &str) -> Result<()> {
        let body = Revocation { layer: *layer, reason: reason.to_owned() };
        self.replace(&key(layer), &body).await?;
        *self.revocations.0.lock().await = None;
        Ok(())
    }

    /// Takes a revocation back; whether there was one.
    pub async fn unrevoke(&self, layer: &LayerId) -> Result<bool> {
        self.check_format().await?;
        let found = match self.store.stat(&key(layer)).await {
            Ok(_) => true,
            Err(StoreError::NotFound { .. }) => false,
            Err(e) => return Err(e.into()),
        };
        self.store.delete(&key(layer)).await?;
        *self.revocations.0.lock().await = None;
        Ok(found)
    }

    /// All revoked layers, and why and when (seconds since 1970) each was, where its object can be read.
    pub async fn revocations(&self) -> Result<Vec<(LayerId, Option<(Revocation, u64)>)>> {
        self.check_format().await?;
        let mut found = Vec::new();
        for layer in self.store.list(PREFIX).await?.iter().filter_map(|key| layer_of(key)) {
            let why = match self.read::<Revocation>(&key(&layer)).await {
                Ok(Some(document)) => Some((document.body, document.header.time)),
                // Taken back since it was listed.
                Ok(None) => continue,
                Err(Error::Store(error)) => return Err(error.into()),
                Err(_) => None,
            };
            found.push((layer, why));
        }
        Ok(found)
    }

    /// Whether a layer is revoked.
    pub async fn revoked(&self, layer: &LayerId) -> Result<bool> {
        Ok(!self.revoked_among(&[*layer]).await?.is_empty())
    }

    /// A revoked layer of a stack.
    pub async fn revoked_layer(&self, stack: &Stack) -> Result<Option<LayerId>> {
        let layers: Vec<LayerId> = stack.layers().iter().map(|e| e.layer).collect();
        let revoked = self.revoked_among(&layers).await?;
        Ok(revoked.into_iter().next())
    }

    /// Those of `layers` that are revoked.
    pub(super) async fn revoked_among(&self, layers: &[LayerId]) -> Result<HashSet<LayerId>> {
        if let Some(all) = self.listed_revocations().await? {
            return Ok(layers.iter().copied().filter(|l| all.contains(l)).collect());
        }
        self.asked_revocations(layers).await
    }

    /// Those of `layers` that are revoked, each asked about: several at once, for a stack is long and a store far.
    async fn asked_revocations(&self, layers: &[LayerId]) -> Result<HashSet<LayerId>> {
        let (mut found, mut asked) = (HashSet::new(), JoinSet::new());
        let mut left = layers.iter().copied();
        loop {
            for layer in left.by_ref().take(AT_ONCE - asked.len()) {
                let store = self.store.clone();
                asked.spawn(async move { (layer, store.stat(&key(&layer)).await) });
            }
            match asked.join_next().await.transpose().map_err(|e| self.interrupted(e))? {
                Some((layer, Ok(_))) => drop(found.insert(layer)),
                Some((_, Err(StoreError::NotFound { .. }))) => {}
                Some((_, Err(e))) => return Err(e.into()),
                None => return Ok(found),
            }
        }
    }

    fn interrupted(&self, error: JoinError) -> StoreError {
        let (store, source) = (self.store.url().to_owned(), io::Error::other(error));
        StoreError::Io { store, key: PREFIX.to_owned(), source }
    }

    /// All revoked layers; `None` where the store cannot list.
    async fn listed_revocations(&self) -> Result<Option<Arc<HashSet<LayerId>>>> {
        let mut last = self.revocations.0.lock().await;
        if let Some((_, set)) = last.as_ref().filter(|(at, _)| at.elapsed() < MAX_AGE) {
            return Ok(Some(set.clone()));
        }
        let keys = match self.store.list(PREFIX).await {
            Ok(keys) => keys,
            Err(StoreError::Unsupported { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let set = Arc::new(keys.iter().filter_map(|key| layer_of(key)).collect::<HashSet<LayerId>>());
        *last = Some((Instant::now(), set.clone()));
        Ok(Some(set))
    }
}
