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
/// Segments dropped before one that could not be is tried again.
const RETRY: u32 = 16;

/// What eviction remembers.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    ghosts: Ghosts,
    credit: u64,
    /// Segments dropped since those that could not be dropped had their turn.
    since_retry: u32,
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
    /// Drops the segment whose turn it is, and carries over what shall stay of it. One of which something pinned cannot be
    /// written elsewhere is passed over for a while. `false` when there is none.
    pub(super) fn evict(&mut self) -> bool {
        self.shared.look_again();
        self.eviction.since_retry += 1;
        if self.eviction.since_retry >= RETRY {
            self.try_again();
        }
        loop {
            let leaving = self.shared.map_mut().leave(self.shared.options.size / YOUNG);
            let Some(leaving) = leaving else { break };
            match self.carry(&leaving) {
                Ok(carried) => {
                    self.shared.drop_segment(leaving.number, carried);
                    return true;
                }
                Err(error) => self.complain(&error),
            }
        }
        self.try_again();
        false
    }

    fn try_again(&mut self) {
        self.eviction.since_retry = 0;
        self.shared.map_mut().try_again();
    }

    /// Writes elsewhere what shall stay of a segment; gives the bytes. An error means that something pinned is still
    /// only where it was.
    fn carry(&mut self, from: &Leaving) -> io::Result<u64> {
        // Before all else: it must find room.
        let pinned = self.carry_pinned(from)?;
        let mut carried = 0;
        for record in &from.records {
            let fate = self.shared.map().fate(from.number, record);
            let size = match fate {
                Fate::Used(used)
                    if carried + record.size() <= self.shared.margin() && self.shared.fits(record.size()) =>
                {
                    self.carry_used(from, record, used)
                }
                _ => 0,
            };
            carried += size;
            if size == 0 && fate != Fate::Dead && from.kind == Kind::Young {
                let most = self.shared.map().chunks();
                self.eviction.ghosts.add(&record.hash, most);
            }
        }
        self.shared.carried.fetch_add(carried, Relaxed);
        Ok(pinned + carried)
    }

    /// Writes elsewhere what is pinned in a segment; gives the bytes. What could be is elsewhere also after an error.
    fn carry_pinned(&mut self, from: &Leaving) -> io::Result<u64> {
        let (mut copies, mut carried, mut failed) = (Vec::new(), 0, None);
        for record in &from.records {
            if self.shared.map().fate(from.number, record) == Fate::Pinned {
                match self.copy(from, record) {
                    Ok(copy) => copies.extend(copy),
                    Err(error) => failed = Some(error),
                }
            }
        }
        if !copies.is_empty() {
            self.sync(&copies.iter().map(|(number, _)| *number).collect::<BTreeSet<_>>())?;
        }
        for (number, record) in &copies {
            // Nothing was pinned in the new segment until now, so that `shed` may have taken it.
            if !self.shared.map_mut().place(*number, record, 0) {
                return Err(io::Error::other("what is pinned was to go to a segment that has been dropped"));
            }
            carried += record.size();
            self.shared.carried.fetch_add(record.size(), Relaxed);
        }
        failed.map_or(Ok(carried), Err)
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

    /// Whether a chunk may stand in two places although the quota has no room for that: while a quota that was made smaller is
    /// not reached yet, or its segments not gone. Half of a segment at most is carried over, and all of it goes.
    fn may_pass_quota(&self, from: &Leaving, record: &Record) -> io::Result<bool> {
        let options = &self.shared.options;
        let larger = self.shared.map().bytes > options.size || from.length / 2 > options.segment;
        Ok(larger && self.shared.free()? >= record.size())
    }

    /// Writes a chunk to the kept queue; `None` when its bytes are not right.
    fn copy(&mut self, from: &Leaving, record: &Record) -> io::Result<Option<(u64, Record)>> {
        if !self.shared.fits(record.size()) && !self.may_pass_quota(from, record)? {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no room to carry a chunk over"));
        }
        // What the disk does not give now may be right all the same.
        let bytes = from.file.read(record)?;
        if self.shared.domain.name_of(&bytes) != record.hash {
            self.shared.meter.verify_failed();
            self.shared.map_mut().forget_at(&from.file, record);
            return Ok(None);
        }
        self.append(Kind::Kept, &record.hash, &bytes).map(Some)
    }
}
