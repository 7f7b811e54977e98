//! What the readers of the chunk cache and the thread that writes it share: which chunk is where, the segment files, the
//! counters. Rebuilt from the record headers at start; nothing of it is on disk.

use super::segment::{Hash, Record, Segment};
use super::{Lock, Options, Reserve, Result, io_error};
use crate::meter::Meter;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What readers and the writer share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) reserve: u64,
    pub(super) meter: Meter,
    pub(super) waiting_bytes: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Number of the next segment file.
    pub(super) next: AtomicU64,
    pub(super) evicted: AtomicU64,
    map: RwLock<Map>,
    _lock: Arc<Lock>,
}

/// Which chunk is where.
#[derive(Debug, Default)]
pub(super) struct Map {
    places: HashMap<Hash, Place>,
    pub(super) segments: BTreeMap<u64, Entry>,
    pub(super) bytes: u64,
}

/// Where a chunk's bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    segment: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A segment in the map.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) file: Arc<Segment>,
    pub(super) length: u64,
    hashes: Vec<Hash>,
}

impl Map {
    /// Where a chunk is.
    pub(super) fn find(&self, hash: &Hash) -> Option<(Arc<Segment>, Place)> {
        let place = *self.places.get(hash)?;
        Some((self.segments.get(&place.segment)?.file.clone(), place))
    }

    /// Forgets where a chunk is.
    pub(super) fn forget(&mut self, hash: &Hash) {
        self.places.remove(hash);
    }

    /// How many chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.places.len()
    }

    /// Adds a segment with these records; of equal chunks the later one counts.
    pub(super) fn add_segment(&mut self, number: u64, file: Segment, records: &[Record], length: u64) {
        self.segments.insert(number, Entry { file: Arc::new(file), length: 0, hashes: Vec::new() });
        for record in records {
            self.add_record(number, record);
        }
        debug_assert_eq!(self.segments.get(&number).map(|e| e.length), Some(length));
    }

    /// Adds a record at the end of a segment.
    pub(super) fn add_record(&mut self, number: u64, record: &Record) {
        let Some(entry) = self.segments.get_mut(&number) else { return };
        let end = record.offset + u64::from(record.length);
        self.bytes += end - entry.length;
        entry.length = end;
        entry.hashes.push(record.hash);
        let place = Place { segment: number, offset: record.offset, length: record.length };
        self.places.insert(record.hash, place);
    }

    /// Takes the oldest segment out.
    fn take_oldest(&mut self) -> Option<Entry> {
        let (number, entry) = self.segments.pop_first()?;
        for hash in &entry.hashes {
            if self.places.get(hash).is_some_and(|p| p.segment == number) {
                self.places.remove(hash);
            }
        }
        self.bytes -= entry.length;
        Some(entry)
    }
}

impl Shared {
    /// Makes the directory if it is missing, and reads which chunks there are.
    pub(super) fn open(dir: &Path, options: &Options, meter: &Meter, lock: Arc<Lock>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(io_error(dir, "creating"))?;
        let shared = Self {
            dir: dir.to_owned(),
            options: options.clone(),
            reserve: reserve(dir, options.reserve).map_err(io_error(dir, "asking for the size of"))?,
            meter: meter.clone(),
            waiting_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            next: AtomicU64::new(1),
            evicted: AtomicU64::new(0),
            map: RwLock::default(),
            _lock: lock,
        };
        shared.load().map_err(io_error(dir, "reading"))?;
        Ok(shared)
    }

    pub(super) fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, hash: &Hash) -> bool {
        self.map().places.contains_key(hash)
    }

    /// Reads which chunks there are, oldest segment first.
    fn load(&self) -> io::Result<()> {
        for number in Segment::numbers(&self.dir)? {
            self.next.store(number + 1, Relaxed);
            match Segment::open(&self.dir, number) {
                Ok((file, records, length)) => self.map_mut().add_segment(number, file, &records, length),
                Err(error) => {
                    tracing::warn!(number, %error, "a cache segment cannot be read and is passed over");
                }
            }
        }
        while self.map().bytes > self.options.size && self.drop_oldest() {}
        self.meter.set_cache_bytes(self.map().bytes);
        Ok(())
    }

    /// Drops the oldest segment; `false` when there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        let Some(entry) = self.map_mut().take_oldest() else { return false };
        if let Err(error) = entry.file.remove() {
            tracing::warn!(dir = %self.dir.display(), %error, "a cache segment cannot be removed");
        }
        self.evicted.fetch_add(entry.length, Relaxed);
        self.meter.evicted(entry.length);
        self.meter.set_cache_bytes(self.map().bytes);
        true
    }

    /// Bytes that may be written before the reserve is touched.
    pub(super) fn free(&self) -> io::Result<u64> {
        let fs = rustix::fs::statvfs(&self.dir)?;
        Ok(fs.f_bavail.saturating_mul(fs.f_frsize).saturating_sub(self.reserve))
    }
}

fn reserve(dir: &Path, reserve: Reserve) -> io::Result<u64> {
    match reserve {
        Reserve::Bytes(bytes) => Ok(bytes),
        Reserve::Percent(percent) => {
            let fs = rustix::fs::statvfs(dir)?;
            Ok((fs.f_blocks.saturating_mul(fs.f_frsize) as f64 * percent / 100.0) as u64)
        }
    }
}
