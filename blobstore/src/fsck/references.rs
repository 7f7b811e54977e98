//! Manifests, blobs and weak references: that they can be read, and name layers that are there and right.

use super::Check;
use crate::collect;
use crate::refs::{Chain, Diff, Digest, LayerDigest, ManifestDoc, Stack, blob_key};

impl Check<'_> {
    pub(super) async fn blobs(&mut self) -> Result<(), collect::Error> {
        for (key, digest) in self.digests("blobs/").await? {
            self.report.documents += 1;
            if let Err(error) = self.refs.blob(&digest).await
                && self.unreadable(&key, error)?
            {
                self.refs.store().delete(&key).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn manifests(&mut self) -> Result<(), collect::Error> {
        for (key, digest) in self.digests("manifests/").await? {
            self.report.documents += 1;
            let manifest = match self.refs.manifest(&digest).await {
                Ok(Some(manifest)) => manifest,
                Ok(None) => continue,
                Err(error) => {
                    if self.unreadable(&key, error)? {
                        self.refs.store().delete(&key).await?;
                    }
                    continue;
                }
            };
            let stacks = manifest.chains.iter().flat_map(|chain| [Some(&chain.stack), chain.collapsed.as_ref()]);
            if let Some(bad) = self.first_bad(stacks.flatten()) {
                self.report.fault(&key, bad, self.options.repair);
                if self.options.repair {
                    self.refs.store().delete(&ManifestDoc::key(&digest)).await?;
                }
            }
            for (what, digest) in [("manifest", digest), ("config", manifest.config)] {
                if !self.is_there(&blob_key(&digest)).await? {
                    let what = format!("its {what}, {digest}, is not there; convert it again");
                    self.report.fault(&key, what, false);
                }
            }
        }
        Ok(())
    }

    pub(super) async fn references(&mut self) -> Result<(), collect::Error> {
        for (key, digest) in self.digests("refs/chain/").await? {
            self.chain(&key, &digest).await?;
        }
        for (key, digest) in self.digests("refs/diff/").await? {
            self.diff(&key, &digest).await?;
        }
        for (key, digest) in self.digests("refs/digest/").await? {
            self.report.references += 1;
            match self.refs.layer_digest(&digest).await {
                Ok(Some(diff_id)) if !self.is_there(&Diff::key(&diff_id)).await? => {
                    self.report.note(&key, format!("no layer of {diff_id} is there any more"), self.options.repair);
                    if self.options.repair {
                        self.refs.store().delete(&LayerDigest::key(&digest)).await?;
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    if self.unreadable(&key, error)? {
                        self.refs.store().delete(&key).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn chain(&mut self, key: &str, digest: &Digest) -> Result<(), collect::Error> {
        self.report.references += 1;
        let chain = match self.refs.stored_chain(digest).await {
            Ok(Some(chain)) => chain,
            Ok(None) => return Ok(()),
            Err(error) => {
                if self.unreadable(key, error)? {
                    self.refs.store().delete(key).await?;
                }
                return Ok(());
            }
        };
        let repair = self.options.repair;
        if let Some(bad) = self.first_bad([&chain.stack]) {
            self.report.fault(key, bad, repair);
            if repair {
                self.refs.store().delete(&Chain::key(digest)).await?;
            }
        } else if let Some(bad) = self.first_bad(&chain.collapsed) {
            self.report.fault(key, format!("collapsed: {bad}"), repair);
            if repair {
                self.refs.drop_collapsed(digest).await?;
            }
        }
        Ok(())
    }

    async fn diff(&mut self, key: &str, digest: &Digest) -> Result<(), collect::Error> {
        self.report.references += 1;
        let layers = match self.refs.candidate_layers(digest).await {
            Ok(layers) => layers.unwrap_or_default(),
            Err(error) => {
                if self.unreadable(key, error)? {
                    self.refs.store().delete(key).await?;
                }
                return Ok(());
            }
        };
        let bad = layers
            .iter()
            .copied()
            .filter(|layer| !self.good.contains(layer))
            .collect::<std::collections::BTreeSet<_>>();
        if let Some(first) = bad.first() {
            self.report.fault(key, missing(first), self.options.repair);
            match self.options.repair {
                true if bad.len() == layers.len() => self.refs.store().delete(&Diff::key(digest)).await?,
                true => self.refs.drop_candidates(digest, &bad).await?,
                false => {}
            }
        }
        Ok(())
    }

    /// What is wrong with the first layer of these stacks that is not there or not right.
    pub(super) fn first_bad<'s>(&self, stacks: impl IntoIterator<Item = &'s Stack>) -> Option<String> {
        let mut layers = stacks.into_iter().flatten().map(|entry| &entry.layer);
        layers.find(|layer| !self.good.contains(*layer)).map(missing)
    }

    /// Keys below a prefix, with the digests that they are of.
    async fn digests(&mut self, prefix: &str) -> Result<Vec<(String, Digest)>, collect::Error> {
        let mut found = Vec::new();
        for key in self.refs.store().list(prefix).await? {
            match Digest::of_key(&key) {
                Some(digest) => found.push((key, digest)),
                None => self.report.note(&key, "its name is no digest", false),
            }
        }
        Ok(found)
    }
}

fn missing(layer: &crate::layer::LayerId) -> String {
    format!("layer {layer} is missing or damaged")
}
