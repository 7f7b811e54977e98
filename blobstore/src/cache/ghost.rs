//! What was dropped from the young queue lately: fetched again soon, it was dropped too early, and goes to the
//! kept segments at once.

use super::segment::Hash;
use std::collections::{HashSet, VecDeque};

/// Some last names, by their first 8 bytes: an error of 1 in 2^40 costs a place in the wrong queue.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<u64>,
    names: HashSet<u64>,
}

impl Ghosts {
    /// Remembers a name; of more than `most` the oldest are forgotten.
    pub(super) fn add(&mut self, hash: &Hash, most: usize) {
        if self.names.insert(first(hash)) {
            self.order.push_back(first(hash));
        }
        while self.order.len() > most {
            self.order.pop_front().map(|oldest| self.names.remove(&oldest));
        }
    }

    /// Whether a name is remembered.
    pub(super) fn has(&self, hash: &Hash) -> bool {
        self.names.contains(&first(hash))
    }

    /// Forgets a name. What stays of it in `order` takes a place until its turn comes.
    pub(super) fn remove(&mut self, hash: &Hash) {
        self.names.remove(&first(hash));
    }
}

fn first(hash: &Hash) -> u64 {
    hash.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}
