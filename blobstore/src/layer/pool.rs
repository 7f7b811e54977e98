//! Compression on many threads, in order, in bounded memory.
//!
//! All threads take from one queue; each job has a channel of its own for its result, and results are taken back in the
//! order of the jobs. At most two jobs for each thread and two more are under way: who pushes waits for the oldest
//! then. Each frame depends on its content and the level alone: the result does not depend on the number of threads.

use super::error::{LayerError, Result, malformed};
use super::format::{self, ChunkEntry};
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use zstd::zstd_safe::CParameter;

/// A compressed frame with its table entry.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entry: ChunkEntry,
    pub(super) bytes: Vec<u8>,
}

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: Sender<Job>,
    /// Results to come, the oldest first.
    under_way: VecDeque<Receiver<io::Result<Stored>>>,
    most: usize,
}

#[derive(Debug)]
struct Job {
    content: Vec<u8>,
    done: SyncSender<io::Result<Stored>>,
}

impl Pool {
    /// `threads` threads (at least one) that compress at `level`.
    pub(super) fn new(level: i32, threads: usize) -> Result<Self> {
        let levels = zstd::compression_level_range();
        if !levels.contains(&level) {
            return Err(malformed!("zstd level {level}; {levels:?} are"));
        }
        let threads = threads.max(1);
        let (jobs, todo) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let started: io::Result<()> = (0..threads).try_for_each(|_| start(level, todo.clone()));
        started.map_err(LayerError::io("starting the compression"))?;
        Ok(Self { jobs, under_way: VecDeque::new(), most: 2 * threads + 2 })
    }

    /// Hands over the content of the next frame; waits for and returns the oldest one when enough are under way.
    pub(super) fn push(&mut self, content: Vec<u8>) -> Result<Option<Stored>> {
        let oldest = if self.under_way.len() >= self.most { self.take()? } else { None };
        let (done, result) = sync_channel(1);
        self.jobs.send(Job { content, done }).map_err(|_| thread_ended())?;
        self.under_way.push_back(result);
        Ok(oldest)
    }

    /// Whether each thread has a frame to work at, and one is there for who ends first.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.len() >= self.most / 2
    }

    /// Waits for the oldest frame under way; `None` when there is none.
    pub(super) fn take(&mut self) -> Result<Option<Stored>> {
        let Some(oldest) = self.under_way.pop_front() else { return Ok(None) };
        let done = oldest.recv().map_err(|_| thread_ended())?;
        done.map(Some).map_err(LayerError::io("compressing a chunk"))
    }
}

/// Starts a thread that takes jobs until there will be no more.
fn start(level: i32, todo: Arc<Mutex<Receiver<Job>>>) -> io::Result<()> {
    let mut compressor = compressor(level)?;
    std::thread::Builder::new().name("layer-zstd".to_owned()).spawn(move || {
        let mut scratch = Vec::new();
        loop {
            // The lock is held while waiting: one thread waits for the next job, the others for their turn to.
            let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { content, done }) = next else { return };
            // Nobody waits for it after an error elsewhere.
            let _ = done.send(compress(&mut compressor, level, &content, &mut scratch));
        }
    })?;
    Ok(())
}

/// A context whose frames follow the format's rules.
fn compressor(level: i32) -> io::Result<zstd::bulk::Compressor<'static>> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    compressor.set_parameter(CParameter::ContentSizeFlag(true))?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

/// log2 of the entries of zstd's two tables, for long matches and for short ones; 0 is its own choice. That would be 17 and
/// 16 at level 3 for a chunk of usual size: data become 0.5 % smaller, and compressing them takes a twentieth longer, since
/// the tables are filled anew for each chunk and lie less well in a processor's cache.
fn table_logs(level: i32, length: usize) -> (u32, u32) {
    const USUAL: usize = 640 << 10;
    if level == 3 && length <= USUAL { (16, 15) } else { (0, 0) }
}

/// `scratch` is only there to be used again: the result has exactly its size.
fn compress(
    compressor: &mut zstd::bulk::Compressor<'_>,
    level: i32,
    content: &[u8],
    scratch: &mut Vec<u8>,
) -> io::Result<Stored> {
    let (Ok(data_len), true) = (u32::try_from(content.len()), content.len() <= format::MAX_FRAME as usize) else {
        return Err(io::Error::other(format!("a frame of {} bytes", content.len())));
    };
    let (long, short) = table_logs(level, content.len());
    compressor.set_parameter(CParameter::HashLog(long))?;
    compressor.set_parameter(CParameter::ChainLog(short))?;
    scratch.clear();
    scratch.reserve(zstd::zstd_safe::compress_bound(content.len()));
    compressor.compress_to_buffer(content, scratch)?;
    let entry = ChunkEntry { data_len, stored_len: scratch.len() as u32, hash: *blake3::hash(scratch).as_bytes() };
    Ok(Stored { entry, bytes: scratch.as_slice().to_vec() })
}

fn thread_ended() -> LayerError {
    LayerError::io("compressing a chunk")(io::Error::other("a compression thread ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(threads: usize, jobs: &[Vec<u8>]) -> Vec<Stored> {
        let mut pool = Pool::new(3, threads).unwrap();
        let mut out: Vec<Stored> = jobs.iter().filter_map(|job| pool.push(job.clone()).unwrap()).collect();
        while let Some(frame) = pool.take().unwrap() {
            out.push(frame);
        }
        out
    }

    #[test]
    fn frames_come_back_in_order_whatever_the_number_of_threads() {
        let jobs: Vec<Vec<u8>> = (0..40u32).map(|n| n.to_le_bytes().repeat(1000 + (n as usize * 37) % 900)).collect();
        let one = stored(1, &jobs);
        for threads in [2, 3, 8, 64] {
            let many = stored(threads, &jobs);
            assert_eq!(one.len(), many.len());
            assert!(one.iter().zip(&many).all(|(a, b)| a.bytes == b.bytes && a.entry == b.entry));
        }
        assert!(one.iter().zip(&jobs).all(|(frame, job)| zstd::decode_all(&frame.bytes[..]).unwrap() == *job));
    }

    #[test]
    fn frames_state_their_size_and_carry_no_checksum_and_no_dictionary() {
        let frame = stored(1, &[vec![7; 4096]]).remove(0).bytes;
        assert_eq!(zstd::zstd_safe::get_frame_content_size(&frame).unwrap(), Some(4096));
        assert!(zstd::zstd_safe::get_dict_id_from_frame(&frame).is_none());
        assert_eq!(frame[4] & 0b100, 0, "checksum flag of the frame header descriptor");
    }

    #[test]
    fn a_level_that_zstd_does_not_have_is_refused() {
        assert!(matches!(Pool::new(99, 1), Err(LayerError::Malformed(_))));
    }
}
