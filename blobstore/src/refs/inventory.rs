//! What a store has, for administrators: every manifest that a digest stands for, not only the one for this machine.

use super::error::Result;
use super::{Digest, ManifestDoc, Refs};
use serde::Deserialize;
use std::collections::BTreeSet;

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

impl Refs {
    /// The converted manifests of all platforms that a digest stands for: itself, or what the index lists, and so on. Indexes
    /// that are not here lead nowhere.
    pub async fn manifests_of(&self, digest: &Digest) -> Result<Vec<ManifestDoc>> {
        let (mut found, mut seen, mut open) = (Vec::new(), BTreeSet::new(), vec![*digest]);
        while let Some(digest) = open.pop() {
            if !seen.insert(digest) {
                continue;
            }
            if let Some(manifest) = self.manifest(&digest).await? {
                found.push(manifest);
                continue;
            }
            let blob = self.blob(&digest).await?;
            if let Some(index) = blob.and_then(|blob| serde_json::from_slice::<Index>(&blob).ok()) {
                open.extend(index.manifests.iter().rev().filter_map(|listed| listed.digest.parse::<Digest>().ok()));
            }
        }
        Ok(found)
    }
}
