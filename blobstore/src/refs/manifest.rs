//! Converted manifests, and the blobs of an image that are kept as they are: index, manifest, config.

use super::error::{Error, Result};
use super::{Digest, Refs, Stack, Stacks};
use crate::store::StoreError;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

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

/// A platform, in the words of the OCI specifications (GOOS, GOARCH).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`
    pub os: String,
    /// `amd64`, `arm64` …
    pub architecture: String,
    /// `v7`, `v8` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// This machine's.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: std::env::consts::OS.to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether what is made for `self` runs on `on`. A variant that one of them leaves open fits.
    pub fn fits(&self, on: &Self) -> bool {
        let variant = match (&self.variant, &on.variant) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        self.os == on.os && self.architecture == on.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|v| write!(f, "/{v}"))
    }
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

impl ManifestDoc {
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

fn blob_key(digest: &Digest) -> String {
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

    /// Digest of the converted manifest for this platform that `digest` stands for: itself, or one of the index that it
    /// names. `None`: neither is in the store.
    pub async fn choose_manifest(&self, digest: &Digest) -> Result<Option<ManifestDoc>> {
        if let Some(manifest) = self.manifest(digest).await? {
            return Ok(Some(manifest));
        }
        let Some(blob) = self.blob(digest).await? else {
            return Ok(None);
        };
        // A manifest, too, can lie here without having been converted.
        let Ok(index) = serde_json::from_slice::<Index>(&blob) else {
            return Ok(None);
        };
        let fits = |d: &&Descriptor| d.platform.as_ref().is_some_and(|p| p.fits(&self.platform));
        let Some(chosen) = index.manifests.iter().find(fits) else {
            return Err(Error::not_found(digest, format!("the index has no manifest for {}", self.platform)));
        };
        let malformed = |e| Error::malformed(&blob_key(digest), e);
        let chosen = chosen.digest.parse().map_err(malformed)?;
        match self.manifest(&chosen).await? {
            Some(manifest) => Ok(Some(manifest)),
            None => {
                Err(Error::not_found(digest, format!("its manifest for {}, {chosen}, is not converted", self.platform)))
            }
        }
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
}
