//! From what starts read of layers' data, by profiles, to the files that it is of.

use crate::failure::Failure;
use blobstore::layer::Head;
use blobstore::profile::{Profile, plan};
use erofs::{BLOCK_U64, Content, Kind};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// Files of a layer that starts read: when, and the path.
pub(super) fn of_layer(head: &Head, profiles: &[Profile]) -> Result<Vec<(u32, String)>, Failure> {
    let parts = parts(head, profiles);
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let (image_blocks, first_data_block) = (head.index.image_blocks(), head.index.first_data_block());
    let refused = |e: &dyn std::fmt::Display| Failure::refused(format!("layer {}: {e}", head.index.id()));
    let expect = erofs::Expect { image_blocks, first_data_block };
    let checked = erofs::check(&head.metadata, &expect).map_err(|e| refused(&e))?;
    let tree = erofs::read_tree(checked.image()).map_err(|e| refused(&e))?;
    let mut found = Vec::new();
    for visit in tree.walk() {
        let Kind::File(content) = &tree.node(visit.node).kind else { continue };
        let when = ranges(content).into_iter().filter_map(|range| first_read(&parts, &range)).min();
        // A line of the list is a path, so that one with the end of a line in it has no place there.
        if let (Some(when), Ok(path)) = (when, String::from_utf8(visit.path))
            && !path.contains('\n')
        {
            found.push((when, path));
        }
    }
    Ok(found)
}

/// The paths of all layers, in order, each once.
pub(super) fn in_order(mut read: Vec<(u32, String)>) -> Vec<String> {
    read.sort();
    let mut seen = HashSet::new();
    read.into_iter().map(|(_, path)| path).filter(|path| seen.insert(path.clone())).collect()
}

/// The parts of the data space that starts are likely to read: where each ends, by where it begins, and when it is read.
fn parts(head: &Head, profiles: &[Profile]) -> BTreeMap<u64, (u64, u32)> {
    let mut parts = BTreeMap::new();
    for step in plan(&head.index, profiles, u64::MAX) {
        for profile in profiles {
            let Some(seen) = profile.chunks.get(&step.chunk) else { continue };
            let one = Profile { chunks: [(step.chunk, *seen)].into(), ..profile.clone() };
            parts.extend(one.bytes(&head.index).into_iter().map(|part| (part.start, (part.end, step.after))));
        }
    }
    parts
}

/// When a start first reads any of these bytes. Parts of one length do not overlap.
fn first_read(parts: &BTreeMap<u64, (u64, u32)>, bytes: &Range<u64>) -> Option<u32> {
    let before = parts.range(..bytes.start).next_back().filter(|(_, (end, _))| *end > bytes.start);
    before.into_iter().chain(parts.range(bytes.clone())).map(|(_, (_, when))| *when).min()
}

/// Where a file's contents lie in the data space.
fn ranges(content: &Content) -> Vec<Range<u64>> {
    match content {
        Content::Plain { size, start } => {
            let start = start.saturating_mul(BLOCK_U64);
            std::iter::once(start..start.saturating_add(*size)).collect()
        }
        Content::Sparse { chunk_bits, chunks, .. } => {
            let length = BLOCK_U64 << chunk_bits;
            let piece =
                |start: &u64| start.saturating_mul(BLOCK_U64)..start.saturating_mul(BLOCK_U64).saturating_add(length);
            chunks.iter().flatten().map(piece).collect()
        }
    }
}
