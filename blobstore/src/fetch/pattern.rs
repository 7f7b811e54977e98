//! What the reads of a layer so far say of the next ones. Plain data: no time, no store.
//!
//! **Runs.** A file's data lie together in the data space, and so do the files of a directory; whoever reads them from the
//! start to the end makes reads that follow each other. Once they have gone on for [`LEAST`] bytes, a window ahead of them is
//! fetched, which doubles each time half of it has been read, up to a bound. Many runs go on side by side: sixteen threads
//! that read sixteen files are sixteen runs of one device. The kernel cuts its own readahead (128 KiB) into single pages, which come
//! a little out of order: that ends no run.
//!
//! **Neighbours.** A program's start jumps, and the chunks that it asks for lie in heaps all the same: the chunk on either
//! side of one that was just asked for is fetched as well, where enough near it have been asked for ([`WEIGHTS`], [`ENOUGH`]).
//!
//! How these numbers were found: the kernel's reads were recorded of cold starts (import of numpy and pandas; TypeScript in
//! Node; a C++ compilation; chunks of 512 KiB; 25,000 reads, nearly all of one page) and rules were tried on them.
//! In each field: reads that have to wait for the store, and MB fetched.
//!
//! | | Python | Node | C++ |
//! |---|---|---|---|
//! | nothing ahead | 200; 24.7 | 132; 20.9 | 113; 16.7 |
//! | always the next chunk | 140; 29.1 | 84; 23.0 | 82; 20.1 |
//! | runs from 256 KiB on | 159; 28.6 | 79; 26.6 | 95; 20.4 |
//! | **runs from 512 KiB on** | 187; 26.1 | 90; 24.0 | 110; 17.3 |
//! | those, and neighbours from 16 on | 131; 30.7 | 58; 25.8 | 73; 20.3 |
//! | **those, and neighbours from 21 on** | 146; 28.9 | 64; 25.3 | 85; 18.7 |
//! | those, and neighbours from 30 on | 170; 27.0 | 74; 24.2 | 98; 17.5 |
//!
//! More that is likely saves more waits, and ever fewer of its bytes are read: they cost the store, the network and the cache of
//! every node. Which chunks a start reads is what profiles say, at no such price.

use std::collections::VecDeque;
use std::ops::Range;

/// Runs of one layer that are remembered.
const RUNS: usize = 64;
/// A read that begins so near to where the last one ended belongs to the run.
const DISORDER: u64 = 128 << 10;
/// Bytes read in sequence that make a run.
const LEAST: u64 = 512 << 10;
/// The first window; it doubles.
pub(super) const FIRST: u64 = 1 << 20;
/// What a chunk that was asked for counts for one at this distance, nearest first.
const WEIGHTS: [u32; 5] = [10, 7, 5, 3, 2];
/// So many chunks that a profile does not know say nothing against it.
const FEW: u32 = 4;
/// A chunk that counts so much is likely to be asked for.
const ENOUGH: u32 = 21;

/// Reads of one layer.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    /// The one that was read last is at the end.
    runs: VecDeque<Run>,
    /// One bit for each chunk that readers asked for.
    asked: Vec<u64>,
    /// One for each that a profile says they will ask for.
    foreseen: Vec<u64>,
    /// How many they asked for since there is one, and how many of those it had not said.
    told: [u32; 2],
}

#[derive(Debug)]
struct Run {
    /// Where the next read is expected.
    next: u64,
    /// Bytes that it has gone on for.
    length: u64,
    /// Bytes that are to be fetched ahead.
    window: u64,
    /// Up to where that has been done.
    ahead: u64,
}

/// What is to be done ahead of the reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    /// Bytes of the data space to fetch.
    pub(super) fetch: Range<u64>,
    /// Bytes of the data space that a run that has ended had fetched, and that it did not come to.
    pub(super) drop: Range<u64>,
}

impl Pattern {
    /// Notes a read of these bytes. At most `most` bytes are to be ahead of its run.
    pub(super) fn read(&mut self, bytes: Range<u64>, most: u64) -> Advice {
        let belongs = |run: &Run| bytes.start.abs_diff(run.next) <= DISORDER;
        let mut advice = Advice::default();
        let Some(at) = self.runs.iter().rposition(belongs) else {
            if self.runs.len() >= RUNS
                && let Some(ended) = self.runs.pop_front()
            {
                advice.drop = ended.next..ended.ahead.max(ended.next);
            }
            self.runs.push_back(Run { next: bytes.end, length: bytes.end - bytes.start, window: 0, ahead: bytes.end });
            return advice;
        };
        let Some(mut run) = self.runs.remove(at) else { return advice };
        if bytes.end > run.next {
            run.length = run.length.saturating_add(bytes.end - run.next);
            run.next = bytes.end;
        }
        run.ahead = run.ahead.max(run.next);
        if run.length >= LEAST && run.ahead - run.next <= run.window / 2 {
            run.window = (run.window * 2).max(FIRST).min(most);
            let end = run.next.saturating_add(run.window);
            advice.fetch = run.ahead..end.max(run.ahead);
            run.ahead = run.ahead.max(end);
        }
        self.runs.push_back(run);
        advice
    }

    /// Notes that a reader asked for a chunk; gives those beside it that are likely to be next, each once.
    pub(super) fn asked(&mut self, chunk: u32) -> impl Iterator<Item = u32> + use<> {
        let new = !self.was_asked(chunk);
        set(&mut self.asked, chunk);
        if new && !self.foreseen.is_empty() {
            self.told[0] += 1;
            self.told[1] += u32::from(!has(&self.foreseen, chunk));
        }
        let sides = [chunk.checked_add(1), chunk.checked_sub(1)].into_iter().flatten();
        let likely: Vec<u32> = sides.filter(|side| new && !self.was_asked(*side) && self.likely(*side)).collect();
        likely.into_iter()
    }

    /// Whether readers asked for a chunk.
    pub(super) fn was_asked(&self, chunk: u32) -> bool {
        has(&self.asked, chunk)
    }

    /// A profile says that readers will ask for this chunk.
    pub(super) fn foresee(&mut self, chunk: u32) {
        set(&mut self.foreseen, chunk);
    }

    /// Whether there is a profile, and what readers ask for is mostly what it says: then no neighbour need be guessed.
    pub(super) fn is_foreseen(&self) -> bool {
        !self.foreseen.is_empty() && self.told[1] <= (self.told[0] / 4).max(FEW)
    }

    fn likely(&self, chunk: u32) -> bool {
        let count = |distance: u32| {
            let sides = [chunk.checked_add(distance), chunk.checked_sub(distance)];
            sides.into_iter().flatten().filter(|c| self.was_asked(*c)).count() as u32
        };
        WEIGHTS.iter().zip(1..).map(|(weight, distance)| weight * count(distance)).sum::<u32>() >= ENOUGH
    }
}

fn has(bits: &[u64], chunk: u32) -> bool {
    bits.get(chunk as usize / 64).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
}

fn set(bits: &mut Vec<u64>, chunk: u32) {
    let word = chunk as usize / 64;
    if word >= bits.len() {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (chunk % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Reads 128 KiB at a time from `start`; gives what was to be fetched.
    fn run(pattern: &mut Pattern, start: u64, reads: u64, most: u64) -> Vec<Range<u64>> {
        let read = |n| pattern.read(start + n * 128 * KIB..start + (n + 1) * 128 * KIB, most).fetch;
        (0..reads).map(read).filter(|f| !f.is_empty()).collect()
    }

    #[test]
    fn the_window_doubles_and_is_bounded_and_has_no_holes() {
        let mut pattern = Pattern::default();
        let fetched = run(&mut pattern, 0, 400, 8 * MIB);
        assert_eq!(fetched[0], LEAST..LEAST + MIB);
        let mut at = LEAST;
        for range in &fetched {
            assert_eq!(range.start, at);
            at = range.end;
        }
        let sizes: Vec<u64> = fetched.iter().map(|f| f.end - f.start).collect();
        assert!(sizes[1] > sizes[0] && sizes.iter().all(|s| *s <= 8 * MIB), "{sizes:?}");
        let end = 400 * 128 * KIB;
        assert!((end + 4 * MIB..=end + 8 * MIB).contains(&at), "{} bytes ahead of the last read", at - end);
    }

    #[test]
    fn a_small_file_is_no_run_and_neither_are_jumps() {
        let mut pattern = Pattern::default();
        assert_eq!(run(&mut pattern, 0, 3, MIB), []);
        for n in 0..1000u64 {
            let at = (n * 7919 % 1000) * MIB;
            let advice = pattern.read(at..at + 4 * KIB, MIB);
            assert!(advice.fetch.is_empty() && advice.drop.is_empty());
        }
    }

    #[test]
    fn sixteen_runs_go_on_side_by_side_and_a_little_disorder_ends_none() {
        let mut pattern = Pattern::default();
        let mut fetched = 0;
        for n in 0..80u64 {
            for file in 0..16u64 {
                let at = file * 100 * MIB + (n ^ 1) * 64 * KIB;
                let advice = pattern.read(at..at + 64 * KIB, MIB);
                fetched += advice.fetch.end - advice.fetch.start;
            }
        }
        assert!(fetched >= 16 * 5 * MIB, "{fetched}");
        assert_eq!(pattern.runs.len(), 16);
    }

    #[test]
    fn what_an_ended_run_did_not_come_to_is_said() {
        let mut pattern = Pattern::default();
        run(&mut pattern, 0, 4, MIB);
        let mut dropped = Vec::new();
        for n in 1..=RUNS as u64 {
            let advice = pattern.read(n * 100 * MIB..n * 100 * MIB + 1, MIB);
            dropped.extend((!advice.drop.is_empty()).then_some(advice.drop));
        }
        assert_eq!(dropped, std::iter::once(LEAST..LEAST + MIB).collect::<Vec<_>>());
    }

    #[test]
    fn chunks_between_and_beside_heaps_are_likely_and_others_are_not() {
        let mut pattern = Pattern::default();
        let mut asked = |chunk| pattern.asked(chunk).collect::<Vec<_>>();
        // For 8, once 9 is asked for: 10 (9), 7 (10), 3 (12), 2 (13).
        for (chunk, likely) in [(10, vec![]), (12, vec![]), (13, vec![]), (9, vec![8]), (11, vec![]), (8, vec![7])] {
            assert_eq!(asked(chunk), likely, "{chunk}");
        }
        assert!(asked(8).is_empty());
        assert!(asked(100).is_empty());
        assert!(asked(0).is_empty());
    }

    #[test]
    fn a_profile_is_believed_as_long_as_most_of_what_is_asked_for_is_what_it_says() {
        let mut pattern = Pattern::default();
        assert!(!pattern.is_foreseen());
        (0..100).for_each(|chunk| pattern.foresee(chunk));
        (0..40).chain(200..210).for_each(|chunk| drop(pattern.asked(chunk)));
        assert!(pattern.is_foreseen());
        (210..214).for_each(|chunk| drop(pattern.asked(chunk)));
        assert!(!pattern.is_foreseen());
        let mut wrong = Pattern::default();
        wrong.foresee(1000);
        (0..5).for_each(|chunk| drop(wrong.asked(chunk)));
        assert!(!wrong.is_foreseen());
    }
}
