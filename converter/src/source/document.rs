//! The documents of an image as they are written: index, manifest and config, of OCI or of Docker. What of them is needed
//! here; which of them are followed is `image`'s to say.

use crate::error::{Error, Result};
pub(crate) use crate::limits::DOCUMENT as DOCUMENT_MAX;
use crate::media_type::{is_config, is_readable_layer};
use blobstore::refs::{Digest, Platform};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// What a document says about another blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(super) digest: String,
    pub(crate) size: u64,
    /// Where else the blob is; one that has such places need not be in the registry.
    #[serde(default)]
    pub(crate) urls: Option<Vec<String>>,
    #[serde(default)]
    pub(super) artifact_type: Option<String>,
    #[serde(default)]
    pub(crate) platform: Option<WirePlatform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// A layer as the documents describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerBlob {
    /// Digest of the blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Digest of the tar in it.
    pub diff_id: Digest,
}

/// Index or manifest: which of the two is told by its fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IndexOrManifest {
    #[serde(default)]
    pub(super) media_type: Option<String>,
    #[serde(default)]
    pub(super) manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub(super) config: Option<Descriptor>,
    #[serde(default)]
    pub(super) layers: Option<Vec<Descriptor>>,
}

/// What is needed of an image's config.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
    #[serde(default)]
    pub(super) config: Option<Process>,
    pub(super) rootfs: RootFs,
}

/// How an image's processes are run.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Process {
    #[serde(default, rename = "Env")]
    pub(super) env: Option<Vec<String>>,
}

/// The layers' diff ids.
#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    #[serde(default)]
    pub(super) diff_ids: Option<Vec<String>>,
}

/// A platform as documents write it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct WirePlatform {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) variant: Option<String>,
    #[serde(default, rename = "os.features")]
    pub(super) features: Option<Vec<String>>,
}

impl WirePlatform {
    /// The platform, if this says one.
    pub(crate) fn platform(&self) -> Option<Platform> {
        let said = !self.os.is_empty() && !self.architecture.is_empty();
        said.then(|| self.as_it_is())
    }

    /// The platform, also an empty one.
    pub(super) fn as_it_is(&self) -> Platform {
        let variant = self.variant.clone().filter(|variant| !variant.is_empty());
        Platform { os: self.os.clone(), architecture: self.architecture.clone(), variant }
    }

    /// Whether it is for those who mount layers as they are: made by a converter, and not from.
    pub(crate) fn is_mountable(&self) -> bool {
        self.features.iter().flatten().any(|feature| feature == MOUNTABLE)
    }
}

/// The feature, in `os.features`, of a manifest whose layers are EROFS images.
pub(crate) const MOUNTABLE: &str = "erofs";

impl Descriptor {
    /// One of a document that no other document names.
    pub(super) fn of_document(media_type: &str, digest: &Digest, size: u64) -> Self {
        let (media_type, digest) = (media_type.to_owned(), digest.to_string());
        Self { media_type, digest, size, urls: None, artifact_type: None, platform: None, annotations: None }
    }

    /// Whether it is not of an image but of something about one: an attestation, a signature. Attestations travel under
    /// a platform that no machine has.
    pub(super) fn is_attached(&self) -> bool {
        let unknown = self.platform.as_ref().is_some_and(|platform| platform.os == "unknown");
        let artifact = self.artifact_type.as_deref().is_some_and(|kind| !is_config(kind));
        unknown || artifact || self.annotation("vnd.docker.reference.type").is_some()
    }

    /// Whether it is that of an image's config, and not of what else is stored in the form of an image.
    pub(super) fn is_image_config(&self) -> bool {
        is_config(&self.media_type)
    }

    /// Its digest.
    pub(crate) fn digest(&self) -> Result<Digest> {
        self.digest.parse().map_err(|e| Error::refused(format!("unsupported digest: {e}")))
    }

    /// The layer that it is of, if that is in a form that can be read; `diff_id` is the config's word on it.
    pub(super) fn layer(&self, diff_id: &str) -> Result<LayerBlob> {
        let refused = |what: String| Error::refused(what).in_layer(&self.digest);
        if !is_readable_layer(&self.media_type) {
            return Err(refused(format!("the layer's media type '{}' is not supported", self.media_type)));
        }
        let diff_id = diff_id.parse().map_err(|e| refused(format!("unsupported diff_id: {e}")))?;
        Ok(LayerBlob { digest: self.digest()?, size: self.size, diff_id })
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Parses a document whose bytes were checked.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::refused(format!("{what}: invalid document: {e}")))
}
