//! The chunk cache: compressed chunks by their BLAKE3, in segment files, within a quota.
//!
//! Which chunk is where is known in memory (`map.rs`), and read again after a start, while readers already ask
//! (`shared.rs`). Chunks are written by one thread behind a bounded queue (`write.rs`), so that no reader waits for the
//! disk; a full queue, a full disk and a failing one mean that a chunk is not cached. What goes when the quota is
//! reached: `evict.rs`. What is pinned, and what an administrator asks: `admin.rs`.
//!
//! **What [`Chunks::get`] gives is not verified.** The caller checks the hash before it uses a byte, and says
//! [`Chunks::forget`] where it does not match.

use super::disk::{Directory, Disk};
use super::segment::{Hash, Record, Segment};
use super::shared::Shared;
use super::write::{Job, Writer};
use super::{Lock, Options, Result, io_error};
use crate::meter::Meter;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread::JoinHandle;

/// The chunk cache of this node.
#[derive(Debug)]
pub struct Chunks {
    pub(super) shared: Arc<Shared>,
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
    /// Bytes of the file system that are kept free.
    pub reserve: u64,
    /// Bytes of the file system that are free; 0 where it does not say.
    pub free: u64,
    /// Chunks. After a start they are counted as they are found; [`Chunks::flush`] waits for that.
    pub chunks: u64,
    /// Segment files.
    pub segments: u64,
    /// Bytes that pinned chunks take, or will take when all of them are here.
    pub pinned_bytes: u64,
    /// The most they may take.
    pub pin_limit: u64,
    /// Bytes dropped to make room, since the start.
    pub evicted_bytes: u64,
    /// Bytes dropped because an administrator said so ([`Chunks::evict`]), since the start: counted when they are free.
    pub let_go_bytes: u64,
    /// Bytes written a second time because they were wanted or pinned when their segment was dropped, since the start.
    pub carried_bytes: u64,
    /// Chunks not cached because the queue was full, since the start.
    pub refused: u64,
    /// Chunks not cached because the disk was full or failed, since the start.
    pub failed: u64,
}

impl Chunks {
    pub(super) fn open(dir: &Path, options: &Options, meter: &Meter, lock: Arc<Lock>) -> Result<Self> {
        let disk = Directory::open(dir).map_err(io_error(dir, "creating"))?;
        Self::on(Arc::new(disk), options, meter, Some(lock))
    }

    /// The cache on some disk.
    pub(super) fn on(disk: Arc<dyn Disk>, options: &Options, meter: &Meter, lock: Option<Arc<Lock>>) -> Result<Self> {
        let dir = disk.path().to_owned();
        let shared = Arc::new(Shared::open(disk, options, meter, lock).map_err(io_error(&dir, "reading"))?);
        let (queue, jobs) = mpsc::sync_channel(options.queue.max(1));
        let writer = Writer::new(shared.clone());
        let thread = std::thread::Builder::new().name("cache-write".into()).spawn(move || writer.run(&jobs));
        let thread = thread.map_err(io_error(&dir, "starting the writer of"))?;
        Ok(Self { shared, queue: Some(queue), thread: Some(thread) })
    }

    /// Whether a chunk is known to be here. Asks the memory only: while the segments are being read after a start, a chunk
    /// that is here may not be known yet.
    pub fn contains(&self, hash: &Hash) -> bool {
        self.shared.map().contains(&self.shared.domain.name(hash))
    }

    /// Whether [`Chunks::get`] might find a chunk: `false` only where it is certain that it is not here. Asks the memory
    /// only.
    pub fn may_have(&self, hash: &Hash) -> bool {
        // Asked before the map: what is no longer loading then is in it.
        self.shared.is_loading() || self.contains(hash)
    }

    /// The stored bytes of a chunk, **unverified**; `None` when it is not here, has another length, or cannot be read.
    /// Until all segments are read, it may take two small reads of each of them: not for threads that must not wait.
    pub fn get(&self, hash: &Hash, stored_len: u32) -> Option<Vec<u8>> {
        let (file, record) = self.shared.find(&self.shared.domain.name(hash), true)?;
        self.read(&file, &record, stored_len)
    }

    /// As [`Chunks::get`], of a chunk that is known to be here ([`Chunks::contains`]): one read at most.
    pub fn get_known(&self, hash: &Hash, stored_len: u32) -> Option<Vec<u8>> {
        let (file, record) = self.shared.map().find(&self.shared.domain.name(hash), true)?;
        self.read(&file, &record, stored_len)
    }

    fn read(&self, file: &Segment, record: &Record, stored_len: u32) -> Option<Vec<u8>> {
        if record.length != stored_len {
            return None;
        }
        self.shared.read(file, record)
    }

    /// Hands a chunk to the writer; `false` when it will not be cached. Never waits. The bytes must be verified.
    pub fn put(&self, hash: Hash, stored: Bytes) -> bool {
        let Some(queue) = &self.queue else { return false };
        let length = stored.len() as u64;
        let waiting = self.shared.waiting_bytes.fetch_add(length, Relaxed);
        let sent = waiting + length <= self.shared.options.queue_bytes
            && match queue.try_send(Job::Put(self.shared.domain.name(&hash), stored)) {
                Ok(()) => true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
            };
        if !sent {
            self.shared.waiting_bytes.fetch_sub(length, Relaxed);
            self.shared.refused.fetch_add(1, Relaxed);
        }
        sent
    }

    /// Forgets a chunk whose bytes are not right: the next one put here takes its place. Reads it again: a right one may have
    /// taken its place already, and stays.
    pub fn forget(&self, hash: &Hash) {
        self.shared.forget(&self.shared.domain.name(hash));
    }

    /// Drops the oldest segment in which nothing is pinned, for somebody who needs the space more; `false` when there is
    /// none.
    pub fn shed(&self) -> bool {
        self.shared.shed()
    }

    /// Waits until everything that was put before is written or given up.
    pub fn flush(&self) {
        self.ask(Job::Flush);
    }

    /// Waits for the writer's answer; `None` when there is no writer any more.
    pub(super) fn ask<T>(&self, job: impl FnOnce(SyncSender<T>) -> Job) -> Option<T> {
        let (done, wait) = mpsc::sync_channel(1);
        self.queue.as_ref()?.send(job(done)).ok()?;
        wait.recv().ok()
    }

    /// Whether it is still being read which chunks there are, after a start.
    pub fn is_loading(&self) -> bool {
        self.shared.is_loading()
    }

    /// What keeps chunks from being cached or pinned now; `None` when nothing does, as far as anybody tried.
    pub fn trouble(&self) -> Option<String> {
        if !self.shared.is_loading() && self.shared.map().is_unsure() {
            return Some("not all pins can be read: what is cached stays, and nothing can be pinned".to_owned());
        }
        self.shared.trouble()
    }

    /// How full it is, and what became of what.
    pub fn stats(&self) -> Stats {
        let free = self.shared.disk.free().unwrap_or(0);
        let map = self.shared.map();
        Stats {
            bytes: map.bytes,
            limit: self.shared.options.size,
            reserve: self.shared.reserve,
            free,
            chunks: map.chunks() as u64,
            segments: map.segments.len() as u64,
            pinned_bytes: map.pinned().bytes(),
            pin_limit: self.shared.pin_limit(),
            evicted_bytes: self.shared.evicted.load(Relaxed),
            let_go_bytes: self.shared.let_go.load(Relaxed),
            carried_bytes: self.shared.carried.load(Relaxed),
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
