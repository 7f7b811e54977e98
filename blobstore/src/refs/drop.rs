//! Taking layers that are going from references: what a collector does before it deletes them.
//!
//! A writer can change the same reference at the same moment, and one of the two is lost then. Neither loss makes a reference
//! name a layer that its writer holds and that is gone: at worst a collapsed stack or a candidate is missing, or one that is
//! gone is named again, which readers take as not there and the next collection removes.

use super::diff::Kept;
use super::error::{Error, Result};
use super::{Diff, Digest, Refs};
use crate::layer::LayerId;
use std::collections::BTreeSet;

impl Refs {
    /// Takes the collapsed stack from a chain's reference.
    pub(crate) async fn drop_collapsed(&self, chain_id: &Digest) -> Result<()> {
        let Some(mut chain) = self.stored_chain(chain_id).await? else { return Ok(()) };
        match chain.collapsed.take() {
            Some(_) => self.replace_chain(&chain).await.map(drop),
            None => Ok(()),
        }
    }

    /// The layers that a diff id's reference names, of whatever kind.
    pub(crate) async fn candidate_layers(&self, diff_id: &Digest) -> Result<Option<Vec<LayerId>>> {
        Ok(self.kept_candidates(diff_id).await?.map(|kept| kept.candidates.iter().filter_map(layer_of).collect()))
    }

    /// Takes candidates from a diff id's reference.
    pub(crate) async fn drop_candidates(&self, diff_id: &Digest, gone: &BTreeSet<LayerId>) -> Result<()> {
        let Some(mut kept) = self.kept_candidates(diff_id).await? else { return Ok(()) };
        kept.candidates.retain(|candidate| layer_of(candidate).is_none_or(|layer| !gone.contains(&layer)));
        self.replace(&Diff::key(diff_id), &kept).await.map(drop)
    }

    async fn kept_candidates(&self, diff_id: &Digest) -> Result<Option<Kept>> {
        let key = Diff::key(diff_id);
        match self.read::<Kept>(&key).await? {
            Some(document) if document.body.diff_id == *diff_id => Ok(Some(document.body)),
            Some(document) => Err(Error::malformed(&key, format!("it is about {}", document.body.diff_id))),
            None => Ok(None),
        }
    }
}

fn layer_of(candidate: &serde_json::Value) -> Option<LayerId> {
    candidate["layer"].as_str()?.parse().ok()
}
