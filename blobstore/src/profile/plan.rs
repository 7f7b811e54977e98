//! What to fetch for a start: from the profiles of several nodes, within a number of bytes.
//!
//! Each node's profile has one vote, however many runs it says that it is made of: one node's cannot outvote the others'.
//! A chunk's share is the mean of what part of each node's runs read it. Those that a start is not likely to read are left out;
//! where the rest is more than the bytes allow, those that most read come first. What is left is in the order in which it was read.

use super::Profile;
use crate::layer::Index;
use std::collections::BTreeMap;

/// Least share of the runs: a chunk that fewer read costs more than it saves.
const LEAST: f64 = 0.25;

/// A chunk to fetch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Its number.
    pub chunk: u32,
    /// Milliseconds after which starts read it: the median of the nodes.
    pub after: u32,
    /// What part of the starts read it, up to 1.
    pub share: f64,
    /// Bytes, as it is stored.
    pub stored: u32,
}

/// What to fetch of a layer, in order; at most so many bytes, as they are stored.
pub fn plan(index: &Index, profiles: &[Profile], bytes: u64) -> Vec<Step> {
    let mut votes: BTreeMap<u32, (f64, Vec<u32>)> = BTreeMap::new();
    for profile in profiles {
        for (chunk, seen) in &profile.chunks {
            let (share, times) = votes.entry(*chunk).or_default();
            *share += f64::from(seen.runs) / f64::from(profile.runs) / profiles.len() as f64;
            times.push(seen.after);
        }
    }
    let step = |(chunk, (share, mut times)): (u32, (f64, Vec<u32>))| {
        let stored = index.chunk(chunk)?.stored_len;
        let middle = times.len() / 2;
        let (_, after, _) = times.select_nth_unstable(middle);
        Some(Step { chunk, after: *after, share, stored })
    };
    let mut steps: Vec<Step> = votes.into_iter().filter_map(step).filter(|step| step.share >= LEAST).collect();
    steps.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.after.cmp(&b.after)).then(a.chunk.cmp(&b.chunk)));
    let mut left = bytes;
    steps.retain(|step| {
        let fits = u64::from(step.stored) <= left;
        left -= if fits { u64::from(step.stored) } else { 0 };
        fits
    });
    steps.sort_by_key(|step| (step.after, step.chunk));
    steps
}
