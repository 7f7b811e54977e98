//! The thread that writes the chunk cache.
//!
//! It alone appends. It makes room before it writes (quota, reserve), and gives a chunk up when the disk will not take
//! it: a cache that cannot be written is a slower node, not a broken one.

use super::segment::{HEADER, Hash, Segment};
use super::shared::Shared;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Between two log lines about the same trouble.
const QUIET: Duration = Duration::from_secs(60);

/// What the thread is asked.
pub(super) enum Job {
    /// Write a chunk.
    Put(Hash, Bytes),
    /// Say when all before is done.
    Flush(SyncSender<()>),
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    last_log: Option<Instant>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last_log: None }
    }

    /// Works until all senders are gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Put(hash, bytes) => {
                    self.put(&hash, &bytes);
                    self.shared.waiting_bytes.fetch_sub(bytes.len() as u64, Relaxed);
                }
                Job::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn put(&mut self, hash: &Hash, bytes: &[u8]) {
        if self.shared.contains(hash) {
            return;
        }
        let written = match self.write(hash, bytes) {
            // Somebody else filled the disk: what is oldest here goes before what is needed now.
            Err(e) if is_full(&e) && self.shared.drop_oldest() => self.write(hash, bytes),
            other => other,
        };
        if let Err(error) = written {
            self.shared.failed.fetch_add(1, Relaxed);
            self.complain(&error);
        }
    }

    fn write(&self, hash: &Hash, bytes: &[u8]) -> io::Result<()> {
        let length = HEADER + bytes.len() as u64;
        self.make_room(length)?;
        let (number, file, end) = self.segment_for(length)?;
        let record = file.append(end, hash, bytes)?;
        let mut map = self.shared.map_mut();
        map.add_record(number, &record);
        self.shared.meter.set_cache_bytes(map.bytes);
        Ok(())
    }

    /// Drops segments until `length` bytes fit the quota and the reserve.
    fn make_room(&self, length: u64) -> io::Result<()> {
        if length > self.shared.options.size {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "a chunk larger than the whole cache"));
        }
        while self.shared.map().bytes + length > self.shared.options.size && self.shared.drop_oldest() {}
        while self.shared.free()? < length {
            if !self.shared.drop_oldest() {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the file system's reserve is reached"));
            }
        }
        Ok(())
    }

    /// The segment to append `length` bytes to, and its end: the newest, or a new one where that is full.
    fn segment_for(&self, length: u64) -> io::Result<(u64, Arc<Segment>, u64)> {
        let newest = {
            let map = self.shared.map();
            let newest = map.segments.last_key_value();
            newest.map(|(number, entry)| (*number, entry.file.clone(), entry.length))
        };
        if let Some((number, file, end)) = newest
            && (end == 0 || end + length <= self.shared.options.segment)
        {
            return Ok((number, file, end));
        }
        let next = self.shared.next.fetch_add(1, Relaxed);
        let file = Segment::create(&self.shared.dir, next)?;
        self.shared.map_mut().add_segment(next, file, &[], 0);
        let map = self.shared.map();
        let entry = map.segments.get(&next).ok_or(io::ErrorKind::NotFound)?;
        Ok((next, entry.file.clone(), 0))
    }

    fn complain(&mut self, error: &io::Error) {
        if self.last_log.is_none_or(|at| at.elapsed() >= QUIET) {
            self.last_log = Some(Instant::now());
            let dir = self.shared.dir.display();
            tracing::warn!(%dir, %error, "a chunk was not cached (said once a minute)");
        }
    }
}

/// Whether the system (not `make_room`) says that the disk is full.
fn is_full(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
