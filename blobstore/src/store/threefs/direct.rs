//! Ranges of files read with O_DIRECT: in whole blocks, into memory that begins at one, large ranges in pieces at once.

use crate::store::file::descriptors::{Descriptors, open_object};
use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

/// What offsets, lengths and addresses are multiples of: no file system in use asks for more.
const BLOCK: u64 = 4096;

/// One read: large enough that its latency is little of it.
const PIECE: usize = 2 << 20;

/// Reads of one range that are under way at once.
const AT_ONCE: usize = 4;

#[derive(Debug)]
pub(super) struct Direct {
    descriptors: Descriptors,
}

impl Direct {
    pub(super) fn new() -> Self {
        Self { descriptors: Descriptors::opening_with(open_direct) }
    }

    /// The bytes of a range, or the file's size where the range reaches past it.
    pub(super) fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Result<Bytes, u64>> {
        let (file, size) = self.descriptors.get(path)?;
        if range.start > range.end || range.end > size {
            return Ok(Err(size));
        }
        let start = range.start - range.start % BLOCK;
        // Fits: it is at most the length of a file whose bytes are about to be in memory, and less than two blocks.
        let skip = (range.start - start) as usize;
        let wanted = (range.end - start) as usize;
        let whole = wanted.next_multiple_of(BLOCK as usize);
        let mut memory = vec![0; whole + BLOCK as usize];
        let first = memory.as_ptr().align_offset(BLOCK as usize);
        let blocks = &mut memory[first..first + whole];
        match read_blocks(&file, blocks, start, wanted) {
            // Opened, and yet not to be read so: some file systems tell only now.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && is_direct(&file) => {
                fcntl_setfl(&*file, fcntl_getfl(&*file)? - OFlags::DIRECT)?;
                read_blocks(&file, blocks, start, wanted)?;
            }
            other => other?,
        }
        Ok(Ok(Bytes::from(memory).slice(first + skip..first + wanted)))
    }
}

/// Fills `blocks` from `start` on, as far as `wanted` at least; the file ends somewhere in what is left.
fn read_blocks(file: &File, blocks: &mut [u8], start: u64, wanted: usize) -> io::Result<()> {
    if blocks.len() <= PIECE {
        return read_piece(file, blocks, start, wanted);
    }
    let each = blocks.len().div_ceil(PIECE).div_ceil(AT_ONCE) * PIECE;
    let read = |(number, part): (usize, &mut [u8])| {
        let mut pieces = part.chunks_mut(PIECE).enumerate();
        pieces.try_for_each(|(n, piece)| {
            let at = number * each + n * PIECE;
            read_piece(file, piece, start + at as u64, wanted - at)
        })
    };
    thread::scope(|scope| {
        let parts = blocks.chunks_mut(each).enumerate();
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, io::Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a reading thread panicked")))
        };
        // All are waited for: the first failure is told.
        let ends: Vec<_> = threads.into_iter().map(ended).collect();
        ends.into_iter().collect()
    })
}

/// Fills a piece, or as much of it as `wanted` says: then the file may end.
fn read_piece(file: &File, piece: &mut [u8], at: u64, wanted: usize) -> io::Result<()> {
    let wanted = wanted.min(piece.len());
    let mut done = 0;
    while done < wanted {
        match file.read_at(&mut piece[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // What is left begins at a block again, unless the file ends there.
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens an object's file for direct reads, where the file system takes them.
fn open_direct(path: &Path) -> io::Result<File> {
    let file = open_object(path)?;
    // Set afterwards: so a FIFO or a device is known before. EINVAL: not on this file system.
    let _ = fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT);
    Ok(file)
}

fn is_direct(file: &File) -> bool {
    fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_what_the_file_has() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..(5 << 20) + 123u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let (direct, size) = (Direct::new(), content.len() as u64);
        let edges = [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, (3 << 20) - 1, 5 << 20, size - 1, size];
        for start in edges {
            for end in edges.into_iter().filter(|end| *end >= start) {
                let got = direct.read(&path, start..end).unwrap().unwrap();
                assert!(got == content[start as usize..end as usize], "bytes {start}..{end}");
            }
        }
        assert_eq!(direct.read(&path, 0..size + 1).unwrap().unwrap_err(), size);
    }

    #[test]
    fn a_file_system_without_direct_reads_is_read_all_the_same() {
        // Files in memory took none before Linux 6.6.
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            println!("SKIPPED: needs /dev/shm");
            return;
        };
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        assert_eq!(Direct::new().read(&path, 1..9_999).unwrap().unwrap(), vec![7; 9_998]);
    }
}
