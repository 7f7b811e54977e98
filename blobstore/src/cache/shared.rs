//! What the readers of the chunk cache and the thread that writes it share: the map, the segment files, the counters.
//!
//! Opening lists the files and opens each segment, some 256 whatever they hold. Which chunks are in them is then read by
//! the writer's thread, newest segment first, while readers already ask; what is not read yet is looked up in the
//! segments' footers.

use super::disk::Disk;
use super::domain::Domain;
use super::map::Map;
use super::pinned::Pin;
use super::pins;
use super::segment::{Hash, Record, Segment};
use super::{Lock, Options, Reserve};
use crate::meter::Meter;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What readers and the writer share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) options: Options,
    pub(super) domain: Domain,
    pub(super) reserve: u64,
    pub(super) meter: Meter,
    pub(super) waiting_bytes: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Number of the next segment file.
    pub(super) next: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// Dropped because an administrator said so.
    pub(super) let_go: AtomicU64,
    pub(super) carried: AtomicU64,
    /// See [`Shared::is_loading`].
    loading: AtomicBool,
    /// Why the last chunk was not written, if it was not.
    trouble: Mutex<Option<String>>,
    map: RwLock<Map>,
    _lock: Option<Arc<Lock>>,
}

impl Shared {
    /// Finds the segments; reads nothing of them.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        options: &Options,
        meter: &Meter,
        lock: Option<Arc<Lock>>,
    ) -> io::Result<Self> {
        let reserve = match options.reserve {
            Reserve::Bytes(bytes) => bytes,
            Reserve::Percent(percent) => (disk.size()? as f64 * percent / 100.0) as u64,
        };
        let shared = Self {
            disk,
            options: options.clone(),
            domain: Domain::new(&options.domain),
            reserve,
            meter: meter.clone(),
            waiting_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            next: AtomicU64::new(1),
            evicted: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
            carried: AtomicU64::new(0),
            loading: AtomicBool::new(true),
            trouble: Mutex::default(),
            map: RwLock::default(),
            _lock: lock,
        };
        for name in shared.disk.names()? {
            let Some((number, kind)) = Segment::parse_name(&name) else { continue };
            shared.next.fetch_max(number.saturating_add(1), Relaxed);
            match Segment::open(&*shared.disk, &name) {
                Ok((file, length)) => drop(shared.map_mut().add_segment(number, kind, file, length)),
                Err(error) => tracing::warn!(name, %error, "a cache segment cannot be opened and is passed over"),
            }
        }
        shared.meter.set_cache_bytes(shared.map().bytes);
        Ok(shared)
    }

    /// Reads which chunks there are and which are pinned.
    pub(super) fn load(&self) {
        self.map_mut().set_unsure(Some(self.next.load(Relaxed)));
        self.load_pins();
        self.load_segments();
        self.loading.store(false, Release);
        self.meter.set_cache_bytes(self.map().bytes);
    }

    /// Tries again to read what could not be read. A segment for which that fails is given up where nothing is missing
    /// that is pinned: it is as good as an empty one then, and its space is of use.
    pub(super) fn look_again(&self) {
        if self.map().is_unsure() {
            self.load_pins();
        }
        self.load_segments();
        self.map_mut().give_up_unloaded();
        self.meter.set_cache_bytes(self.map().bytes);
    }

    fn load_pins(&self) {
        let (pins, failed) = pins::load(&*self.disk);
        let mut map = self.map_mut();
        for (name, chunks) in pins {
            let held = map.pinned().get(&name).map(|pin| pin.held.clone()).unwrap_or_default();
            map.set_pin(&name, Some(Pin { durable: Some(chunks), held }));
        }
        match failed {
            None => map.set_unsure(None),
            Some(error) => {
                let dir = self.disk.path().display();
                tracing::warn!(%dir, %error, "not all pins can be read: until they can, what is here stays");
            }
        }
    }

    fn load_segments(&self) {
        let unloaded = self.map().unloaded();
        for (number, file) in unloaded {
            let content = file.load();
            let failed = |error: &io::Error| tracing::warn!(number, %error, "a cache segment cannot be read");
            self.map_mut().loaded(number, content.inspect_err(failed).ok());
        }
    }

    pub(super) fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last chunk was not written, if it was not.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Whether there are segments of which it is not known yet what is in them.
    pub(super) fn is_loading(&self) -> bool {
        self.loading.load(Acquire)
    }

    /// Where the chunk of this name is; `used` counts it as asked for. While segments are being read, it may take two small
    /// reads of each of them.
    pub(super) fn find(&self, name: &Hash, used: bool) -> Option<(Arc<Segment>, Record)> {
        // Asked before the map: what is no longer loading then is in it.
        let loading = self.is_loading();
        let found = self.map().find(name, used);
        if found.is_some() || !loading {
            return found;
        }
        let unloaded = self.map().unloaded();
        let in_footer = |file: Arc<Segment>| Some((file.clone(), file.lookup(name).ok()??));
        let found = unloaded.into_iter().find_map(|(_, file)| in_footer(file));
        // Its segment may have been read in the meantime.
        found.or_else(|| self.map().find(name, used))
    }

    /// The bytes of a record that was found; one that cannot be read is not counted on any more.
    pub(super) fn read(&self, file: &Segment, record: &Record) -> Option<Vec<u8>> {
        let error = match file.read(record) {
            Ok(bytes) => return Some(bytes),
            Err(error) => error,
        };
        tracing::warn!(dir = %self.disk.path().display(), %error, "a cached chunk cannot be read");
        self.map_mut().doubt_at(file, record);
        None
    }

    /// Whether a chunk is here and its bytes are right; if they are not, it is forgotten.
    pub(super) fn is_right(&self, name: &Hash) -> bool {
        let Some((file, record)) = self.find(name, false) else { return false };
        self.verified(&file, &record).is_some()
    }

    /// Forgets a chunk, if the copy that its name points to is (still) the wrong one.
    pub(super) fn forget(&self, name: &Hash) {
        let Some((file, record)) = self.find(name, false) else { return };
        if let Some(bytes) = self.read(&file, &record)
            && self.domain.name_of(&bytes) != *name
        {
            self.map_mut().forget_at(&file, &record);
        }
    }

    /// The bytes of a record, if they are those that its name says; if they are not, it is forgotten.
    pub(super) fn verified(&self, file: &Segment, record: &Record) -> Option<Vec<u8>> {
        let bytes = self.read(file, record)?;
        if self.domain.name_of(&bytes) == record.hash {
            return Some(bytes);
        }
        self.meter.verify_failed();
        self.map_mut().forget_at(file, record);
        None
    }

    /// Whether so many bytes more are within the quota.
    pub(super) fn fits(&self, more: u64) -> bool {
        self.map().bytes.saturating_add(more) <= self.options.size
    }

    /// Bytes that the chunks may take; the rest of the quota is for what is carried over before a segment is dropped.
    pub(super) fn limit(&self) -> u64 {
        self.options.size - self.margin()
    }

    /// Most bytes that are carried over from one segment without being pinned.
    pub(super) fn margin(&self) -> u64 {
        self.options.segment.min(self.options.size / 8)
    }

    /// Most bytes that may be pinned: so few that there is always a segment that is not pinned by more than half.
    pub(super) fn pin_limit(&self) -> u64 {
        self.options.size / 5 * 2
    }

    /// Removes a segment of which everything that shall stay is elsewhere; `carried` bytes of it are.
    pub(super) fn drop_segment(&self, number: u64, carried: u64) {
        let taken = self.map_mut().take(number);
        if let Some(entry) = taken {
            self.dropped(&entry, carried);
        }
    }

    /// Drops the oldest segment without pins, with all that is in it; `false` when there is none.
    pub(super) fn shed(&self) -> bool {
        let taken = self.map_mut().take_unpinned();
        taken.inspect(|entry| self.dropped(entry, 0)).is_some()
    }

    fn dropped(&self, entry: &super::map::Entry, carried: u64) {
        if let Err(error) = entry.file.remove(&*self.disk) {
            tracing::warn!(dir = %self.disk.path().display(), %error, "a cache segment cannot be removed");
        }
        let evicted = entry.length.saturating_sub(carried);
        // What was let go before is free only now. With nothing else in it, all of the file is.
        let let_go = match entry.data_end == entry.let_go {
            true => evicted,
            false => entry.let_go.min(evicted),
        };
        self.evicted.fetch_add(evicted - let_go, Relaxed);
        self.let_go.fetch_add(let_go, Relaxed);
        self.meter.evicted(evicted - let_go, let_go);
        self.meter.set_cache_bytes(self.map().bytes);
    }

    /// Bytes that may be written before the reserve is touched.
    pub(super) fn free(&self) -> io::Result<u64> {
        Ok(self.disk.free()?.saturating_sub(self.reserve))
    }
}
