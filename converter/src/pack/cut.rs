//! Where chunks end.
//!
//! Cut points depend on paths and contents only, so that equal files give equal chunks in different layers. A file as
//! large as the target size T starts a chunk and is cut every T; a tail shorter than T/4 stays with the chunk before it.
//! Smaller files are packed with their neighbours in path order: a pack ends before a file that would take it past T, and,
//! once it has T/2, before one file in four, chosen by a hash of its path and contents, so that two layers that differ
//! in some small files come back to the same cuts soon. Long runs of zeros are chunks of their own, large ones.

use super::body::Body;
use super::spool::Spool;
use crate::error::Result;

/// The most that a chunk may hold.
const CHUNK_MAX: u64 = 8 << 20;

/// Takes the bodies in path order and gives chunks.
pub(super) struct Cutter<'a> {
    spool: &'a Spool,
    target: u64,
    pack: Vec<u8>,
    emit: &'a mut dyn FnMut(Vec<u8>) -> Result<()>,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(spool: &'a Spool, target: u32, emit: &'a mut dyn FnMut(Vec<u8>) -> Result<()>) -> Self {
        Self { spool, target: u64::from(target), pack: Vec::new(), emit }
    }

    /// Adds a body; `key` is a hash of its path and contents.
    pub(super) fn add(&mut self, body: &Body, key: [u8; 32]) -> Result<()> {
        if body.length >= self.target {
            self.flush()?;
            return self.large(body);
        }
        let have = self.pack.len() as u64;
        if have + body.length > self.target || (have >= self.target / 2 && key[0] & 3 == 0) {
            self.flush()?;
        }
        let start = self.pack.len();
        self.pack.resize(start + body.length as usize, 0);
        body.read(self.spool, 0, &mut self.pack[start..])
    }

    fn large(&mut self, body: &Body) -> Result<()> {
        let mut offset = 0;
        while offset < body.length {
            let zeros = body.zeros_from(offset);
            let length = match zeros >= self.target {
                true => zeros.min(CHUNK_MAX),
                false => self.next_cut(body.length - offset),
            };
            let mut chunk = vec![0; length as usize];
            body.read(self.spool, offset, &mut chunk)?;
            (self.emit)(chunk)?;
            offset += length;
        }
        Ok(())
    }

    fn next_cut(&self, left: u64) -> u64 {
        if left < self.target + self.target / 4 { left } else { self.target }
    }

    /// Ends the pack that is open.
    pub(super) fn flush(&mut self) -> Result<()> {
        match std::mem::take(&mut self.pack) {
            pack if pack.is_empty() => Ok(()),
            pack => (self.emit)(pack),
        }
    }
}
