//! Weak references: chain, diff and digest references keep nothing. They go before the layers they name, chains from the
//! top down. A reference loses what is going, and goes when nothing is left of it; so does what names layers that are not
//! there. One that cannot be read stays, with a warning: a later build may have written it.

use super::error::Result;
use crate::layer::LayerId;
use crate::refs::{self, Chain, Diff, Digest, LayerDigest, Refs, layer_key, layer_of};
use crate::store::StoreError;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::BTreeSet;

/// The weak references of a store, while layers are going.
pub(super) struct Weak<'a> {
    refs: &'a Refs,
    going: &'a BTreeSet<LayerId>,
    there: BTreeSet<LayerId>,
    at_once: usize,
}

/// What is to become of one, of those of which something is.
enum Loosened<T> {
    Removed(T),
    Changed(T),
}

impl<'a> Weak<'a> {
    pub(super) async fn open(refs: &'a Refs, going: &'a BTreeSet<LayerId>, at_once: usize) -> Result<Self> {
        let there = refs.store().list("layers/").await?.iter().filter_map(|key| layer_of(key)).collect();
        Ok(Self { refs, going, there, at_once })
    }

    /// Takes what is going from all of them; how many were removed or changed.
    pub(super) async fn loosen(&self) -> Result<usize> {
        Ok(self.chains().await? + self.diffs().await? + self.layer_digests().await?)
    }

    async fn chains(&self) -> Result<usize> {
        let all = digests(self.refs, "refs/chain/").await?;
        let fates = stream::iter(all).map(|chain_id| self.chain(chain_id)).buffer_unordered(self.at_once);
        let mut fates: Vec<_> = fates.try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
        // The longest stacks are the tops of images.
        fates.sort_by_key(|(_, layers)| usize::MAX - layers);
        for (fate, _) in &fates {
            match fate {
                Loosened::Removed(chain_id) => self.refs.store().delete(&Chain::key(chain_id)).await?,
                Loosened::Changed(chain_id) => self.refs.drop_collapsed(chain_id).await?,
            }
        }
        Ok(fates.len())
    }

    /// What is to become of a chain reference, and how many layers its stack has.
    async fn chain(&self, chain_id: Digest) -> Result<Option<(Loosened<Digest>, usize)>> {
        let Some(chain) = readable(&Chain::key(&chain_id), self.refs.stored_chain(&chain_id).await)? else {
            return Ok(None);
        };
        let layers: Vec<LayerId> = chain.stack.layers().iter().map(|entry| entry.layer).collect();
        if !self.gone(&layers).await?.is_empty() {
            return Ok(Some((Loosened::Removed(chain_id), layers.len())));
        }
        let collapsed: Vec<LayerId> = chain.collapsed.iter().flatten().map(|entry| entry.layer).collect();
        let changed = !self.gone(&collapsed).await?.is_empty();
        Ok(changed.then_some((Loosened::Changed(chain_id), layers.len())))
    }

    async fn diffs(&self) -> Result<usize> {
        let all = digests(self.refs, "refs/diff/").await?;
        let fates = stream::iter(all).map(|diff_id| self.diff(diff_id)).buffer_unordered(self.at_once);
        let fates: Vec<_> = fates.try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
        for (fate, gone) in &fates {
            match fate {
                Loosened::Removed(diff_id) => self.refs.store().delete(&Diff::key(diff_id)).await?,
                Loosened::Changed(diff_id) => self.refs.drop_candidates(diff_id, gone).await?,
            }
        }
        Ok(fates.len())
    }

    async fn diff(&self, diff_id: Digest) -> Result<Option<(Loosened<Digest>, BTreeSet<LayerId>)>> {
        let Some(named) = readable(&Diff::key(&diff_id), self.refs.candidate_layers(&diff_id).await)? else {
            return Ok(None);
        };
        let gone = self.gone(&named).await?;
        Ok(match named.iter().filter(|layer| gone.contains(layer)).count() {
            0 => None,
            n if n == named.len() => Some((Loosened::Removed(diff_id), gone)),
            _ => Some((Loosened::Changed(diff_id), gone)),
        })
    }

    /// What a blob's digest says stays true, but can lead nowhere now. To lose one costs a name, so a writer that adds the
    /// diff reference again at this moment is not waited for.
    async fn layer_digests(&self) -> Result<usize> {
        let diffs: BTreeSet<Digest> = digests(self.refs, "refs/diff/").await?.into_iter().collect();
        let diffs = &diffs;
        let ask = |digest: Digest| async move {
            let diff_id = readable(&LayerDigest::key(&digest), self.refs.layer_digest(&digest).await)?;
            Ok::<_, super::Error>(diff_id.filter(|diff_id| !diffs.contains(diff_id)).map(|_| digest))
        };
        let all = digests(self.refs, "refs/digest/").await?;
        let found = stream::iter(all).map(ask).buffer_unordered(self.at_once);
        let found: Vec<Digest> = found.try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
        for digest in &found {
            self.refs.store().delete(&LayerDigest::key(digest)).await?;
        }
        Ok(found.len())
    }

    /// Those of `layers` that are going or not there. One that came since the listing is there.
    async fn gone(&self, layers: &[LayerId]) -> Result<BTreeSet<LayerId>> {
        let mut gone = BTreeSet::new();
        for layer in layers {
            if self.going.contains(layer) || !self.there.contains(layer) && self.is_missing(layer).await? {
                gone.insert(*layer);
            }
        }
        Ok(gone)
    }

    async fn is_missing(&self, layer: &LayerId) -> Result<bool> {
        match self.refs.store().stat(&layer_key(layer)).await {
            Ok(_) => Ok(false),
            Err(StoreError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// What was read; `None` where it has gone meanwhile, or cannot be read.
fn readable<T>(key: &str, read: refs::Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(error @ refs::Error::Store(_)) => Err(error.into()),
        Err(error) => {
            tracing::warn!(key, %error, "a reference that cannot be read is left as it is");
            Ok(None)
        }
        Ok(found) => Ok(found),
    }
}

/// The digests that references below a prefix are of.
async fn digests(refs: &Refs, prefix: &str) -> Result<Vec<Digest>> {
    let keys = refs.store().list(prefix).await?;
    Ok(keys.iter().filter_map(|key| Digest::of_key(key)).collect())
}
