//! Pin files: which chunks must stay.
//!
//! ```text
//! <name>.pin = entry* ++ [32] BLAKE3 of the entries ++ magic "LAMINAPN"     name: the pin's, 64 hex digits (domain.rs)
//! entry      = [32] name of a chunk ++ u32 length                           in order of the names
//! ```
//!
//! Written whole under another name, synced, then renamed, then the directory synced; all chunks of it were synced
//! before. So one that is there counts, and one that does not match its BLAKE3 was damaged later.

use super::disk::Disk;
use super::segment::Hash;
use std::collections::BTreeMap;
use std::io;

const MAGIC: [u8; 8] = *b"LAMINAPN";
const ENTRY: usize = 36;
const UNFINISHED: &str = "unfinished.pin";

/// Names and lengths of chunks.
pub(super) type Lengths = BTreeMap<Hash, u32>;

fn file_name(name: &Hash) -> String {
    format!("{}.pin", blake3::Hash::from_bytes(*name).to_hex())
}

/// Makes a pin durable; one of that name is replaced.
pub(super) fn write(disk: &dyn Disk, name: &Hash, chunks: &Lengths) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(chunks.len() * ENTRY + 40);
    for (hash, length) in chunks {
        bytes.extend_from_slice(hash);
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes.extend_from_slice(&MAGIC);
    // An attempt before this one may have left it.
    let _ = disk.remove(UNFINISHED);
    let file = disk.create(UNFINISHED)?;
    file.write_at(&bytes, 0)?;
    file.sync()?;
    disk.rename(UNFINISHED, &file_name(name))?;
    disk.sync()
}

/// Takes a pin away, durably.
pub(super) fn remove(disk: &dyn Disk, name: &Hash) -> io::Result<()> {
    match disk.remove(&file_name(name)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => disk.sync(),
    }
}

/// All pins that can be read, and why others could not. What a crash left of others is removed, and so is what was damaged.
pub(super) fn load(disk: &dyn Disk) -> (Vec<(Hash, Lengths)>, Option<io::Error>) {
    let (mut pins, mut failed) = (Vec::new(), None);
    let names = disk.names().unwrap_or_else(|error| {
        failed = Some(error);
        Vec::new()
    });
    for file in names.iter().filter(|name| name.ends_with(".pin")) {
        if let Some(name) = parse_name(file) {
            match read(disk, file) {
                Ok(Some(chunks)) => {
                    pins.push((name, chunks));
                    continue;
                }
                Ok(None) => tracing::warn!(file, "a damaged pin is removed: its chunks are no longer pinned"),
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            }
        }
        // One that cannot be removed takes space and does no harm.
        let _ = disk.remove(file);
    }
    (pins, failed)
}

fn parse_name(file: &str) -> Option<Hash> {
    blake3::Hash::from_hex(file.strip_suffix(".pin")?).ok().map(|name| *name.as_bytes())
}

fn read(disk: &dyn Disk, file: &str) -> io::Result<Option<Lengths>> {
    let file = disk.open(file)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(|_| io::ErrorKind::InvalidData)?];
    file.read_at(&mut bytes, 0)?;
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Option<Lengths> {
    let (entries, trailer) = bytes.split_at_checked(bytes.len().checked_sub(40)?)?;
    let whole = trailer.starts_with(blake3::hash(entries).as_bytes()) && trailer.ends_with(&MAGIC);
    if !whole || !entries.len().is_multiple_of(ENTRY) {
        return None;
    }
    let entries = entries.chunks_exact(ENTRY).map(|entry| {
        let (hash, length) = entry.split_first_chunk()?;
        Some((*hash, u32::from_le_bytes(*length.first_chunk()?)))
    });
    entries.collect()
}
