//! Which chunk is where, what is pinned, and which segment goes next. In memory only; the lock is `shared.rs`'s.
//!
//! Chunks are known by their names (`domain.rs`). A record of a segment that no name points to is dead: replaced,
//! forgotten, or carried over.

use super::pinned::{Pin, Pinned};
use super::segment::{Content, Hash, Kind, Record, Segment};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Highest count of uses: what was used that often stays for as many rounds without being used.
const MOST_USED: u8 = 3;

/// Which chunk is where.
#[derive(Debug, Default)]
pub(super) struct Map {
    places: HashMap<Hash, Place>,
    pub(super) segments: BTreeMap<u64, Entry>,
    /// Bytes of all segments.
    pub(super) bytes: u64,
    pinned: Pinned,
    /// Where not all pins could be read: the first segment that was made since. Anything before may be pinned.
    unsure_before: Option<u64>,
}

/// Where a chunk's bytes are, and how often they were asked for there.
#[derive(Debug)]
struct Place {
    segment: u64,
    offset: u64,
    length: u32,
    used: AtomicU8,
    /// Whether the disk failed when it was read. It is not counted on, and yet it may be the only copy of what is pinned.
    doubted: bool,
}

/// A segment in the map.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) file: Arc<Segment>,
    pub(super) kind: Kind,
    /// Bytes of the file.
    pub(super) length: u64,
    /// Where the records end; `length` where there is no footer.
    pub(super) data_end: u64,
    /// Whether its records are known, or it no longer matters that they are not.
    pub(super) loaded: bool,
    /// Whether nothing is added any more.
    pub(super) closed: bool,
    /// Whether it is about to be dropped, or was and could not be.
    leaving: bool,
    pinned: u64,
    /// Bytes of records that an administrator has dropped.
    pub(super) let_go: u64,
    records: Vec<Record>,
}

/// A segment that is about to be dropped.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) number: u64,
    pub(super) file: Arc<Segment>,
    pub(super) kind: Kind,
    /// Of its file.
    pub(super) length: u64,
    pub(super) records: Vec<Record>,
}

/// What becomes of a record when its segment is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nobody points to it.
    Dead,
    /// Nobody asked for it since it was written.
    Cold,
    /// Asked for so often.
    Used(u8),
    /// Must stay.
    Pinned,
}

impl Map {
    /// Where a chunk is; `used` counts it as asked for.
    pub(super) fn find(&self, hash: &Hash, used: bool) -> Option<(Arc<Segment>, Record)> {
        let place = self.places.get(hash)?;
        if used && place.used.load(Relaxed) < MOST_USED {
            place.used.fetch_add(1, Relaxed);
        }
        let record = Record { hash: *hash, offset: place.offset, length: place.length };
        Some((self.segments.get(&place.segment)?.file.clone(), record))
    }

    /// Whether a chunk is here, and could be read as far as anybody tried.
    pub(super) fn contains(&self, hash: &Hash) -> bool {
        self.places.get(hash).is_some_and(|place| !place.doubted)
    }

    /// The number of the segment that a chunk is in.
    pub(super) fn segment_of(&self, hash: &Hash) -> Option<u64> {
        self.places.get(hash).filter(|place| !place.doubted).map(|place| place.segment)
    }

    /// How many chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.places.len()
    }

    /// Adds a segment whose records are not known yet (or that is empty).
    pub(super) fn add_segment(&mut self, number: u64, kind: Kind, file: Segment, length: u64) -> Arc<Segment> {
        let file = Arc::new(file);
        let entry = Entry {
            file: file.clone(),
            kind,
            length,
            data_end: length,
            loaded: length == 0,
            closed: false,
            leaving: false,
            pinned: 0,
            let_go: 0,
            records: Vec::new(),
        };
        self.segments.insert(number, entry);
        self.bytes += length;
        file
    }

    /// The segments whose records are not known, newest first.
    pub(super) fn unloaded(&self) -> Vec<(u64, Arc<Segment>)> {
        let unloaded = self.segments.iter().rev().filter(|(_, entry)| !entry.loaded);
        unloaded.map(|(number, entry)| (*number, entry.file.clone())).collect()
    }

    /// Adds the records of a segment; `None` where it cannot be read, which is tried again later. Of equal chunks those
    /// that were added before count.
    pub(super) fn loaded(&mut self, number: u64, content: Option<Content>) {
        let Some(entry) = self.segments.get_mut(&number) else { return };
        entry.closed = content.is_none();
        let Some(content) = content else { return };
        self.bytes = self.bytes - entry.length + content.length;
        (entry.length, entry.data_end, entry.loaded) = (content.length, content.data_end, true);
        for record in content.records.iter().rev() {
            if !self.contains(&record.hash) {
                self.place(number, record, 0);
            }
        }
        if let Some(entry) = self.segments.get_mut(&number) {
            entry.records = content.records;
        }
    }

    /// Counts a record that was written at the end of a segment.
    pub(super) fn grown(&mut self, number: u64, record: &Record) {
        let Some(entry) = self.segments.get_mut(&number) else { return };
        entry.records.push(*record);
        entry.data_end = record.end();
        self.set_length(number, record.end());
    }

    /// Tells how long a segment is with its footer, or without.
    pub(super) fn set_length(&mut self, number: u64, length: u64) {
        let Some(entry) = self.segments.get_mut(&number) else { return };
        self.bytes = self.bytes - entry.length + length;
        entry.length = length;
    }

    /// Lets a chunk's name point to a record; `false` where its segment was dropped meanwhile.
    pub(super) fn place(&mut self, number: u64, record: &Record, used: u8) -> bool {
        if !self.segments.contains_key(&number) {
            return false;
        }
        self.forget(&record.hash);
        let pinned = self.pinned.has(&record.hash);
        let Some(entry) = self.segments.get_mut(&number) else { return false };
        entry.pinned += if pinned { record.size() } else { 0 };
        let used = AtomicU8::new(used);
        let place = Place { segment: number, offset: record.offset, length: record.length, used, doubted: false };
        self.places.insert(record.hash, place);
        true
    }

    /// Forgets where a chunk is.
    pub(super) fn forget(&mut self, hash: &Hash) {
        let Some(place) = self.places.remove(hash) else { return };
        if self.pinned.has(hash)
            && let Some(entry) = self.segments.get_mut(&place.segment)
        {
            entry.pinned -= Record { hash: *hash, offset: 0, length: place.length }.size();
        }
    }

    /// Forgets where a chunk is, because an administrator said so; `false` where it is pinned, or not here.
    pub(super) fn let_go(&mut self, hash: &Hash) -> bool {
        if self.pinned.has(hash) || !self.contains(hash) {
            return false;
        }
        if let Some(place) = self.places.remove(hash)
            && let Some(entry) = self.segments.get_mut(&place.segment)
        {
            entry.let_go += Record { hash: *hash, offset: 0, length: place.length }.size();
        }
        true
    }

    /// Forgets a chunk if it is still where it was found: another copy of it may be right.
    pub(super) fn forget_at(&mut self, file: &Segment, record: &Record) {
        if self.is_at(file, record) {
            self.forget(&record.hash);
        }
    }

    /// As [`Map::forget_at`], where it is the disk that failed: what is pinned stays where it is, and is brought again.
    pub(super) fn doubt_at(&mut self, file: &Segment, record: &Record) {
        if !self.is_at(file, record) {
        } else if self.pinned.has(&record.hash) {
            self.places.get_mut(&record.hash).into_iter().for_each(|place| place.doubted = true);
        } else {
            self.forget(&record.hash);
        }
    }

    /// Whether a chunk's name points to this record.
    fn is_at(&self, file: &Segment, record: &Record) -> bool {
        let place = self.places.get(&record.hash).filter(|place| place.offset == record.offset);
        let segment = place.and_then(|place| self.segments.get(&place.segment));
        segment.is_some_and(|entry| std::ptr::eq(&*entry.file, file))
    }

    /// The segments that no name points to.
    pub(super) fn dead(&self) -> Vec<u64> {
        let dead = |(number, entry): &(&u64, &Entry)| {
            self.may_go(**number, entry) && entry.records.iter().all(|r| self.fate(**number, r) == Fate::Dead)
        };
        self.segments.iter().filter(dead).map(|(number, _)| *number).collect()
    }

    /// Whether it is known that a segment may be dropped once what is pinned in it is elsewhere.
    fn may_go(&self, number: u64, entry: &Entry) -> bool {
        entry.loaded && self.unsure_before.is_none_or(|first| number >= first)
    }

    /// Says that not all pins could be read, with the number that the next segment will have; or that they were.
    pub(super) fn set_unsure(&mut self, before: Option<u64>) {
        self.unsure_before = before;
    }

    /// Whether there is anything that could not be read at the start.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_unsure() || self.segments.values().any(|entry| !entry.loaded)
    }

    /// Whether not all pins could be read.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure_before.is_some()
    }

    /// Gives up the segments that cannot be read, unless something pinned may be in them: they count as empty then.
    pub(super) fn give_up_unloaded(&mut self) {
        if !self.is_unsure() && self.pinned.chunks().all(|name| self.places.contains_key(name)) {
            self.segments.values_mut().for_each(|entry| entry.loaded = true);
        }
    }

    /// Adds nothing to a segment any more.
    pub(super) fn close(&mut self, number: u64) {
        self.segments.get_mut(&number).into_iter().for_each(|entry| entry.closed = true);
    }

    /// Lets segments that could not be dropped have their turn again.
    pub(super) fn try_again(&mut self) {
        self.segments.values_mut().for_each(|entry| entry.leaving = false);
    }

    /// The records of a segment that names point to.
    pub(super) fn live(&self, number: u64) -> Vec<Record> {
        let Some(entry) = self.segments.get(&number) else { return Vec::new() };
        entry.records.iter().filter(|record| self.fate(number, record) != Fate::Dead).copied().collect()
    }

    /// What becomes of a record.
    pub(super) fn fate(&self, number: u64, record: &Record) -> Fate {
        match self.places.get(&record.hash) {
            Some(place) if (place.segment, place.offset) == (number, record.offset) => {
                match (self.pinned.has(&record.hash), place.used.load(Relaxed)) {
                    (true, _) => Fate::Pinned,
                    (false, 0) => Fate::Cold,
                    (false, used) => Fate::Used(used),
                }
            }
            _ => Fate::Dead,
        }
    }

    /// The segment that is dropped next, marked so (those that are marked already are passed over): the oldest young one
    /// while these have more than `young` bytes, else the oldest kept one. Never one that is pinned by more than half: it
    /// would be written again for little.
    pub(super) fn leave(&mut self, young: u64) -> Option<Leaving> {
        let lengths: Vec<u64> = self.segments.values().filter(|e| e.kind == Kind::Young).map(|e| e.length).collect();
        // The only young segment is the one that is being written.
        let much = lengths.len() > 1 && lengths.iter().sum::<u64>() > young;
        let first = if much { Kind::Young } else { Kind::Kept };
        let number = [first, first.other()]
            .into_iter()
            .find_map(|kind| self.oldest(|e| e.kind == kind && !e.leaving && e.pinned.saturating_mul(2) <= e.length))?;
        let records = self.live(number);
        let entry = self.segments.get_mut(&number)?;
        (entry.leaving, entry.closed) = (true, true);
        Some(Leaving { number, file: entry.file.clone(), kind: entry.kind, length: entry.length, records })
    }

    /// Takes the oldest segment out in which nothing is pinned.
    pub(super) fn take_unpinned(&mut self) -> Option<Entry> {
        let free = |kind| self.oldest(|e| e.kind == kind && e.pinned == 0);
        let number = free(Kind::Young).or_else(|| free(Kind::Kept))?;
        self.take(number)
    }

    fn oldest(&self, fits: impl Fn(&Entry) -> bool) -> Option<u64> {
        self.segments
            .iter()
            .find(|(number, entry)| self.may_go(**number, entry) && fits(entry))
            .map(|(number, _)| *number)
    }

    /// Takes a segment out, with what is in it.
    pub(super) fn take(&mut self, number: u64) -> Option<Entry> {
        for record in self.live(number) {
            self.forget(&record.hash);
        }
        let entry = self.segments.remove(&number)?;
        self.bytes -= entry.length;
        Some(entry)
    }

    /// What is pinned.
    pub(super) fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// Sets a pin, or takes it away.
    pub(super) fn set_pin(&mut self, name: &Hash, pin: Option<Pin>) {
        for chunk in self.pinned.set(name, pin) {
            let Some(place) = self.places.get(&chunk) else { continue };
            let Some(entry) = self.segments.get_mut(&place.segment) else { continue };
            let size = Record { hash: chunk, offset: 0, length: place.length }.size();
            match self.pinned.has(&chunk) {
                true => entry.pinned += size,
                false => entry.pinned -= size,
            }
        }
    }
}
