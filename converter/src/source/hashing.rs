//! A reader that takes the SHA-256 of what passes through it.

use blobstore::refs::Digest;
use sha2::{Digest as _, Sha256};
use std::io::{self, Read};

/// Counts and hashes what is read.
#[derive(Debug)]
pub(super) struct Hashing<R> {
    inner: R,
    hasher: Sha256,
    count: u64,
    limit: u64,
}

impl<R: Read> Hashing<R> {
    /// Reading more than `limit` bytes is an error.
    pub(super) fn new(inner: R, limit: u64) -> Self {
        Self { inner, hasher: Sha256::new(), count: 0, limit }
    }

    /// Bytes that were read so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// What is read from.
    pub(super) fn inner(&self) -> &R {
        &self.inner
    }

    /// Reads to the end; digest and number of all bytes.
    pub(super) fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::from_bytes(self.hasher.finalize().into()), self.count))
    }

    /// What was read so far, and the reader.
    pub(super) fn into_parts(self) -> (R, Digest, u64) {
        (self.inner, Digest::from_bytes(self.hasher.finalize().into()), self.count)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count += count as u64;
        if self.count > self.limit {
            let what = format!("the blob is larger than its descriptor's size, {} bytes", self.limit);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
