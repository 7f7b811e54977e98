//! Segment files: records one behind the other, and in a full segment a footer that says where they are.
//!
//! ```text
//! <n>.seg  chunks as they came         <n>.keep  chunks that were wanted again (evict.rs)        n: 16 decimal digits
//!
//! file    = record* ++ footer?                                                       (integers little endian)
//! record  = u32 magic "LMCK" ++ u32 length ++ [32] name of the chunk ++ the bytes    name: BLAKE3, domain.rs
//! footer  = entry* ++ [32] BLAKE3 of the entries and the next field ++ u64 end of the records ++ magic "LAMINACF"
//! entry   = [32] name ++ u32 length ++ u64 offset of the bytes                       in order of the names
//! ```
//!
//! A segment that is gone on with loses its footer first. Nothing is synced, but what is pinned: after a crash a file
//! can end in half a record, in zeros, or in half a footer. Where the footer is not there or does not match, the records
//! are looked through from the beginning, and the file is cut behind the last one whose header is plausible and whose
//! bytes lie within the file. That the bytes are right is the reader's to check.

use super::disk::{Disk, DiskFile};
use crate::layer::format::MAX_STORED;
use std::io;

const MAGIC: [u8; 4] = *b"LMCK";
const FOOTER_MAGIC: [u8; 8] = *b"LAMINACF";
const ENTRY: u64 = 44;
const TRAILER: u64 = 48;

/// Bytes of a record's header.
pub(super) const HEADER: u64 = 40;

/// A chunk's hash, or its name in the cache.
pub(super) type Hash = [u8; 32];

/// Where a record's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) hash: Hash,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Record {
    /// Where the record ends.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// Bytes of the record with its header.
    pub(super) fn size(&self) -> u64 {
        HEADER + u64::from(self.length)
    }
}

/// Which of the two queues a segment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Chunks as they came.
    Young,
    /// Chunks that were wanted again.
    Kept,
}

impl Kind {
    /// The other one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Young => Self::Kept,
            Self::Kept => Self::Young,
        }
    }
}

/// An open segment file.
#[derive(Debug)]
pub(super) struct Segment {
    name: String,
    file: Box<dyn DiskFile>,
}

/// What a segment has.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Its records; where a footer told, those that counted.
    pub(super) records: Vec<Record>,
    /// Where the records end.
    pub(super) data_end: u64,
    /// Bytes of the file.
    pub(super) length: u64,
}

impl Segment {
    fn name(number: u64, kind: Kind) -> String {
        match kind {
            Kind::Young => format!("{number:016}.seg"),
            Kind::Kept => format!("{number:016}.keep"),
        }
    }

    /// The number and the kind that a file name tells; `None` for what is not a segment.
    pub(super) fn parse_name(name: &str) -> Option<(u64, Kind)> {
        let (stem, end) = name.split_once('.')?;
        let number = stem.parse().ok()?;
        let kind = if end == "seg" { Kind::Young } else { Kind::Kept };
        (Self::name(number, kind) == name).then_some((number, kind))
    }

    /// Makes an empty segment.
    pub(super) fn create(disk: &dyn Disk, number: u64, kind: Kind) -> io::Result<Self> {
        let name = Self::name(number, kind);
        Ok(Self { file: disk.create(&name)?, name })
    }

    /// Opens a segment, and tells its length. Reads nothing of it.
    pub(super) fn open(disk: &dyn Disk, name: &str) -> io::Result<(Self, u64)> {
        let file = disk.open(name)?;
        let length = file.len()?;
        Ok((Self { name: name.to_owned(), file }, length))
    }

    /// What is in it: from its footer, else from its records, and then the file is cut behind them.
    pub(super) fn load(&self) -> io::Result<Content> {
        let length = self.file.len()?;
        if let Some(content) = self.read_footer(length)? {
            return Ok(content);
        }
        let records = self.scan(length)?;
        let end = records.last().map_or(0, Record::end);
        if end != length {
            self.file.set_len(end)?;
        }
        Ok(Content { records, data_end: end, length: end })
    }

    /// Writes a record at `end`, the segment's length. On an error the file is cut back.
    pub(super) fn append(&self, end: u64, hash: &Hash, bytes: &[u8]) -> io::Result<Record> {
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut record = Vec::with_capacity(HEADER as usize + bytes.len());
        record.extend_from_slice(&MAGIC);
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(hash);
        record.extend_from_slice(bytes);
        self.write(end, &record)?;
        Ok(Record { hash: *hash, offset: end + HEADER, length })
    }

    /// Writes the footer behind the records, which end at `end`; gives its length. `records` need no order.
    pub(super) fn seal(&self, end: u64, records: &[Record]) -> io::Result<u64> {
        let mut sorted: Vec<_> = records.iter().collect();
        sorted.sort_unstable_by_key(|r| r.hash);
        let mut footer = Vec::with_capacity(sorted.len() * ENTRY as usize + TRAILER as usize);
        for record in sorted {
            footer.extend_from_slice(&record.hash);
            footer.extend_from_slice(&record.length.to_le_bytes());
            footer.extend_from_slice(&record.offset.to_le_bytes());
        }
        footer.extend_from_slice(&footer_hash(&footer, end));
        footer.extend_from_slice(&end.to_le_bytes());
        footer.extend_from_slice(&FOOTER_MAGIC);
        self.write(end, &footer)?;
        Ok(footer.len() as u64)
    }

    /// Bytes of the footer of so many records.
    pub(super) fn footer_len(records: usize) -> u64 {
        records as u64 * ENTRY + TRAILER
    }

    /// Takes the footer off a segment whose records end at `end`.
    pub(super) fn unseal(&self, end: u64) -> io::Result<()> {
        self.file.set_len(end)
    }

    fn write(&self, end: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(bytes, end).inspect_err(|_| {
            // Where even this fails, the next append overwrites the half record, or the next start cuts it.
            let _ = self.file.set_len(end);
        })
    }

    /// The bytes of a record.
    pub(super) fn read(&self, record: &Record) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; record.length as usize];
        self.file.read_at(&mut bytes, record.offset)?;
        Ok(bytes)
    }

    /// Makes what is in it durable; the name takes [`Disk::sync`].
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Removes the file; who has it open can go on reading.
    pub(super) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove(&self.name).inspect_err(|_| {
            // A file that stays shall at least take no space.
            let _ = self.file.set_len(0);
        })
    }

    /// Looks one chunk up in the footer, **unchecked**, with two small reads: names are hashes, so where one stands
    /// among `n` others is known to within some `sqrt(n) / 2`. Four times that is looked at; what is missed is fetched.
    pub(super) fn lookup(&self, hash: &Hash) -> io::Result<Option<Record>> {
        let length = self.file.len()?;
        let Some((end, count, _)) = self.trailer(length)? else { return Ok(None) };
        let near = hash.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        let near = (u128::from(near) * u128::from(count)) >> 64;
        let (near, around) = (near as u64, 2 * count.isqrt() + 4);
        let (first, last) = (near.saturating_sub(around), near.saturating_add(around).min(count));
        let mut entries = vec![0; ((last - first) * ENTRY) as usize];
        self.file.read_at(&mut entries, end + first * ENTRY)?;
        let found = entries.chunks_exact(ENTRY as usize).find(|entry| entry.starts_with(hash));
        Ok(found.and_then(|entry| parse_entry(entry, end)))
    }

    /// Where the records end, how many entries follow, and their BLAKE3; `None` where there is no footer.
    fn trailer(&self, length: u64) -> io::Result<Option<(u64, u64, Hash)>> {
        let Some(at) = length.checked_sub(TRAILER) else { return Ok(None) };
        let mut trailer = [0; TRAILER as usize];
        self.file.read_at(&mut trailer, at)?;
        let (Some(hash), Some(end)) = (trailer.first_chunk(), trailer[32..].first_chunk()) else { return Ok(None) };
        let end = u64::from_le_bytes(*end);
        let fits = |bytes: &u64| bytes.is_multiple_of(ENTRY) && bytes / ENTRY <= end / HEADER;
        let entries = at.checked_sub(end).filter(|bytes| trailer.ends_with(&FOOTER_MAGIC) && fits(bytes));
        Ok(entries.map(|bytes| (end, bytes / ENTRY, *hash)))
    }

    /// What the footer says; `None` where there is none, or one that does not match.
    fn read_footer(&self, length: u64) -> io::Result<Option<Content>> {
        let Some((end, count, hash)) = self.trailer(length)? else { return Ok(None) };
        let mut entries = vec![0; (count * ENTRY) as usize];
        self.file.read_at(&mut entries, end)?;
        if footer_hash(&entries, end) != hash {
            return Ok(None);
        }
        let records: Option<Vec<_>> = entries.chunks_exact(ENTRY as usize).map(|e| parse_entry(e, end)).collect();
        Ok(records.map(|records| Content { records, data_end: end, length }))
    }

    /// The plausible records from the beginning of a file of `length` bytes.
    fn scan(&self, length: u64) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut at = 0u64;
        let mut header = [0; HEADER as usize];
        while at.saturating_add(HEADER) <= length {
            self.file.read_at(&mut header, at)?;
            let Some((hash, bytes)) = parse_header(&header) else { break };
            let record = Record { hash, offset: at + HEADER, length: bytes };
            if record.end() > length {
                break;
            }
            records.push(record);
            at = record.end();
        }
        Ok(records)
    }
}

fn footer_hash(entries: &[u8], end: u64) -> Hash {
    *blake3::Hasher::new().update(entries).update(&end.to_le_bytes()).finalize().as_bytes()
}

/// An entry whose bytes lie before `end`.
fn parse_entry(entry: &[u8], end: u64) -> Option<Record> {
    let (hash, rest) = entry.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let record =
        Record { hash: *hash, length: u32::from_le_bytes(*length), offset: u64::from_le_bytes(*rest.first_chunk()?) };
    (plausible(record.length) && record.end() <= end).then_some(record)
}

fn parse_header(header: &[u8; HEADER as usize]) -> Option<(Hash, u32)> {
    let (magic, rest) = header.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    (*magic == MAGIC && plausible(length)).then_some((*rest.first_chunk()?, length))
}

fn plausible(length: u32) -> bool {
    length != 0 && length <= MAX_STORED
}
