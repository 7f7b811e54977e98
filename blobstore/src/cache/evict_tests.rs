//! How well eviction chooses: a working set that is read again and again, and scans through it; against dropping what is
//! oldest. Counted, not timed.

use super::sim_disk::{Random, SimDisk};
use super::{Chunks, Options, Reserve};
use crate::meter::Meter;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

const CHUNK: usize = 64;
const RECORD: u64 = 40 + CHUNK as u64;
/// Chunks that fit the quota.
const FIT: u64 = 2_000;

/// What the present cache and one that drops what is oldest make of the same reads.
struct Outcome {
    hits: f64,
    hits_oldest: f64,
    /// Bytes written for each byte fetched.
    written: f64,
}

/// `reads`: number of the chunk, and whether its hits are counted.
fn replay(reads: impl Iterator<Item = (u64, bool)>) -> Outcome {
    let size = FIT * RECORD;
    let options = Options { reserve: Reserve::Bytes(0), segment: size / 100, ..Options::new(size) };
    let meter = Meter::default();
    let chunks = Chunks::on(Arc::new(SimDisk::new(2 * size)), &options, &meter, None).unwrap();
    let (mut oldest, mut there) = (VecDeque::new(), HashSet::new());
    let (mut counted, mut hits, mut hits_oldest, mut fetched) = (0, 0, 0, 0);
    for (n, counts) in reads {
        let hash = *blake3::hash(&n.to_le_bytes()).as_bytes();
        let bytes: Vec<u8> = hash.iter().chain(&hash).copied().collect();
        let name = *blake3::hash(&bytes).as_bytes();
        let hit = chunks.get(&name, CHUNK as u32).is_some();
        if !hit {
            chunks.put(name, bytes.into());
            chunks.flush();
            fetched += RECORD;
        }
        let hit_oldest = !there.insert(n);
        if !hit_oldest {
            oldest.push_back(n);
            if oldest.len() as u64 > FIT {
                there.remove(&oldest.pop_front().unwrap());
            }
        }
        if counts {
            counted += 1;
            hits += u64::from(hit);
            hits_oldest += u64::from(hit_oldest);
        }
    }
    drop(chunks);
    let outcome = Outcome {
        hits: hits as f64 / f64::from(counted),
        hits_oldest: hits_oldest as f64 / f64::from(counted),
        written: meter.cache_written_bytes() as f64 / fetched as f64,
    };
    let Outcome { hits, hits_oldest, written } = outcome;
    eprintln!("hits {hits:.3}, oldest first {hits_oldest:.3}, written {written:.3} x fetched");
    // A half is carried over at most; a footer has 44 bytes for a chunk, here of 104.
    assert!(written <= 1.5 * (1.0 + 44.0 / RECORD as f64) + 0.05, "{written}");
    outcome
}

/// A working set of 1,200 of 2,000 chunks, and for each read of it `scan` reads of what is never read again.
fn with_scan(scan: u64) -> Outcome {
    let mut random = Random(7);
    let reads = (0..24_000 / (1 + scan)).flat_map(move |n| {
        // The first round fills the cache.
        let hot = random.below(1_200) as u64;
        std::iter::once((hot, n > 6_000 / (1 + scan))).chain((0..scan).map(move |s| (1_000_000 + n * scan + s, false)))
    });
    replay(reads)
}

#[test]
fn a_working_set_stays_while_scans_pass_through() {
    let outcome = with_scan(3);
    assert!(outcome.hits > outcome.hits_oldest + 0.2, "{} against {}", outcome.hits, outcome.hits_oldest);
}

#[test]
fn a_long_scan_leaves_the_working_set_where_it_is() {
    let mut random = Random(3);
    let warm: Vec<_> = (0..8_000).map(|_| (random.below(1_000) as u64, false)).collect();
    let some_others = (0..1_000).map(|n| (500_000 + n, false));
    let rounds: Vec<_> = (0..4_000).map(|_| (random.below(1_000) as u64, false)).collect();
    let scan = (0..6_000).map(|n| (1_000_000 + n, false));
    let again = (0..1_000).map(|n| (n, true));
    let outcome = replay(warm.into_iter().chain(some_others).chain(rounds).chain(scan).chain(again));
    assert!(outcome.hits > 0.75 && outcome.hits_oldest < 0.01, "{} against {}", outcome.hits, outcome.hits_oldest);
}

#[test]
fn popular_chunks_stay_as_well_as_with_the_oldest_dropped_or_better() {
    // The cube of an evenly distributed number, from 0 to 100,000: few chunks have most of the reads.
    let mut random = Random(11);
    let reads = (0..24_000).map(move |n| {
        let x = random.below(100_000) as u64;
        (x * x * x / 100_000_000_000, n > 6_000)
    });
    let outcome = replay(reads);
    assert!(outcome.hits >= outcome.hits_oldest - 0.01, "{} against {}", outcome.hits, outcome.hits_oldest);
}
