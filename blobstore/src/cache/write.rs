//! The thread that writes the chunk cache.
//!
//! It first reads what is there (`shared.rs`), then does what it is told. It alone appends. It makes room before it
//! writes (quota, reserve: `evict.rs`), and gives a chunk up when the disk will not take it: a cache that cannot be
//! written is a slower node, not a broken one. A chunk that is pinned is synced as it is written; all others never are.

use super::evict::Eviction;
use super::pinned::Pin;
use super::pins;
use super::segment::{HEADER, Hash, Kind, Record, Segment};
use super::shared::Shared;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Between two log lines about the same trouble, and two looks at whether it is over.
const QUIET: Duration = Duration::from_secs(60);

/// What the thread is asked.
pub(super) enum Job {
    /// Write a chunk.
    Put(Hash, Bytes),
    /// Make a pin durable that is in the map, and all of whose chunks are here; tells which no longer are.
    Pin(Hash, SyncSender<io::Result<Vec<Hash>>>),
    /// Take a pin away.
    Unpin(Hash, SyncSender<io::Result<()>>),
    /// Drop the segments that no chunk is in.
    Tidy(SyncSender<()>),
    /// Apply quota and reserve.
    Collect(SyncSender<io::Result<()>>),
    /// Say when all before is done.
    Flush(SyncSender<()>),
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) eviction: Eviction,
    last_log: Option<Instant>,
    last_look: Instant,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, eviction: Eviction::default(), last_log: None, last_look: Instant::now() }
    }

    /// Works until all senders are gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        self.shared.load();
        // The quota may be smaller than the last time.
        while self.shared.map().bytes > self.shared.limit() && self.evict() {}
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Put(name, bytes) => {
                    self.put(&name, &bytes);
                    self.shared.waiting_bytes.fetch_sub(bytes.len() as u64, Relaxed);
                }
                Job::Pin(name, done) => _ = done.send(self.pin(&name)),
                Job::Unpin(name, done) => _ = done.send(self.unpin(&name)),
                Job::Tidy(done) => {
                    self.tidy();
                    _ = done.send(());
                }
                Job::Collect(done) => _ = done.send(self.collect()),
                Job::Flush(done) => _ = done.send(()),
            }
        }
        for kind in [Kind::Young, Kind::Kept] {
            if let Some((number, _, _)) = self.newest(kind)
                && let Err(error) = self.seal(number, 0)
            {
                self.complain(&error);
            }
        }
    }

    fn put(&mut self, name: &Hash, bytes: &[u8]) {
        if self.last_look.elapsed() >= QUIET {
            self.last_look = Instant::now();
            if self.shared.map().is_incomplete() {
                self.shared.look_again();
            }
        }
        if self.shared.map().contains(name) {
            return;
        }
        let written = match self.write(name, bytes) {
            // Somebody else filled the disk: what is oldest here goes before what is needed now.
            Err(e) if is_full(&e) && self.shared.shed() => self.write(name, bytes),
            other => other,
        };
        self.shared.set_trouble(written.as_ref().err().map(ToString::to_string));
        if let Err(error) = written {
            self.shared.failed.fetch_add(1, Relaxed);
            self.complain(&error);
        }
    }

    fn write(&mut self, name: &Hash, bytes: &[u8]) -> io::Result<()> {
        self.make_room(HEADER + bytes.len() as u64)?;
        let (number, record) = self.append(self.eviction.kind(name), name, bytes)?;
        self.eviction.fetched(name, record.size());
        if self.shared.map().pinned().durably(name) {
            self.sync(&[number].into())?;
        }
        self.shared.map_mut().place(number, &record, 0);
        Ok(())
    }

    /// Drops segments until `length` bytes fit the quota and the reserve.
    fn make_room(&mut self, length: u64) -> io::Result<()> {
        let full = |why| Err(io::Error::new(io::ErrorKind::StorageFull, why));
        if length > self.shared.limit() {
            return full("a chunk larger than the whole cache");
        }
        while self.shared.map().bytes + length > self.shared.limit() {
            if !self.evict() {
                return full("what is pinned fills the cache");
            }
        }
        while self.shared.free()? < length {
            if !self.evict() {
                return full("the disk is full, but for what [cache] reserve leaves free");
            }
        }
        Ok(())
    }

    /// Writes a record that no name points to yet; gives it with its segment's number.
    pub(super) fn append(&mut self, kind: Kind, name: &Hash, bytes: &[u8]) -> io::Result<(u64, Record)> {
        let (number, file, end) = self.segment_for(kind, HEADER + bytes.len() as u64)?;
        let record = file.append(end, name, bytes)?;
        let mut map = self.shared.map_mut();
        map.grown(number, &record);
        self.shared.meter.set_cache_bytes(map.bytes);
        self.shared.meter.cache_written(record.size());
        Ok((number, record))
    }

    /// The segment to append `length` bytes to, and its end: the newest, or a new one where that is full.
    fn segment_for(&mut self, kind: Kind, length: u64) -> io::Result<(u64, Arc<Segment>, u64)> {
        if let Some((number, file, end)) = self.newest(kind) {
            if end == 0 || end + length <= self.shared.options.segment {
                match self.unseal(number) {
                    Ok(()) => return Ok((number, file, end)),
                    Err(error) => self.complain(&error),
                }
            }
            // Its footer would only have saved the next start some reads.
            if let Err(error) = self.seal(number, length) {
                self.complain(&error);
            }
            self.shared.map_mut().close(number);
        }
        let next = self.shared.next.fetch_add(1, Relaxed);
        let file = Segment::create(&*self.shared.disk, next, kind)?;
        Ok((next, self.shared.map_mut().add_segment(next, kind, file, 0), 0))
    }

    fn newest(&self, kind: Kind) -> Option<(u64, Arc<Segment>, u64)> {
        let map = self.shared.map();
        let (number, entry) = map.segments.iter().rev().find(|(_, entry)| entry.kind == kind)?;
        (!entry.closed).then(|| (*number, entry.file.clone(), entry.data_end))
    }

    /// Writes a segment's footer, if it has none, and the quota has room for it and for `besides`.
    fn seal(&self, number: u64, besides: u64) -> io::Result<()> {
        let (file, end, records) = {
            let map = self.shared.map();
            match map.segments.get(&number) {
                Some(entry) if entry.data_end == entry.length && entry.length != 0 => {
                    (entry.file.clone(), entry.data_end, map.live(number))
                }
                _ => return Ok(()),
            }
        };
        if !self.shared.fits(Segment::footer_len(records.len()) + besides) {
            return Ok(());
        }
        let footer = file.seal(end, &records)?;
        self.shared.map_mut().set_length(number, end + footer);
        self.shared.meter.cache_written(footer);
        Ok(())
    }

    /// Takes a segment's footer off, if it has one.
    fn unseal(&self, number: u64) -> io::Result<()> {
        let sealed = self
            .shared
            .map()
            .segments
            .get(&number)
            .filter(|e| e.data_end != e.length)
            .map(|entry| (entry.file.clone(), entry.data_end));
        let Some((file, end)) = sealed else { return Ok(()) };
        file.unseal(end)?;
        self.shared.map_mut().set_length(number, end);
        Ok(())
    }

    /// Makes these segments durable, names and all.
    pub(super) fn sync(&self, numbers: &BTreeSet<u64>) -> io::Result<()> {
        for number in numbers {
            let file = self.shared.map().segments.get(number).map(|entry| entry.file.clone());
            file.map_or(Ok(()), |file| file.sync())?;
        }
        self.shared.disk.sync()
    }

    fn pin(&mut self, name: &Hash) -> io::Result<Vec<Hash>> {
        let unsure = self.shared.map().is_unsure();
        if unsure {
            self.shared.look_again();
        }
        // It might take the place of one that has other chunks.
        if unsure && self.shared.map().is_unsure() {
            return Err(io::Error::other("there are pins that cannot be read"));
        }
        let Some(chunks) = self.shared.map().pinned().get(name).map(Pin::all) else { return Ok(Vec::new()) };
        let (here, missing): (Vec<_>, Vec<_>) = {
            let map = self.shared.map();
            chunks.keys().map(|hash| (*hash, map.segment_of(hash))).partition(|(_, number)| number.is_some())
        };
        if !missing.is_empty() {
            return Ok(missing.into_iter().map(|(hash, _)| hash).collect());
        }
        self.sync(&here.into_iter().filter_map(|(_, number)| number).collect())?;
        pins::write(&*self.shared.disk, name, &chunks)?;
        self.shared.map_mut().set_pin(name, Some(Pin { durable: Some(chunks), held: BTreeMap::new() }));
        Ok(Vec::new())
    }

    fn unpin(&mut self, name: &Hash) -> io::Result<()> {
        pins::remove(&*self.shared.disk, name)?;
        self.shared.map_mut().set_pin(name, None::<Pin>);
        Ok(())
    }

    fn collect(&mut self) -> io::Result<()> {
        self.tidy();
        self.make_room(1)
    }

    fn tidy(&self) {
        let dead = self.shared.map().dead();
        dead.into_iter().for_each(|number| self.shared.drop_segment(number, 0));
    }

    pub(super) fn complain(&mut self, error: &io::Error) {
        if self.last_log.is_none_or(|at| at.elapsed() >= QUIET) {
            self.last_log = Some(Instant::now());
            let dir = self.shared.disk.path().display();
            tracing::warn!(%dir, %error, "a chunk was not cached (said once a minute)");
        }
    }
}

/// Whether the system (not `make_room`) says that the disk is full.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
