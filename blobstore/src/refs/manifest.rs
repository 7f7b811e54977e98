//! Converted manifests, and the blobs of an image that are kept as they are: index, manifest, config.

use super::error::{Error, Result};
use super::{Chain, Digest, Platform, Refs, Stack, Stacks};
use crate::store::StoreError;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Body of `manifests/sha256/<hex>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestDoc {
    /// Digest of the manifest.
    pub digest: Digest,
    /// What it runs on.
    pub platform: Platform,
    /// Digest of its config.
    pub config: Digest,
    /// Its layers, bottom to top.
    pub chains: Vec<ManifestChain>,
}

/// One layer of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestChain {
    /// Chain id up to and with this layer.
    pub chain_id: Digest,
    /// Diff id of this layer.
    pub diff_id: Digest,
    /// The stack that stood for the chain id when the manifest was written.
    pub stack: Stack,
    /// One of fewer layers that showed the same then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<Stack>,
}

/// As much of an OCI index (or a Docker manifest list) as is needed to choose from it.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    platform: Option<Platform>,
}

/// What a digest stands for in a store.
enum Found {
    Manifest(Box<ManifestDoc>),
    Index(Index),
}

/// How deep indexes may nest.
const DEPTH_MAX: usize = 4;

impl ManifestDoc {
    /// Of an image whose chains stand as given, bottom to top, with the diff id of each one's own layer.
    pub fn new<'a>(
        digest: Digest,
        config: Digest,
        platform: Platform,
        chains: Vec<Chain>,
        diff_ids: impl IntoIterator<Item = &'a Digest>,
    ) -> Self {
        let chains = chains.into_iter().zip(diff_ids).map(|(chain, diff_id)| {
            let Chain { chain_id, stack, collapsed } = chain;
            ManifestChain { chain_id, diff_id: *diff_id, stack, collapsed }
        });
        Self { digest, platform, config, chains: chains.collect() }
    }

    /// Key of a converted manifest.
    pub fn key(digest: &Digest) -> String {
        format!("manifests/sha256/{}", digest.hex())
    }

    /// The stack of the whole image.
    pub fn stack(&self) -> Option<&Stack> {
        self.chains.last().map(|c| &c.stack)
    }

    /// Both stacks of the whole image.
    pub fn stacks(&self) -> Option<Stacks> {
        self.chains.last().map(|c| Stacks { plain: c.stack.clone(), collapsed: c.collapsed.clone() })
    }
}

/// Key of an index, manifest or config.
pub fn blob_key(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

impl Refs {
    /// A converted manifest.
    pub async fn manifest(&self, digest: &Digest) -> Result<Option<ManifestDoc>> {
        let key = ManifestDoc::key(digest);
        match self.read::<ManifestDoc>(&key).await? {
            Some(d) if d.body.digest == *digest => Ok(Some(d.body)),
            Some(d) => Err(Error::malformed(&key, format!("it is about {}", d.body.digest))),
            None => Ok(None),
        }
    }

    /// Writes a converted manifest. One that says the same stays; one that says something else is replaced, since the
    /// stacks in it are those that stand now.
    pub async fn put_manifest(&self, manifest: &ManifestDoc) -> Result<()> {
        let key = ManifestDoc::key(&manifest.digest);
        let stands = self.create_or_take(&key, manifest).await?;
        match stands.body == *manifest {
            true => Ok(()),
            false => self.replace(&key, manifest).await.map(drop),
        }
    }

    /// The converted manifest for this platform that `digest` stands for: itself, or one of the index that it names.
    /// `None`: neither is in the store.
    pub async fn choose_manifest(&self, digest: &Digest) -> Result<Option<ManifestDoc>> {
        Ok(self.way_to_manifest(digest).await?.map(|(manifest, _)| manifest))
    }

    /// The same, with the indexes on the way, from `digest` on. The choice among the manifests of an index is the one
    /// that containerd makes, whether it was converted or not.
    pub async fn way_to_manifest(&self, digest: &Digest) -> Result<Option<(ManifestDoc, Vec<Digest>)>> {
        let mut seen = HashSet::new();
        // What is left to try, the best last: a digest, whether its descriptor says that it runs here, the indexes above.
        let mut open: Vec<(Digest, bool, Vec<Digest>)> = vec![(*digest, true, Vec::new())];
        while let Some((at, said, mut way)) = open.pop() {
            if way.len() > DEPTH_MAX || !seen.insert(at) {
                continue;
            }
            match self.index_or_manifest(&at).await? {
                Some(Found::Manifest(manifest)) if said || manifest.platform.fits(&self.platform) => {
                    return Ok(Some((*manifest, way)));
                }
                Some(Found::Index(index)) => {
                    way.push(at);
                    for (descriptor, said) in self.fitting(index).into_iter().rev() {
                        let next = descriptor.digest.parse().map_err(|e| Error::malformed(&blob_key(&at), e))?;
                        open.push((next, said, way.clone()));
                    }
                }
                None if way.is_empty() => return Ok(None),
                None if said => {
                    let what = format!("its manifest for {}, {at}, is not converted", self.platform);
                    return Err(Error::not_found(digest, what));
                }
                _ => {}
            }
        }
        Err(Error::not_found(digest, format!("the index has no converted manifest for {}", self.platform)))
    }

    /// What of an index may run here, the best first; whether its descriptor says that it does.
    fn fitting(&self, index: Index) -> Vec<(Descriptor, bool)> {
        let distance = |d: Descriptor| match d.platform.as_ref().map(|platform| platform.distance(&self.platform)) {
            Some(None) => None,
            Some(Some(distance)) => Some((distance, true, d)),
            None => Some((u32::MAX, false, d)),
        };
        let mut fitting: Vec<_> = index.manifests.into_iter().filter_map(distance).collect();
        // Stable: of equals the first. Those that say nothing come last.
        fitting.sort_by_key(|(distance, ..)| *distance);
        fitting.into_iter().map(|(_, said, descriptor)| (descriptor, said)).collect()
    }

    async fn index_or_manifest(&self, digest: &Digest) -> Result<Option<Found>> {
        if let Some(manifest) = self.manifest(digest).await? {
            return Ok(Some(Found::Manifest(Box::new(manifest))));
        }
        // A manifest, too, can lie here without having been converted.
        let blob = self.blob(digest).await?;
        Ok(blob.and_then(|blob| serde_json::from_slice(&blob).ok()).map(Found::Index))
    }

    /// An index, manifest or config, verified.
    pub async fn blob(&self, digest: &Digest) -> Result<Option<Bytes>> {
        self.check_format().await?;
        let key = blob_key(digest);
        let blob = match self.store.get(&key).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        match Digest::of(&blob) {
            found if found == *digest => Ok(Some(blob)),
            found => Err(Error::malformed(&key, format!("its content has the digest {found}"))),
        }
    }

    /// Keeps an index, manifest or config; gives its digest.
    pub async fn put_blob(&self, blob: Bytes) -> Result<Digest> {
        self.init().await?;
        let digest = Digest::of(&blob);
        match self.store.create(&blob_key(&digest), blob).await {
            Ok(()) | Err(StoreError::AlreadyExists { .. }) => Ok(digest),
            Err(e) => Err(e.into()),
        }
    }

    /// The same, where what is there is read, and replaced when it is damaged: for `convert --again`.
    pub async fn put_blob_again(&self, blob: Bytes) -> Result<Digest> {
        let digest = self.put_blob(blob.clone()).await?;
        match self.blob(&digest).await {
            Err(error) if error.is_damaged() => {
                tracing::warn!(%error, "a document that is damaged is replaced");
                self.store.put(&blob_key(&digest), blob).await?;
            }
            read => drop(read?),
        }
        Ok(digest)
    }
}
