//! Where chunks end.
//!
//! Cut points depend on paths and sizes only, and on long runs of zeros, so that equal files give equal chunks in different
//! layers. A file as large as the target size T starts a chunk and is cut every T; a tail shorter than T/4 stays with the
//! chunk before it.
//! Smaller files are packed with their neighbours in path order: a pack ends before a file that would take it past T, and,
//! once it has T/2, before one file in four, chosen by a hash of its path and size, so that two layers that differ
//! in some small files come back to the same cuts soon. Long runs of zeros are chunks of their own, large ones.

use super::hash::RUN_MIN;
use super::item::Item;
use blobstore::layer::format::MAX_FRAME;

/// Takes the bodies in path order and gives the chunks' lengths.
#[derive(Debug)]
pub(super) struct Cutter {
    target: u64,
    /// Length of the pack that is open.
    pack: u64,
    /// Whether packs are as full as they can be.
    full: bool,
    cuts: Vec<u32>,
}

impl Cutter {
    pub(super) fn new(target: u32) -> Self {
        Self { target: u64::from(target), pack: 0, full: false, cuts: Vec::new() }
    }

    /// Whether the next bodies fill their packs, which end by length alone then: for contents that are read together. A pack
    /// does not hold both.
    pub(super) fn set_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.full, full) != full {
            self.flush();
        }
    }

    /// Adds a body; `zeros` are its runs of zero blocks, `key` is a hash of its path and size.
    pub(super) fn add(&mut self, item: &Item, zeros: &[(u64, u64)], key: [u8; 32]) {
        let length = item.length();
        if length >= self.target {
            self.flush();
            return self.large(length, zeros);
        }
        if self.pack + length > self.target || (!self.full && self.pack >= self.target / 2 && key[0] & 3 == 0) {
            self.flush();
        }
        self.pack += length;
    }

    fn large(&mut self, length: u64, zeros: &[(u64, u64)]) {
        let mut offset = 0;
        while offset < length {
            let zeros = zeros_at(zeros, offset);
            let chunk = match zeros >= self.target.max(RUN_MIN) {
                true => zeros.min(u64::from(MAX_FRAME)),
                false => self.next_cut(length - offset),
            };
            self.push(chunk);
            offset += chunk;
        }
    }

    fn next_cut(&self, left: u64) -> u64 {
        if left < self.target + self.target / 4 { left } else { self.target }
    }

    /// Ends the pack that is open.
    fn flush(&mut self) {
        match std::mem::take(&mut self.pack) {
            0 => {}
            pack => self.push(pack),
        }
    }

    fn push(&mut self, length: u64) {
        // Fits: no chunk is larger than MAX_FRAME, or than the target and a quarter of it.
        self.cuts.push(length as u32);
    }

    /// The length of each chunk, in order.
    pub(super) fn finish(mut self) -> Vec<u32> {
        self.flush();
        self.cuts
    }
}

/// Zeros from this byte on, as far as their run goes.
fn zeros_at(runs: &[(u64, u64)], offset: u64) -> u64 {
    let next = runs.partition_point(|(start, length)| start + length <= offset);
    runs.get(next).filter(|(start, _)| *start <= offset).map_or(0, |(start, length)| start + length - offset)
}
