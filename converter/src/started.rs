//! Which files starts read: from what profiles say of layers' data to the list that [`First`](crate::First) takes.

use crate::below::tree_of;
use crate::error::{Error, Result};
use blobstore::layer::Head;
use blobstore::profile::{Profile, plan};
use erofs::{BLOCK_U64, Content, Kind};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// The paths that starts read of some layers, whose profiles these are: in the order of when, each once.
///
/// # Errors
/// [`Error::Refused`] for a layer whose metadata are not right.
pub fn started_files(layers: &[(&Head, Vec<Profile>)]) -> Result<Vec<String>> {
    let mut read = Vec::new();
    for (head, profiles) in layers {
        read.extend(of_layer(head, profiles)?);
    }
    read.sort();
    let mut seen = HashSet::new();
    Ok(read.into_iter().map(|(_, path)| path).filter(|path| seen.insert(path.clone())).collect())
}

/// Files of a layer that starts read: when, and the path.
fn of_layer(head: &Head, profiles: &[Profile]) -> Result<Vec<(u32, String)>> {
    let parts = parts(head, profiles);
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let tree = tree_of(head).map_err(|e| Error::refused(format!("layer {}: {e}", head.index.id())))?;
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
