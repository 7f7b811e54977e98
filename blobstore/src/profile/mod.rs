//! Profiles: what starts read of a layer, so that the next start finds it here.
//!
//! * [`Run`]: what one start read of one layer, while it is being recorded.
//! * [`Profile`]: what the starts of one node read of one layer, merged over its runs (`format.rs`: its bytes).
//! * [`plan`]: what to fetch for a start, from the profiles of many nodes (`plan.rs`).
//! * [`Keep`]: where profiles lie: in the cache directory and, for all nodes, beside the layers (`keep.rs`).
//!
//! Whoever can write `node/` in the store, any node, decides what stands in a profile. So a profile decides what is fetched
//! before it is asked for, within a bound, and nothing else.
//!
//! When a start begins and ends, and who fetches what, is not known here.

mod format;
mod keep;
mod plan;

#[cfg(test)]
mod tests;

pub use format::Malformed;
pub use keep::{Keep, Share, node_name, published};
pub use plan::{Step, plan};

use crate::layer::{Index, LayerId, Located};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Most chunks in a profile: 8 GiB of content in chunks of 512 KiB.
pub const MAX_CHUNKS: usize = 1 << 14;
/// Runs after which older ones begin to count half.
const MEMORY: u32 = 16;
/// Parts of a chunk that are told apart.
const PARTS: u64 = 128;
const BLOCK: u64 = crate::layer::format::BLOCK;

/// What one start read of one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run(BTreeMap<u32, Seen>);

/// What the starts of one node read of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The layer.
    pub layer: LayerId,
    /// How many starts it is made of, at least one; after many, the older count less.
    pub runs: u32,
    /// The chunks that they read, by number.
    pub chunks: BTreeMap<u32, Seen>,
}

/// A chunk that starts read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// How many of the starts.
    pub runs: u32,
    /// Milliseconds from a start's beginning to its first read of the chunk; the mean of those starts.
    pub after: u32,
    /// Which parts of the chunk, one bit each: it is cut into 128 equal ones, of whole blocks.
    pub parts: u128,
}

/// Bytes of each part of a chunk.
fn part_len(chunk: &Located) -> u64 {
    u64::from(chunk.entry.data_len).div_ceil(PARTS).next_multiple_of(BLOCK)
}

impl Run {
    /// Notes a read of these bytes of the layer's data space, so long after the start's beginning.
    pub fn read(&mut self, index: &Index, bytes: Range<u64>, after: Duration) {
        let after = u32::try_from(after.as_millis()).unwrap_or(u32::MAX).min(format::MAX_AFTER);
        let mut at = bytes.start;
        while at < bytes.end
            && let Some(chunk) = index.locate(at)
        {
            let end = bytes.end.min(chunk.data_start + u64::from(chunk.entry.data_len));
            let part = part_len(&chunk);
            let parts = (at - chunk.data_start) / part..=(end - 1 - chunk.data_start) / part;
            if self.0.len() < MAX_CHUNKS || self.0.contains_key(&chunk.chunk) {
                let seen = self.0.entry(chunk.chunk).or_insert(Seen { runs: 1, after, parts: 0 });
                parts.for_each(|part| seen.parts |= 1 << part);
            }
            at = end;
        }
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Chunks that were read.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Profile {
    /// A profile of one run.
    pub fn new(layer: LayerId, run: Run) -> Self {
        Self { layer, runs: 1, chunks: run.0 }
    }

    /// Adds a run. What runs no longer read is forgotten in time.
    pub fn add(&mut self, run: &Run) {
        self.runs += 1;
        for (chunk, new) in &run.0 {
            if let Some(seen) = self.chunks.get_mut(chunk) {
                let (before, runs) = (u64::from(seen.after), u64::from(seen.runs));
                seen.after = ((before * runs + u64::from(new.after)) / (runs + 1)) as u32;
                seen.runs += 1;
                seen.parts |= new.parts;
            } else if self.chunks.len() < MAX_CHUNKS {
                self.chunks.insert(*chunk, *new);
            }
        }
        if self.runs >= MEMORY {
            self.runs /= 2;
            self.chunks.values_mut().for_each(|seen| seen.runs /= 2);
            self.chunks.retain(|_, seen| seen.runs > 0);
        }
    }

    /// Chunks of a run that no earlier one read.
    fn lacks(&self, run: &Run) -> usize {
        run.0.keys().filter(|chunk| !self.chunks.contains_key(chunk)).count()
    }

    /// The bytes of the layer's data space that were read, in whole parts, in the order of the chunks' first reads.
    pub fn bytes(&self, index: &Index) -> Vec<Range<u64>> {
        let mut chunks: Vec<(&u32, &Seen)> = self.chunks.iter().collect();
        chunks.sort_by_key(|(chunk, seen)| (seen.after, **chunk));
        let parts = |(number, seen): (&u32, &Seen)| {
            let (chunk, parts) = (index.chunk_at(*number), seen.parts);
            let of = move |chunk: Located| {
                let (part, end) = (part_len(&chunk), chunk.data_start + u64::from(chunk.entry.data_len));
                let at = (0..PARTS).filter(move |n| parts >> n & 1 == 1).map(move |n| chunk.data_start + n * part);
                at.filter(move |at| *at < end).map(move |at| at..end.min(at + part))
            };
            chunk.map(of).into_iter().flatten()
        };
        chunks.into_iter().flat_map(parts).collect()
    }
}
