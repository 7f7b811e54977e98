//! What a conversion did, for people and for scripts.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};

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
    /// The manifests whose layers are ours, one a platform.
    pub images: Vec<PushedImage>,
}

/// A manifest of converted layers in a registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PushedImage {
    /// What it runs on.
    pub platform: String,
    /// Its digest.
    pub manifest: String,
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
    /// What stands beside them, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<CollapsedReport>,
}

/// The collapsed stack of an image.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CollapsedReport {
    /// Ids of its layers, bottom to top.
    pub stack: Vec<String>,
    /// How many of the image's layers, from the bottom, had a collapsed stack already, which is kept below it.
    pub kept: u64,
    /// Those that were made now.
    pub layers: Vec<CollapsedLayer>,
}

/// One layer that was made of several.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CollapsedLayer {
    /// Id of the layer in the store.
    pub layer: String,
    /// Chain id up to and with the topmost layer that it stands for.
    pub chain_id: String,
    /// The layers that it stands for, bottom to top.
    pub from: Vec<String>,
    /// Names in it.
    pub entries: u64,
    /// Bytes of the layer files that it stands for.
    pub bytes_in: u64,
    /// Bytes of its layer file.
    pub bytes_out: u64,
    /// Chunks of data.
    pub chunks: u32,
    /// Bytes, as stored, of those of its chunks that the layers have too, which it stands for: a node that has them
    /// fetches nothing.
    pub bytes_same: u64,
    /// How long it took.
    pub seconds: f64,
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
    /// Whether it was there already, so that nothing was converted.
    pub reused: bool,
    /// Whether it was taken over from another conversion before any store had it: from one that was interrupted, or that
    /// ran beside this one.
    pub resumed: bool,
    /// Whether this conversion has the same layer at another place of its source, and it was made or taken over there.
    pub shared: bool,
    /// Bytes of the blob; of a directory, its files in whole blocks of 4 KiB.
    pub bytes_in: u64,
    /// Bytes of the layer file.
    pub bytes_out: u64,
    /// What is known of one that was made, or taken over from another conversion; of one that the store had, all of it is null.
    #[serde(flatten, serialize_with = "each_or_null")]
    pub made: Option<MadeReport>,
    /// What was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How a layer was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MadeReport {
    /// Entries of the tar, or names in the directory.
    pub entries: u64,
    /// Bytes of the tar; 0 of a directory.
    pub bytes_tar: u64,
    /// Chunks of data.
    pub chunks: u32,
    /// Bytes of files that share the blocks of others in the same layer: they are stored once.
    pub bytes_deduplicated: u64,
    /// Bytes, as stored, of those of its chunks that layers below it have too: they are stored in each, and fetched and
    /// cached once by a node.
    pub bytes_repeated: u64,
    /// How long it took.
    pub seconds: f64,
}

/// The fields of [`MadeReport`] in any case.
fn each_or_null<S: Serializer>(made: &Option<MadeReport>, to: S) -> Result<S::Ok, S::Error> {
    let fields = serde_json::to_value(made.clone().unwrap_or_default()).map_err(S::Error::custom)?;
    let fields = fields.as_object().into_iter().flatten();
    to.collect_map(fields.map(|(name, value)| (name, made.as_ref().map(|_| value))))
}
