//! Validation of an index: untrusted bytes to numbers that hold together.
//!
//! Every rule of [`format`](super::format) that the index alone can break is checked here, once; [`Index`](super::Index)
//! relies on it. Time is linear in the index, memory one pair of numbers for [`STRIDE`] chunks.

use super::error::{LayerError, Result, malformed};
use super::format::{self, BLOCK, ChunkEntry, ENTRY, Header, SectionHead};
use std::ops::Range;

/// Chunks between two remembered positions: keeps the sums of a 100 GB layer at about 100 KB.
pub(super) const STRIDE: usize = 64;

/// Where a frame lies: at which byte of its address space its content starts, at which byte of the file it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) data_start: u64,
    pub(super) file_offset: u64,
}

/// A validated index frame; ranges are relative to the frame's start.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) header: Header,
    pub(super) sections: Vec<(u32, Range<usize>)>,
    pub(super) metadata: Range<usize>,
    pub(super) chunks: Range<usize>,
    pub(super) samples: Vec<Position>,
}

/// Validates the index frame that `bytes` are, no more and no less.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed> {
    let frame_len = format::index_frame_len(bytes)?;
    if bytes.len() as u64 != frame_len {
        return Err(malformed!("{} bytes of an index frame of {frame_len}", bytes.len()));
    }
    let content = &bytes[format::FRAME_HEADER..];
    let header = Header::decode(content.first_chunk().ok_or_else(|| malformed!("index cut short"))?)?;
    let sections = parse_sections(content, header.section_count)?;
    check_header(&header)?;

    let metadata = find(&sections, format::SECTION_METADATA, "metadata frame table")?;
    let chunks = find(&sections, format::SECTION_CHUNKS, "chunk table")?;
    check_metadata(&bytes[metadata.clone()], frame_len, &header)?;
    let samples = check_chunks(&bytes[chunks.clone()], &header)?;
    Ok(Parsed { header, sections, metadata, chunks, samples })
}

/// The entries of a frame table; a rest shorter than an entry is left out.
pub(super) fn entries(table: &[u8]) -> impl ExactSizeIterator<Item = ChunkEntry> + '_ {
    table.as_chunks::<ENTRY>().0.iter().map(ChunkEntry::decode)
}

/// Reads the section table: what is not supported is refused before anything else is found wrong.
fn parse_sections(content: &[u8], count: u32) -> Result<Vec<(u32, Range<usize>)>> {
    if count > format::MAX_SECTIONS {
        return Err(malformed!("{count} sections; {} at most", format::MAX_SECTIONS));
    }
    let table_end = format::HEADER + count as usize * format::SECTION;
    let table = content.get(format::HEADER..table_end).ok_or_else(|| malformed!("section table cut short"))?;
    let heads: Vec<SectionHead> = table.as_chunks().0.iter().map(SectionHead::decode).collect();
    heads.iter().try_for_each(check_supported)?;

    let mut sections: Vec<(u32, Range<usize>)> = Vec::with_capacity(heads.len());
    let mut end = table_end;
    for head in heads {
        if sections.iter().any(|(kind, _)| *kind == head.kind) {
            return Err(malformed!("section {} stands twice", head.kind));
        }
        let range = place(content, end, &head)?;
        end = range.end;
        sections.push((head.kind, range.start + format::FRAME_HEADER..range.end + format::FRAME_HEADER));
    }
    if end != content.len() {
        return Err(malformed!("{} bytes behind the last section", content.len() - end));
    }
    Ok(sections)
}

fn check_supported(head: &SectionHead) -> Result<()> {
    let known = matches!(head.kind, format::SECTION_METADATA | format::SECTION_CHUNKS | format::SECTION_ASSUMES);
    if head.flags & !format::MUST_UNDERSTAND != 0 {
        return Err(LayerError::Unsupported(format!("section {} has flags {:#x}", head.kind, head.flags)));
    }
    if !known && head.flags & format::MUST_UNDERSTAND != 0 {
        return Err(LayerError::Unsupported(format!("section {} must be understood", head.kind)));
    }
    let table = matches!(head.kind, format::SECTION_METADATA | format::SECTION_CHUNKS);
    if table && head.flags != format::MUST_UNDERSTAND {
        return Err(malformed!("section {} is not marked as one that must be understood", head.kind));
    }
    Ok(())
}

/// The range of a section in the content, which must be the next one possible behind `end`.
fn place(content: &[u8], end: usize, head: &SectionHead) -> Result<Range<usize>> {
    let start = format::align(end as u64);
    let stop = start.checked_add(head.length).filter(|stop| *stop <= content.len() as u64);
    let (Some(stop), true) = (stop, head.offset == start) else {
        return Err(malformed!("section {}: {} bytes at {}, not at {start}", head.kind, head.length, head.offset));
    };
    // Both are at most the content's length, so they fit.
    let range = start as usize..stop as usize;
    if content[end..range.start].iter().any(|byte| *byte != 0) {
        return Err(malformed!("bytes that are not zero before section {}", head.kind));
    }
    Ok(range)
}

fn find(sections: &[(u32, Range<usize>)], kind: u32, name: &str) -> Result<Range<usize>> {
    let range = sections.iter().find(|(found, _)| *found == kind).map(|(_, range)| range.clone());
    match range {
        Some(range) if range.len().is_multiple_of(ENTRY) => Ok(range),
        Some(range) => Err(malformed!("{name} of {} bytes", range.len())),
        None => Err(malformed!("no {name}")),
    }
}

fn check_header(header: &Header) -> Result<()> {
    let first = header.first_data_block;
    if first == 0 || first > format::MAX_METADATA_BLOCKS {
        return Err(malformed!("metadata of {first} blocks; 1 to {} are", format::MAX_METADATA_BLOCKS));
    }
    if header.image_blocks < first || header.image_blocks.checked_mul(BLOCK).is_none() {
        return Err(malformed!("{} image blocks, {first} of them metadata", header.image_blocks));
    }
    Ok(())
}

fn check_metadata(table: &[u8], frame_len: u64, header: &Header) -> Result<()> {
    let mut left = header.first_data_block * BLOCK;
    let mut offset = frame_len;
    for (number, entry) in entries(table).enumerate() {
        let due = left.min(u64::from(format::METADATA_FRAME));
        if due == 0 || u64::from(entry.data_len) != due {
            return Err(malformed!("metadata frame {number} holds {} bytes, not {due}", entry.data_len));
        }
        check_stored(&entry).map_err(|error| error.within(&format!("metadata frame {number}")))?;
        left -= due;
        offset += u64::from(entry.stored_len);
    }
    if left != 0 || offset != header.head_len {
        return Err(malformed!("metadata ends at byte {offset}, {left} short; head length {}", header.head_len));
    }
    Ok(())
}

/// Checks the chunk table; the position of every [`STRIDE`]-th chunk.
fn check_chunks(table: &[u8], header: &Header) -> Result<Vec<Position>> {
    let mut samples = Vec::with_capacity((table.len() / ENTRY).div_ceil(STRIDE));
    // A table has fewer than 2^25 entries of less than 2^24 bytes: the sums stay far below 2^64.
    let mut at = Position { data_start: 0, file_offset: header.head_len };
    for (number, entry) in entries(table).enumerate() {
        if number % STRIDE == 0 {
            samples.push(at);
        }
        let data_len = u64::from(entry.data_len);
        if data_len == 0 || !data_len.is_multiple_of(BLOCK) || entry.data_len > format::MAX_FRAME {
            return Err(malformed!("chunk {number} holds {data_len} bytes"));
        }
        check_stored(&entry).map_err(|error| error.within(&format!("chunk {number}")))?;
        at.data_start += data_len;
        at.file_offset += u64::from(entry.stored_len);
    }
    let due = (header.image_blocks - header.first_data_block) * BLOCK;
    if at.data_start != due || at.file_offset != header.file_len {
        return Err(malformed!(
            "chunks hold {} bytes of {due} and end at byte {} of {}",
            at.data_start,
            at.file_offset,
            header.file_len
        ));
    }
    Ok(samples)
}

fn check_stored(entry: &ChunkEntry) -> Result<()> {
    match entry.stored_len {
        0 => Err(malformed!("nothing stored")),
        length if length > format::MAX_STORED => Err(malformed!("{length} bytes stored")),
        _ => Ok(()),
    }
}
