//! Segment files: records one behind the other, only ever appended to.
//!
//! ```text
//! record = u32 magic "LMCK" ++ u32 length ++ [32] BLAKE3 of the bytes ++ the bytes      (integers little endian)
//! ```
//!
//! Nothing is synced: after a crash a file can end in half a record, or in zeros. [`Segment::open`] cuts it behind the
//! last record whose header is plausible and whose bytes lie within the file. That the bytes are right is the reader's
//! to check.

use crate::layer::format::MAX_STORED;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"LMCK";

/// Bytes of a record's header.
pub(super) const HEADER: u64 = 40;

/// A chunk's hash.
pub(super) type Hash = [u8; 32];

/// Where a record's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) hash: Hash,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// An open segment file.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    file: File,
}

impl Segment {
    /// Name of the file with this number.
    fn path(dir: &Path, number: u64) -> PathBuf {
        dir.join(format!("{number:016}.seg"))
    }

    /// The numbers of the segments in `dir`, ascending. Other files are left alone.
    pub(super) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse().ok());
            numbers.extend(stem.filter(|number| Self::path(dir, *number) == path));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Makes an empty segment.
    pub(super) fn create(dir: &Path, number: u64) -> io::Result<Self> {
        let path = Self::path(dir, number);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { path, file })
    }

    /// Opens a segment, cuts a torn tail off, and gives its records with its length.
    pub(super) fn open(dir: &Path, number: u64) -> io::Result<(Self, Vec<Record>, u64)> {
        let path = Self::path(dir, number);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let length = file.metadata()?.len();
        let records = scan(&file, length)?;
        let end = records.last().map_or(0, |r| r.offset + u64::from(r.length));
        if end != length {
            file.set_len(end)?;
        }
        Ok((Self { path, file }, records, end))
    }

    /// Writes a record at `end`, the segment's length. On an error the file is cut back.
    pub(super) fn append(&self, end: u64, hash: &Hash, bytes: &[u8]) -> io::Result<Record> {
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut record = Vec::with_capacity(HEADER as usize + bytes.len());
        record.extend_from_slice(&MAGIC);
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(hash);
        record.extend_from_slice(bytes);
        if let Err(e) = self.file.write_all_at(&record, end) {
            // Where even this fails, the next append overwrites the half record, or the next start cuts it.
            let _ = self.file.set_len(end);
            return Err(e);
        }
        Ok(Record { hash: *hash, offset: end + HEADER, length })
    }

    /// The bytes of a record.
    pub(super) fn read(&self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Removes the file; who has it open can go on reading.
    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// The plausible records from the beginning of a file of `length` bytes.
fn scan(file: &File, length: u64) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut at = 0u64;
    let mut header = [0; HEADER as usize];
    while at.saturating_add(HEADER) <= length {
        file.read_exact_at(&mut header, at)?;
        let Some((hash, bytes)) = parse(&header) else { break };
        let offset = at + HEADER;
        if u64::from(bytes) > length - offset {
            break;
        }
        records.push(Record { hash, offset, length: bytes });
        at = offset + u64::from(bytes);
    }
    Ok(records)
}

fn parse(header: &[u8; HEADER as usize]) -> Option<(Hash, u32)> {
    let (magic, rest) = header.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let plausible = *magic == MAGIC && length != 0 && length <= MAX_STORED;
    plausible.then_some((*rest.first_chunk()?, length))
}
