//! The chunk cache: compressed chunks by their BLAKE3, in segment files, within a quota.
//!
//! Which chunk is where is known in memory only, rebuilt from the record headers at start. Chunks are written by one
//! thread behind a bounded queue (`write.rs`), so that no reader waits for the disk; a full queue, a full disk and a
//! failing one mean that a chunk is not cached. The quota drops the oldest segment file.
//!
//! **What [`Chunks::get`] gives is not verified.** The caller checks the hash before it uses a byte, and says
//! [`Chunks::forget`] where it does not match.

use super::segment::{Hash, Record, Segment};
use super::write::{Job, Writer};
use super::{Lock, Options, Reserve, Result, io_error};
use crate::meter::Meter;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

/// The chunk cache of this node.
#[derive(Debug)]
pub struct Chunks {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What the chunk cache says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes of the segment files.
    pub bytes: u64,
    /// The most they may have.
    pub limit: u64,
    /// Chunks.
    pub chunks: u64,
    /// Segment files.
    pub segments: u64,
    /// Bytes dropped to make room, since the start.
    pub evicted_bytes: u64,
    /// Chunks not cached because the queue was full, since the start.
    pub refused: u64,
    /// Chunks not cached because the disk was full or failed, since the start.
    pub failed: u64,
}

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
    evicted: AtomicU64,
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

#[derive(Debug, Clone, Copy)]
struct Place {
    segment: u64,
    offset: u64,
    length: u32,
}

/// A segment in the map.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) file: Arc<Segment>,
    pub(super) length: u64,
    hashes: Vec<Hash>,
}

impl Map {
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

impl Chunks {
    pub(super) fn open(dir: &Path, options: &Options, meter: &Meter, lock: Arc<Lock>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(io_error(dir, "creating"))?;
        let shared = Arc::new(Shared {
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
        });
        shared.load().map_err(io_error(dir, "reading"))?;
        let (queue, jobs) = mpsc::sync_channel(options.queue.max(1));
        let writer = Writer::new(shared.clone());
        let thread = std::thread::Builder::new().name("cache-write".into()).spawn(move || writer.run(&jobs));
        let thread = thread.map_err(io_error(dir, "starting the writer of"))?;
        Ok(Self { shared, queue: Some(queue), thread: Some(thread) })
    }

    /// Whether a chunk is here.
    pub fn contains(&self, hash: &Hash) -> bool {
        self.shared.contains(hash)
    }

    /// The stored bytes of a chunk, **unverified**; `None` when it is not here, has another length, or cannot be read.
    pub fn get(&self, hash: &Hash, stored_len: u32) -> Option<Vec<u8>> {
        let (file, place) = {
            let map = self.shared.map();
            let place = *map.places.get(hash)?;
            (map.segments.get(&place.segment)?.file.clone(), place)
        };
        if place.length != stored_len {
            return None;
        }
        match file.read(place.offset, place.length) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::warn!(dir = %self.shared.dir.display(), %error, "a cached chunk cannot be read");
                self.forget(hash);
                None
            }
        }
    }

    /// Hands a chunk to the writer; `false` when it will not be cached. Never waits. The bytes must be verified.
    pub fn put(&self, hash: Hash, stored: Bytes) -> bool {
        let Some(queue) = &self.queue else { return false };
        let length = stored.len() as u64;
        let waiting = self.shared.waiting_bytes.fetch_add(length, Relaxed);
        let sent = waiting + length <= self.shared.options.queue_bytes
            && match queue.try_send(Job::Put(hash, stored)) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
            };
        if !sent {
            self.shared.waiting_bytes.fetch_sub(length, Relaxed);
            self.shared.refused.fetch_add(1, Relaxed);
        }
        sent
    }

    /// Forgets a chunk whose bytes are not right: the next one put here takes its place.
    pub fn forget(&self, hash: &Hash) {
        self.shared.map_mut().places.remove(hash);
    }

    /// Drops the oldest segment, for somebody who needs the space more; `false` when there is none.
    pub fn shed(&self) -> bool {
        self.shared.drop_oldest()
    }

    /// Waits until everything that was put before is written or given up.
    pub fn flush(&self) {
        let (done, wait) = mpsc::sync_channel(0);
        if self.queue.as_ref().is_some_and(|q| q.send(Job::Flush(done)).is_ok()) {
            let _ = wait.recv();
        }
    }

    /// How full it is, and what became of what.
    pub fn stats(&self) -> Stats {
        let map = self.shared.map();
        Stats {
            bytes: map.bytes,
            limit: self.shared.options.size,
            chunks: map.places.len() as u64,
            segments: map.segments.len() as u64,
            evicted_bytes: self.shared.evicted.load(Relaxed),
            refused: self.shared.refused.load(Relaxed),
            failed: self.shared.failed.load(Relaxed),
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
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
