//! A reader some buffers ahead of who uses it, so that decompressing, hashing and parsing a layer run side by side.
//!
//! One thread reads, one hashes what was read and passes it on. Buffers go round and are never copied: the user gives them
//! back to the first thread. Their number bounds the memory, and how far ahead the threads get. What was read before an
//! error is given before the error is.

use blobstore::refs::Digest;
use sha2::{Digest as _, Sha256};
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// Bytes of a buffer: what one core's cache holds beside other things.
const BUFFER: usize = 256 << 10;

/// Buffers of one reader: one in each thread's hands, and some between them.
const BUFFERS: usize = 8;

/// A buffer with its bytes in front, or what ended the reading; no bytes are the end.
type Filled = io::Result<(Vec<u8>, usize)>;

/// Reads `R` ahead, and takes the SHA-256 of it.
#[derive(Debug)]
pub(super) struct Ahead<R> {
    filled: Receiver<Filled>,
    emptied: Sender<Vec<u8>>,
    reader: JoinHandle<R>,
    hasher: JoinHandle<(Sha256, u64)>,
    /// The buffer in use: of its bytes, those from `at` to `end` are still to be given.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    ended: bool,
}

impl<R: Read + Send + 'static> Ahead<R> {
    /// Starts to read.
    pub(super) fn new(inner: R) -> io::Result<Self> {
        let (give, read) = sync_channel(BUFFERS);
        let (pass, filled) = sync_channel(BUFFERS);
        let (emptied, take) = channel();
        // Refused by nobody: the other end is `take`.
        (1..BUFFERS).for_each(|_| drop(emptied.send(vec![0; BUFFER])));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let reader = thread("layer-read").spawn(move || run(inner, &take, &give))?;
        let hasher = thread("layer-hash").spawn(move || hash(&read, &pass))?;
        Ok(Self { filled, emptied, reader, hasher, buffer: vec![0; BUFFER], at: 0, end: 0, ended: false })
    }

    /// The reader, wherever it has got to; digest and number of the bytes that were hashed: after the end was given, of all.
    pub(super) fn into_parts(self) -> io::Result<(R, Digest, u64)> {
        let Self { filled, emptied, reader, hasher, .. } = self;
        drop((filled, emptied));
        let (hasher, count) = hasher.join().map_err(|_| ended_early())?;
        let inner = reader.join().map_err(|_| ended_early())?;
        Ok((inner, Digest::from_bytes(hasher.finalize().into()), count))
    }
}

/// Hashes buffers on their way.
fn hash(read: &Receiver<Filled>, pass: &SyncSender<Filled>) -> (Sha256, u64) {
    let (mut hasher, mut count) = (Sha256::new(), 0);
    for filled in read {
        if let Ok((buffer, end)) = &filled {
            hasher.update(&buffer[..*end]);
            count += *end as u64;
        }
        if pass.send(filled).is_err() {
            break;
        }
    }
    (hasher, count)
}

/// Fills buffers until there is nothing to read or nobody who wants it.
fn run<R: Read>(mut inner: R, take: &Receiver<Vec<u8>>, give: &SyncSender<Filled>) -> R {
    while let Ok(mut buffer) = take.recv() {
        let (count, error) = fill(&mut inner, &mut buffer);
        let last = error.is_some() || count == 0;
        let bytes = (count > 0 || error.is_none()).then_some(Ok((buffer, count)));
        if bytes.into_iter().chain(error.map(Err)).any(|filled| give.send(filled).is_err()) || last {
            break;
        }
    }
    inner
}

/// Fills a buffer, less only at the end or in front of an error.
fn fill(inner: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut count = 0;
    while count < buffer.len() {
        match inner.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(got) => count += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (count, Some(e)),
        }
    }
    (count, None)
}

impl<R> BufRead for Ahead<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end && !self.ended {
            let (buffer, end) = self.filled.recv().map_err(|_| ended_early())??;
            let empty = std::mem::replace(&mut self.buffer, buffer);
            (self.at, self.end, self.ended) = (0, end, end == 0);
            // After its last buffer the thread is gone, and needs no more.
            let _ = self.emptied.send(empty);
        }
        Ok(&self.buffer[self.at..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.at = self.end.min(self.at + count);
    }
}

impl<R> Read for Ahead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

fn ended_early() -> io::Error {
    io::Error::other("the thread that reads the layer ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives `left` bytes in odd pieces, then an error or the end.
    struct Odd {
        left: usize,
        error: Option<io::ErrorKind>,
    }

    impl Read for Odd {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.left.min(buffer.len()).min(70_001);
            buffer[..count].fill(7);
            self.left -= count;
            match self.error {
                Some(kind) if count == 0 => Err(kind.into()),
                _ => Ok(count),
            }
        }
    }

    #[test]
    fn everything_is_read_and_the_reader_comes_back() {
        for left in [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 20 * BUFFER + 5] {
            let mut ahead = Ahead::new(Odd { left, error: None }).unwrap();
            let mut out = Vec::new();
            assert_eq!(ahead.read_to_end(&mut out).unwrap(), left);
            assert_eq!(ahead.read(&mut [0; 10]).unwrap(), 0);
            let (reader, digest, count) = ahead.into_parts().unwrap();
            assert_eq!((reader.left, digest, count), (0, Digest::of(&out), left as u64));
        }
    }

    #[test]
    fn what_stands_in_front_of_an_error_is_given_first() {
        let mut ahead = Ahead::new(Odd { left: BUFFER + 9, error: Some(io::ErrorKind::InvalidData) }).unwrap();
        let mut out = vec![0; BUFFER + 9];
        ahead.read_exact(&mut out).unwrap();
        assert_eq!(ahead.read(&mut out).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(ahead.read(&mut out).is_err());
    }

    #[test]
    fn a_reader_that_is_not_read_to_its_end_comes_back_too() {
        let ahead = Ahead::new(Odd { left: usize::MAX, error: None }).unwrap();
        assert!(ahead.into_parts().unwrap().0.left < usize::MAX);
    }
}
