//! What a conversion did, for people and for scripts.

use blobstore::refs::StackEntry;
use serde::Serialize;

/// A whole conversion.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Digest of the index or manifest that was converted; none for a tar or a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The image name that stands for it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tag that stands for it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// One a platform; one for a tar or a directory.
    pub images: Vec<ImageReport>,
    /// What was pushed to a registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<PushReport>,
}

/// A push.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PushReport {
    /// The image name that stands for it in the registry, and in the store.
    pub name: String,
    /// Digest of the index.
    pub digest: String,
    /// Blobs that the registry had.
    pub present: u64,
    /// Blobs that it took from another of its repositories.
    pub mounted: u64,
    /// Blobs that were sent.
    pub sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
}

/// One image.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ImageReport {
    /// Digest of the manifest; none for a tar or a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// What it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Its layers, bottom to top.
    pub layers: Vec<LayerReport>,
}

/// One layer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LayerReport {
    /// Digest of the blob that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Digest of the tar in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff_id: Option<String>,
    /// Chain id up to and with this layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<String>,
    /// Id of the layer in the store.
    pub layer: String,
    /// The same as references name it.
    #[serde(skip)]
    pub entry: Option<StackEntry>,
    /// Whether the store had it already; then the numbers of the conversion are 0.
    pub reused: bool,
    /// Entries of the tar, or names in the directory.
    pub entries: u64,
    /// Bytes of the blob; of a directory, its files in whole blocks of 4 KiB.
    pub bytes_in: u64,
    /// Bytes of the tar in it.
    pub bytes_tar: u64,
    /// Bytes of the layer file.
    pub bytes_out: u64,
    /// Chunks of data.
    pub chunks: u32,
    /// Bytes of files that share the blocks of others.
    pub bytes_deduplicated: u64,
    /// How long it took.
    pub seconds: f64,
    /// What was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
