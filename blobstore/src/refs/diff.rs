//! Diff references: which layers were made from one uncompressed tar, and under which assumptions.

use super::error::{Error, Result};
use super::{Assume, Assumed, Digest, Refs, StackEntry, sharded};
use crate::layer::LayerId;
use serde::{Deserialize, Serialize};

/// Body of `refs/diff/ab/<hex>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// The diff id.
    pub diff_id: Digest,
    /// Layers made from it, oldest first. Which one fits depends on the parent.
    pub candidates: Vec<Candidate>,
}

/// A layer made from a diff id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The layer.
    #[serde(flatten)]
    pub entry: StackEntry,
    /// What it took from the tree below it: right only where all of this holds. (Never left out: a missing list is
    /// malformed, not empty.)
    pub assumes: Vec<Assume>,
}

/// Body of `refs/digest/ab/<hex>`: a layer as registries name it, by the digest of its (compressed) blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerDigest {
    /// Digest of the blob.
    pub digest: Digest,
    /// Diff id: digest of the tar in it.
    pub diff_id: Digest,
}

/// A [`Diff`] to be added to: candidates of other writers stay as they are, those too that only a newer build can judge.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) diff_id: Digest,
    pub(super) candidates: Vec<serde_json::Value>,
}

impl Diff {
    /// Key of a diff id's reference.
    pub fn key(diff_id: &Digest) -> String {
        sharded("refs/diff", &diff_id.hex())
    }
}

impl LayerDigest {
    /// Key of a layer blob's reference.
    pub fn key(digest: &Digest) -> String {
        sharded("refs/digest", &digest.hex())
    }
}

impl Candidate {
    fn is_understood(&self) -> bool {
        self.assumes.iter().all(|a| a.what != Assumed::Unknown)
    }
}

impl Refs {
    /// The reference of a diff id, without the candidates that are revoked or assume what this build cannot judge.
    pub async fn diff(&self, diff_id: &Digest) -> Result<Option<Diff>> {
        let key = Diff::key(diff_id);
        let Some(document) = self.read::<Diff>(&key).await? else {
            return Ok(None);
        };
        let mut diff = document.body;
        if diff.diff_id != *diff_id {
            return Err(Error::malformed(&key, format!("it is about {}", diff.diff_id)));
        }
        let layers: Vec<LayerId> = diff.candidates.iter().map(|c| c.entry.layer).collect();
        let revoked = self.revoked_among(&layers).await?;
        diff.candidates.retain(|c| c.is_understood() && !revoked.contains(&c.entry.layer));
        Ok(Some(diff))
    }

    /// Adds a candidate to a diff id's reference. Of two writers at once the first stands, where there was none; later one
    /// of theirs can be lost, which costs a conversion and nothing else.
    pub async fn add_candidate(&self, diff_id: &Digest, candidate: Candidate) -> Result<()> {
        let key = Diff::key(diff_id);
        // A value only where there are others: a list of assumptions can be long, and takes many times the memory as values.
        let first = Diff { diff_id: *diff_id, candidates: vec![candidate] };
        let mut kept: Kept = match self.create_or_find(&key, &first).await? {
            Ok(_) => return Ok(()),
            Err(theirs) => theirs.body,
        };
        if kept.diff_id != *diff_id {
            return Err(Error::malformed(&key, format!("it is about {}", kept.diff_id)));
        }
        let refused = |e: serde_json::Error| Error::Refused { key: key.clone(), what: e.to_string() };
        let candidate = serde_json::to_value(&first.candidates[0]).map_err(refused)?;
        if kept.candidates.contains(&candidate) {
            return Ok(());
        }
        kept.candidates.retain(|other| other["layer"] != candidate["layer"]);
        kept.candidates.push(candidate);
        self.replace(&key, &kept).await.map(drop)
    }

    /// The diff id of a layer blob, if one was converted.
    pub async fn layer_digest(&self, digest: &Digest) -> Result<Option<Digest>> {
        let key = LayerDigest::key(digest);
        match self.read::<LayerDigest>(&key).await? {
            Some(d) if d.body.digest == *digest => Ok(Some(d.body.diff_id)),
            Some(d) => Err(Error::malformed(&key, format!("it is about {}", d.body.digest))),
            None => Ok(None),
        }
    }

    /// Notes the diff id of a layer blob.
    pub async fn put_layer_digest(&self, digest: Digest, diff_id: Digest) -> Result<()> {
        let body = LayerDigest { digest, diff_id };
        self.create_or_take(&LayerDigest::key(&digest), &body).await.map(drop)
    }
}
