//! Compression on many threads, in order, in bounded memory.
//!
//! Job n goes to thread n modulo the number of threads, and results are taken back in the same turn: order costs no
//! reordering buffer. At most [`DEPTH`] jobs are under way for a thread, so that no channel is ever full and nothing
//! can wait in a circle. Each frame depends on its content and the level alone: the result does not depend on the
//! number of threads.

use super::error::{LayerError, Result, malformed};
use super::format::{self, ChunkEntry};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use zstd::zstd_safe::CParameter;

/// Jobs under way for each thread: one being compressed, one waiting behind it.
const DEPTH: u64 = 2;

/// A compressed frame with its table entry.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entry: ChunkEntry,
    pub(super) bytes: Vec<u8>,
}

/// The threads. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Pool {
    lanes: Vec<Lane>,
    sent: u64,
    taken: u64,
}

#[derive(Debug)]
struct Lane {
    jobs: SyncSender<Vec<u8>>,
    done: Receiver<io::Result<Stored>>,
}

impl Pool {
    /// `threads` threads (at least one) that compress at `level`.
    pub(super) fn new(level: i32, threads: usize) -> Result<Self> {
        let levels = zstd::compression_level_range();
        if !levels.contains(&level) {
            return Err(malformed!("zstd level {level}; {levels:?} are"));
        }
        let lanes = (0..threads.max(1)).map(|_| Lane::start(level)).collect::<io::Result<_>>();
        Ok(Self { lanes: lanes.map_err(LayerError::io("starting the compression"))?, sent: 0, taken: 0 })
    }

    /// Hands over the content of the next frame; waits for and returns the oldest one when enough are under way.
    pub(super) fn push(&mut self, content: Vec<u8>) -> Result<Option<Stored>> {
        let oldest = match self.sent - self.taken >= DEPTH * self.lanes.len() as u64 {
            true => self.take()?,
            false => None,
        };
        let lane = self.lane(self.sent);
        lane.jobs.send(content).map_err(|_| thread_ended())?;
        self.sent += 1;
        Ok(oldest)
    }

    /// Waits for the oldest frame under way; `None` when there is none.
    pub(super) fn take(&mut self) -> Result<Option<Stored>> {
        if self.taken == self.sent {
            return Ok(None);
        }
        let done = self.lane(self.taken).done.recv().map_err(|_| thread_ended())?;
        self.taken += 1;
        done.map(Some).map_err(LayerError::io("compressing a chunk"))
    }

    fn lane(&self, job: u64) -> &Lane {
        &self.lanes[(job % self.lanes.len() as u64) as usize]
    }
}

impl Lane {
    fn start(level: i32) -> io::Result<Self> {
        let mut compressor = compressor(level)?;
        let (jobs, todo) = sync_channel::<Vec<u8>>(DEPTH as usize);
        let (finished, done) = sync_channel(DEPTH as usize);
        std::thread::Builder::new().name("layer-zstd".to_owned()).spawn(move || {
            let mut scratch = Vec::new();
            while let Ok(content) = todo.recv() {
                if finished.send(compress(&mut compressor, &content, &mut scratch)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, done })
    }
}

/// A context whose frames follow the format's rules.
fn compressor(level: i32) -> io::Result<zstd::bulk::Compressor<'static>> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    compressor.set_parameter(CParameter::ContentSizeFlag(true))?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

/// `scratch` is only there to be used again: the result has exactly its size.
fn compress(compressor: &mut zstd::bulk::Compressor<'_>, content: &[u8], scratch: &mut Vec<u8>) -> io::Result<Stored> {
    let (Ok(data_len), true) = (u32::try_from(content.len()), content.len() <= format::MAX_FRAME as usize) else {
        return Err(io::Error::other(format!("a frame of {} bytes", content.len())));
    };
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
