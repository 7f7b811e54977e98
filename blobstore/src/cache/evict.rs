//! Which chunks stay when a segment is dropped.
//!
//! Two queues of segments, as S3-FIFO has them (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023). Chunks come to the *young* one; as long as that has more than a tenth of the quota, its oldest segment is
//! dropped, else the oldest *kept* one. Of a young segment, the chunks that were asked for in the cache since they came
//! are written to the kept queue; of a kept one, those that were asked for since the last round, each use worth one round and
//! three at most. What was dropped from the young queue and is fetched again soon goes to the kept queue at once
//! (`ghost.rs`). So a scan passes through a tenth of the cache, and the rest keeps its content.
//!
//! **Writing is bounded.** Carrying over is paid from a credit that grows by half a byte for each byte fetched; where
//! it does not suffice, chunks are dropped. What is pinned is carried over without credit, but segments that are pinned
//! by more than half are not dropped, and pins have at most 2/5 of the quota. So disk writes are at most
//! 1.5 bytes for each byte fetched; with pins one more for each byte dropped; and the footers, 44 bytes a chunk.

use super::ghost::Ghosts;
use super::map::{Fate, Leaving};
use super::segment::{Hash, Kind, Record};
use super::write::Writer;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// The young queue has the quota's `1 / YOUNG`.
const YOUNG: u64 = 10;
/// Carried over is at most `1 / CREDIT` of what was fetched.
const CREDIT: u64 = 2;

/// What eviction remembers.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    ghosts: Ghosts,
    credit: u64,
}

impl Eviction {
    /// The queue that a chunk goes to when it is fetched.
    pub(super) fn kind(&self, name: &Hash) -> Kind {
        if self.ghosts.has(name) { Kind::Kept } else { Kind::Young }
    }

    /// Counts what was fetched.
    pub(super) fn fetched(&mut self, name: &Hash, size: u64) {
        self.ghosts.remove(name);
        self.credit += size / CREDIT;
    }

    fn pay(&mut self, size: u64) -> bool {
        let enough = self.credit >= size;
        self.credit -= if enough { size } else { 0 };
        enough
    }
}

impl Writer {
    /// Drops the segment whose turn it is, and carries over what shall stay of it; `false` when there is none, or when
    /// what is pinned cannot be written elsewhere.
    pub(super) fn evict(&mut self) -> bool {
        let leaving = self.shared.map_mut().leave(self.shared.options.size / YOUNG);
        let Some(leaving) = leaving else { return false };
        match self.carry(&leaving) {
            Ok(carried) => {
                self.shared.drop_segment(leaving.number, carried);
                true
            }
            Err(error) => {
                self.complain(&error);
                if let Some(entry) = self.shared.map_mut().segments.get_mut(&leaving.number) {
                    entry.leaving = false; // but it stays closed
                }
                false
            }
        }
    }

    /// Writes elsewhere what shall stay of a segment; gives the bytes. An error means that something pinned is still
    /// only where it was.
    fn carry(&mut self, from: &Leaving) -> io::Result<u64> {
        let (mut carried, mut pinned) = (0, Vec::new());
        for record in &from.records {
            let fate = self.shared.map().fate(from.number, record);
            let stays = match fate {
                Fate::Dead => true,
                Fate::Pinned => {
                    pinned.extend(self.copy(from, record)?);
                    true
                }
                Fate::Used(used) if carried + record.size() <= self.shared.margin() => {
                    let size = self.carry_used(from, record, used);
                    carried += size;
                    size != 0
                }
                Fate::Used(_) | Fate::Cold => false,
            };
            if !stays && from.kind == Kind::Young {
                let most = self.shared.map().chunks();
                self.eviction.ghosts.add(&record.hash, most);
            }
        }
        if !pinned.is_empty() {
            self.sync(&pinned.iter().map(|(number, _)| *number).collect::<BTreeSet<_>>())?;
        }
        for (number, record) in &pinned {
            // Nothing was pinned in the new segment until now, so that `shed` may have taken it.
            if !self.shared.map_mut().place(*number, record, 0) {
                return Err(io::Error::other("what is pinned was to go to a segment that has been dropped"));
            }
            carried += record.size();
        }
        self.shared.carried.fetch_add(carried, Relaxed);
        Ok(carried)
    }

    /// Carries over a chunk that is not pinned, if there is credit and the disk takes it; gives the bytes.
    fn carry_used(&mut self, from: &Leaving, record: &Record, used: u8) -> u64 {
        if !self.eviction.pay(record.size()) {
            return 0;
        }
        // What made it stay is used up: a use gained it the kept queue, or a round there.
        let used = if from.kind == Kind::Young { 0 } else { used - 1 };
        match self.copy(from, record) {
            Ok(Some((number, copy))) => {
                self.shared.map_mut().place(number, &copy, used);
                record.size()
            }
            Ok(None) => 0,
            Err(error) => {
                self.complain(&error);
                0
            }
        }
    }

    /// Writes a chunk to the kept queue; `None` when its bytes are not right.
    fn copy(&mut self, from: &Leaving, record: &Record) -> io::Result<Option<(u64, Record)>> {
        let Some(bytes) = self.shared.verified(&from.file, record) else { return Ok(None) };
        self.append(Kind::Kept, &record.hash, &bytes).map(Some)
    }
}
