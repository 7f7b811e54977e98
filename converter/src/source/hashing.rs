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
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new(), count: 0 }
    }

    /// Bytes that were read so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Reads to the end; digest and number of all bytes.
    pub(super) fn finish(mut self) -> io::Result<(Digest, u64)> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok((Digest::from_bytes(self.hasher.finalize().into()), self.count))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count += count as u64;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// A reader that must not have more than so many bytes.
#[derive(Debug)]
pub(super) struct Limited<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R: Read> Limited<R> {
    /// Reading more than `limit` bytes is an error.
    pub(super) fn new(inner: R, limit: u64) -> Self {
        Self { inner, limit, left: limit }
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let what = format!("the blob is larger than its descriptor's size, {} bytes", self.limit);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        Ok(count)
    }
}
