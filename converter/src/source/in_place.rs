//! A tar that lies uncompressed in a file, read where it is.
//!
//! Of such a one only the headers are wanted at first, and the data later, in another order. Its digest is taken by a thread
//! that reads all of it meanwhile. A [`Lease`] sees to it that all three have seen the same bytes: what the digest says is
//! known only when [`InPlace::finish`] gives it, and nothing that was made of the tar may be believed before.

use super::blobs::{OpenBlob, Place};
use super::hashing::{Hashing, Limited};
use super::lease::Lease;
use super::stream::{ReadSums, compression};
use crate::error::{Error, Result};
use blobstore::refs::Digest;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;

/// Holds some headers of small files, with what is between them.
const BUFFER: u64 = 32 << 10;

/// How a layer's blob is read.
pub(crate) enum Reading {
    /// In place: its headers, and what else there is to read, by the spool.
    InPlace(InPlace, Headers),
    /// From its start to its end.
    Stream(OpenBlob),
}

/// A tar whose digest is being taken.
#[derive(Debug)]
pub(crate) struct InPlace {
    lease: Lease,
    hasher: JoinHandle<io::Result<(Digest, u64)>>,
}

/// A tar's bytes from its start, without those that are passed over.
#[derive(Debug)]
pub(crate) struct Headers {
    file: File,
    /// Byte of the file that is read next.
    at: u64,
    end: u64,
    /// What was read ahead, from the byte `from` of the file on.
    buffer: Vec<u8>,
    from: u64,
}

impl Reading {
    /// In place where it can be: a tar that is not compressed, in a file that others cannot change meanwhile. `limit`: no blob
    /// may have more bytes.
    pub(crate) fn of(blob: OpenBlob, limit: u64) -> Result<Self> {
        let Some((lease, headers)) = blob.place.as_ref().and_then(leased) else { return Ok(Self::Stream(blob)) };
        let hashing = Hashing::new(Limited::new(blob.stream, limit));
        let thread = std::thread::Builder::new().name("layer-hash".to_owned());
        let hasher = thread.spawn(|| hashing.finish()).map_err(|e| Error::failed("starting to read the layer", e))?;
        Ok(Self::InPlace(InPlace { lease, hasher }, headers))
    }
}

/// A lease on a file with a tar that is not compressed.
fn leased(place: &Place) -> Option<(Lease, Headers)> {
    let lease = Lease::take(place.file.try_clone().ok()?)?;
    let mut headers = Headers::new(place.file.try_clone().ok()?, place.start, place.end);
    let start = headers.fill_buf().ok()?;
    compression(&start[..start.len().min(512)]).is_none().then_some((lease, headers))
}

impl InPlace {
    /// Digest and size, when all of it was read: of everything that was read of the file since it was opened.
    pub(crate) fn finish(self) -> Result<ReadSums> {
        let failed = |e| Error::stream("reading the layer", e);
        let ended =
            self.hasher.join().unwrap_or_else(|_| Err(io::Error::other("the thread that reads the layer ended")));
        let (digest, size) = ended.map_err(failed)?;
        match self.lease.check().map_err(failed)? {
            true => Ok(ReadSums { blob: digest, blob_size: size, diff_id: digest, tar_size: size }),
            false => Err(Error::failed("reading the layer", "somebody opened it for writing while it was converted")),
        }
    }
}

impl Headers {
    fn new(file: File, at: u64, end: u64) -> Self {
        Self { file, at, end, buffer: Vec::new(), from: at }
    }

    /// The file, and the byte of it that is read next.
    pub(crate) fn place(&self) -> io::Result<(File, u64)> {
        Ok((self.file.try_clone()?, self.at))
    }

    /// Passes over so many bytes; gives how many there were.
    pub(crate) fn pass(&mut self, count: u64) -> io::Result<u64> {
        let passed = count.min(self.end - self.at);
        self.at += passed;
        Ok(passed)
    }
}

impl BufRead for Headers {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let held = self.from..self.from + self.buffer.len() as u64;
        if !held.contains(&self.at) {
            // Fits: it is no more than a buffer.
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize((self.end - self.at).min(BUFFER) as usize, 0);
            let got = self.file.read_at(&mut buffer, self.at)?;
            buffer.truncate(got);
            (self.buffer, self.from) = (buffer, self.at);
        }
        Ok(&self.buffer[(self.at - self.from) as usize..])
    }

    fn consume(&mut self, count: usize) {
        self.at += count as u64;
    }
}

impl Read for Headers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    fn blob(path: &std::path::Path, at: u64, length: u64) -> OpenBlob {
        OpenBlob::part(File::open(path).unwrap(), at, length).unwrap()
    }

    #[test]
    fn a_part_of_a_file_is_read_and_passed_over_and_hashed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let Reading::InPlace(tar, mut headers) = Reading::of(blob(&path, 1000, 150_000), 150_000).unwrap() else {
            return eprintln!("SKIPPED: needs a local file system for {}", path.display());
        };
        let mut read = [0; 700];
        headers.read_exact(&mut read).unwrap();
        assert_eq!(read, bytes[1000..1700]);
        assert_eq!(headers.pass(100).unwrap(), 100);
        headers.read_exact(&mut read).unwrap();
        assert_eq!(read, bytes[1800..2500]);
        assert_eq!(headers.pass(100_000).unwrap(), 100_000);
        let mut rest = Vec::new();
        headers.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, bytes[102_500..151_000]);
        assert_eq!(headers.pass(1).unwrap(), 0);
        let sums = tar.finish().unwrap();
        assert_eq!((sums.diff_id, sums.tar_size), (Digest::of(&bytes[1000..151_000]), 150_000));
    }

    #[test]
    fn what_could_not_be_read_is_not_taken_for_zeros_the_next_time() {
        // That cannot be read.
        let directory = File::open(tempfile::tempdir().unwrap().path()).unwrap();
        let mut headers = Headers::new(directory, 0, 1000);
        for _ in 0..2 {
            assert!(headers.read(&mut [0; 10]).is_err());
        }
    }

    #[test]
    fn what_somebody_would_write_to_before_it_is_read_is_a_failure_and_no_refusal() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, [1; 5000]).unwrap();
        let Reading::InPlace(tar, headers) = Reading::of(blob(&path, 0, u64::MAX), u64::MAX).unwrap() else {
            return eprintln!("SKIPPED: needs a local file system for {}", path.display());
        };
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let writer = || File::options().append(true).custom_flags(nonblock).open(&path);
        assert_eq!(writer().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let error = tar.finish().unwrap_err();
        assert!(error.to_string().contains("opened it for writing") && !error.is_refusal(), "{error}");
        drop(headers);
        writer().unwrap();
    }

    #[test]
    fn what_is_compressed_or_being_written_is_read_as_a_stream_and_what_is_too_long_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, zstd::bulk::compress(b"not a tar", 3).unwrap()).unwrap();
        let compressed = Reading::of(blob(&path, 0, u64::MAX), u64::MAX).unwrap();
        assert!(matches!(compressed, Reading::Stream(_)));
        // While it is read nobody waits for it.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        File::options().append(true).custom_flags(nonblock).open(&path).unwrap();
        std::fs::write(&path, [1; 1000]).unwrap();
        let Reading::InPlace(tar, _) = Reading::of(blob(&path, 0, u64::MAX), 999).unwrap() else {
            return eprintln!("SKIPPED: needs a local file system for {}", path.display());
        };
        assert!(tar.finish().unwrap_err().is_refusal());
        let _writer = File::options().append(true).open(&path).unwrap();
        assert!(matches!(Reading::of(blob(&path, 0, u64::MAX), u64::MAX).unwrap(), Reading::Stream(_)));
    }
}
