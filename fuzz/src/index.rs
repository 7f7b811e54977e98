//! A layer file: its index, its metadata and its chunks; and the head file that a node makes of it.
//!
//! The fuzzer's bytes are a layer file. Lengths that are sums and hashes that are over other bytes are made right first,
//! if the first byte asks for it.

use crate::scratch;
use blobstore::cache::{Cache, Options};
use blobstore::layer::{ChunkEntry, Head, Index, decode, parse_head, verify_file};
use blobstore::meter::Meter;
use bytes::Bytes;
use std::sync::OnceLock;
use tempfile::TempDir;

const FRAME: usize = 8;
const HEADER: usize = 56;
const SECTION: usize = 24;
const ENTRY: usize = 40;

/// Looks at a layer file whose first byte, taken off, says what is to be made right.
pub fn layer_file(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let mut file = rest.to_vec();
    if how & 1 == 0 {
        repair(&mut file);
    }
    let Ok(index) = Index::parse(Bytes::copy_from_slice(&file)) else { return };
    positions(&index);
    for chunk in index.chunks() {
        let start = usize::try_from(chunk.file_offset).unwrap_or(usize::MAX);
        let stored = start.checked_add(chunk.entry.stored_len as usize).and_then(|end| file.get(start..end));
        if let Some(Ok(content)) = stored.map(|stored| decode(stored, &chunk.entry)) {
            assert_eq!(content.len(), chunk.entry.data_len as usize);
        }
    }
    let head = parse_head(&file, Some(&index.id()));
    if let Ok(Head { metadata, .. }) = &head {
        assert_eq!(metadata.len() as u64, index.metadata_len());
        let expect = erofs::Expect { image_blocks: index.image_blocks(), first_data_block: index.first_data_block() };
        let _ = erofs::check(metadata, &expect);
    }
    files(&file, &index, head.ok().as_ref(), how);
}

/// The ways to ask where a chunk is give one answer.
fn positions(index: &Index) {
    for (number, chunk) in index.chunks().enumerate() {
        assert_eq!(index.chunk_at(number as u32), Some(chunk));
        assert_eq!(index.chunk(number as u32), Some(chunk.entry));
        let last = chunk.data_start + u64::from(chunk.entry.data_len) - 1;
        assert_eq!(index.locate(chunk.data_start), Some(chunk));
        assert_eq!(index.locate(last), Some(chunk));
    }
    assert_eq!(index.locate(index.data_len()), None);
    assert_eq!(index.chunk_at(index.chunk_count()), None);
    for kind in [0, 1, 2, 3, 16, 20, u32::MAX] {
        let _ = index.section(kind);
    }
}

/// The same bytes as files: a layer's, and a head's.
fn files(file: &[u8], index: &Index, head: Option<&Head>, how: u8) {
    static PLACE: OnceLock<(TempDir, Cache)> = OnceLock::new();
    let (place, cache) = PLACE.get_or_init(|| {
        let place = tempfile::tempdir_in(scratch()).expect("a directory");
        let cache = Cache::open(&place.path().join("cache"), &Options::new(1 << 20), &Meter::default());
        (place, cache.expect("a cache"))
    });
    let path = place.path().join("layer");
    std::fs::write(&path, file).expect("a file");
    if let Ok(verified) = verify_file(&path, Some(&index.id())) {
        assert_eq!(verified.file_len, index.file_len());
    }
    let Some(head) = head else { return };
    let kept = cache.heads.put(&index.id(), &head.metadata, index.frame()).expect("a head file");
    assert_eq!(kept.index.id(), index.id());
    let mut bytes = std::fs::read(&kept.path).expect("a head file");
    let at = usize::from(how) * 7 % bytes.len();
    bytes[at] ^= how | 1;
    std::fs::write(&kept.path, &bytes).expect("a head file");
    assert!(cache.heads.get(&index.id()).expect("a cache").is_none(), "a head file with a changed byte is not used");
}

/// Makes the frame's and the file's lengths, the sums over the tables, and the hashes right.
fn repair(file: &mut [u8]) {
    if file.len() < FRAME + HEADER {
        return;
    }
    file[..4].copy_from_slice(&0x184D_2A5D_u32.to_le_bytes());
    file[FRAME..FRAME + 8].copy_from_slice(b"LAMINAIX");
    let end = FRAME + u32_at(file, 4) as usize;
    if end < FRAME + HEADER || end > file.len() {
        return;
    }
    let tables = [1, 2].map(|kind| table(&file[FRAME..end], kind));
    let [Some(metadata), Some(chunks)] = tables else { return };
    let mut at = end as u64;
    let first = frames(file, metadata, &mut at);
    put(file, 16, at);
    let data = frames(file, chunks, &mut at);
    put(file, 24, at);
    put(file, 32, (first + data) / 4096);
    put(file, 40, first / 4096);
}

/// Where a section's entries stand in the file, and how many.
fn table(content: &[u8], kind: u32) -> Option<(usize, usize)> {
    let count = u32_at(content, 52).min(256) as usize;
    let head = (0..count)
        .map(|at| HEADER + at * SECTION)
        .find(|&at| content.get(at..at + SECTION).is_some_and(|head| u32_at(head, 0) == kind))?;
    let number = |at: usize| usize::try_from(u64::from_le_bytes(*content[at..].first_chunk()?)).ok();
    let (start, length) = (number(head + 8)?, number(head + 16)?);
    (start.checked_add(length)? <= content.len()).then(|| (FRAME + start, length / ENTRY))
}

/// Makes the entries of a table fit what stands at their place; the sum of their data.
fn frames(file: &mut [u8], (table, count): (usize, usize), at: &mut u64) -> u64 {
    let mut sum = 0;
    for number in 0..count {
        let place = table + number * ENTRY;
        let mut entry = ChunkEntry::decode(file[place..].first_chunk().expect("inside the section"));
        let start = usize::try_from(*at).unwrap_or(usize::MAX);
        let stored = start.checked_add(entry.stored_len as usize).and_then(|end| file.get(start..end));
        if let Some(stored) = stored {
            entry.hash = *blake3::hash(stored).as_bytes();
            if let Ok(Some(size)) = zstd::zstd_safe::get_frame_content_size(stored) {
                entry.data_len = u32::try_from(size).unwrap_or(u32::MAX);
            }
        }
        file[place..place + ENTRY].copy_from_slice(&entry.encode());
        sum += u64::from(entry.data_len);
        *at = at.saturating_add(u64::from(entry.stored_len));
    }
    sum
}

fn put(file: &mut [u8], at: usize, value: u64) {
    file[FRAME + at..][..8].copy_from_slice(&value.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
