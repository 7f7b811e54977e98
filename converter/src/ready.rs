//! Layers of an image that are ready to be published, and what is told of them.

use crate::assume::AssumeList;
use crate::below::Below;
use crate::build::Made;
use crate::report::{LayerReport, MadeReport};
use crate::source::{Image, LayerBlob};
use blobstore::refs::{ChainLayer, Digest, StackEntry};
use std::time::Instant;

/// A layer that is in the store or in the stage.
pub(crate) struct Ready {
    pub(crate) entry: StackEntry,
    /// Of a layer that was just made, and is in the stage.
    pub(crate) fresh: Option<Fresh>,
    pub(crate) report: LayerReport,
}

/// What references are to say of a new layer.
pub(crate) struct Fresh {
    /// For the reference of its diff id: what it took from below.
    pub(crate) candidate: Option<(Digest, AssumeList)>,
    /// For that of its blob.
    pub(crate) source: Option<LayerBlob>,
}

/// The chain id up to and with each layer of an image.
pub(crate) fn chain_ids(image: &Image) -> Vec<Digest> {
    chain_ids_of(image.layers.iter().map(|layer| &layer.diff_id))
}

/// The chain id up to and with each diff id.
pub(crate) fn chain_ids_of<'a>(diff_ids: impl Iterator<Item = &'a Digest>) -> Vec<Digest> {
    let mut chain_ids: Vec<Digest> = Vec::new();
    for diff_id in diff_ids {
        chain_ids.push(Digest::chain(chain_ids.last(), diff_id));
    }
    chain_ids
}

/// Layers with the chain ids up to them, for their references.
pub(crate) fn chain_layers<'a>(chain_ids: &[Digest], entries: impl Iterator<Item = &'a StackEntry>) -> Vec<ChainLayer> {
    let layers = chain_ids.iter().zip(entries);
    layers.map(|(&chain_id, entry)| ChainLayer { chain_id, entry: entry.clone() }).collect()
}

/// A layer of the stage, with what references are to say of it. That a blob holds this tar is known of the blob that was
/// read only.
pub(crate) fn fresh(made: Made, source: Option<&LayerBlob>, report: LayerReport) -> Ready {
    let source = source.filter(|layer| made.sums.is_some_and(|sums| sums.blob == layer.digest)).cloned();
    let candidate = made.diff_id().map(|id| (id, made.assumes));
    Ready { entry: made.entry, fresh: Some(Fresh { candidate, source }), report }
}

/// What is told of a layer of the stage, which lies on the top of a tree.
pub(crate) fn report(
    made: &Made,
    source: Option<&LayerBlob>,
    chain_id: Option<Digest>,
    tree: &Below,
    started: Instant,
) -> LayerReport {
    let (own, tar) = (made.sums.map(|sums| (sums.blob, sums.blob_size)), made.sums.map(|sums| sums.tar_size));
    let blob = source.map(|layer| (layer.digest, layer.size)).or(own);
    LayerReport {
        source: blob.map(|(digest, _)| digest.to_string()),
        diff_id: made.diff_id().map(|id| id.to_string()),
        chain_id: chain_id.map(|id| id.to_string()),
        layer: made.entry.layer.to_string(),
        reused: false,
        resumed: false,
        shared: false,
        bytes_in: blob.map_or(made.data_bytes, |(_, size)| size),
        bytes_out: made.entry.size,
        made: Some(MadeReport {
            entries: made.entries,
            bytes_tar: tar.unwrap_or(0),
            chunks: made.chunks,
            bytes_deduplicated: made.deduplicated,
            bytes_repeated: tree.repeated(),
            seconds: started.elapsed().as_secs_f64(),
        }),
        warnings: made.warnings.clone(),
    }
}

/// A layer that the store has.
pub(crate) fn reused(entry: StackEntry, layer: &LayerBlob, chain_id: Digest) -> Ready {
    let report = LayerReport {
        source: Some(layer.digest.to_string()),
        diff_id: Some(layer.diff_id.to_string()),
        chain_id: Some(chain_id.to_string()),
        layer: entry.layer.to_string(),
        reused: true,
        bytes_in: layer.size,
        bytes_out: entry.size,
        ..LayerReport::default()
    };
    Ready { entry, fresh: None, report }
}
