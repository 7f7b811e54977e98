//! Writing a layer file: the head's place is known before the data, so that each byte is written once, where it stays.
//!
//! The metadata and the number of chunks come first; they give the head's length. Chunks follow, compressed on many
//! threads and written in order behind it, while the disk already takes them. The index, which holds their digests, is
//! written last: until then the file begins with zeros and is no layer.
//!
//! Equal chunks, metadata, flags, sections and level give equal bytes, on any number of threads. Memory stays at the
//! chunks under way and 40 bytes a chunk.

use super::error::{LayerError, Result, malformed};
use super::format::{self, BLOCK, Flags, Header, SectionHead};
use super::id::LayerId;
use super::pool::{Pool, Stored};
use super::writeback::Writeback;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// zstd's level, unless somebody asks for another.
pub const LEVEL: i32 = 3;

/// How a layer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// zstd's compression level.
    pub level: i32,
    /// Threads that compress; 0 counts as 1.
    pub threads: usize,
}

impl Default for Options {
    /// [`LEVEL`], one thread a processor.
    fn default() -> Self {
        Self { level: LEVEL, threads: std::thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// What stands in front of a layer's data.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    /// A positive multiple of 4096 bytes: its blocks are U.
    pub metadata: &'a [u8],
    /// Properties of the layer.
    pub flags: Flags,
    /// They stand in the index in this order, behind the tables.
    pub sections: &'a [Section],
    /// How many data chunks will follow.
    pub chunks: u32,
}

/// A section of the index other than the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its type; see [`format`](super::format).
    pub kind: u32,
    /// Whether readers that do not know the type must refuse the layer.
    pub must_understand: bool,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The layer's name.
    pub id: LayerId,
    /// Bytes of index and compressed metadata.
    pub head_len: u64,
    /// Bytes of the file.
    pub file_len: u64,
    /// 4 KiB blocks of the image.
    pub image_blocks: u64,
    /// 4 KiB blocks of the metadata.
    pub first_data_block: u64,
    /// Number of data chunks.
    pub chunks: u32,
    /// Bytes of the data chunks, decompressed.
    pub data_bytes: u64,
    /// Bytes of the data chunks as stored.
    pub stored_bytes: u64,
}

/// Takes the data chunks of a layer.
#[derive(Debug)]
pub struct Writer {
    pool: Pool,
    out: File,
    writeback: Writeback,
    /// The chunk table is filled in at the end.
    sections: Vec<Section>,
    header: Header,
    /// Chunks announced, and pushed so far.
    chunks: (u32, u32),
    table: Vec<u8>,
    pushed: u64,
    stored: u64,
}

impl Writer {
    /// Starts the threads and writes the metadata. The layer goes to `out`, an empty file.
    pub fn new(options: &Options, front: &Front<'_>, out: File) -> Result<Self> {
        let mut pool = Pool::new(options.level, options.threads)?;
        let first_data_block = blocks_of(front.metadata)?;
        let mut sections = all_sections(front)?;
        let mut end = format::FRAME_HEADER as u64 + u64::from(content_len(&sections)?);
        sections[0].bytes = write_metadata(&mut pool, front.metadata, &out, &mut end)?;
        let header = Header {
            minor: format::MINOR,
            flags: front.flags,
            head_len: end,
            file_len: end,
            image_blocks: first_data_block,
            first_data_block,
            generation: format::WRITER_GENERATION,
            section_count: sections.len() as u32,
        };
        let writeback = Writeback::start(&out).map_err(LayerError::io(WRITING))?;
        let chunks = (front.chunks, 0);
        Ok(Self { pool, out, writeback, sections, header, chunks, table: Vec::new(), pushed: 0, stored: 0 })
    }

    /// Adds the next chunk: 4096 bytes to 8 MiB, a multiple of 4096.
    pub fn push(&mut self, chunk: Vec<u8>) -> Result<()> {
        let length = chunk.len() as u64;
        if length == 0 || !length.is_multiple_of(BLOCK) || length > u64::from(format::MAX_FRAME) {
            return Err(malformed!("a chunk of {length} bytes"));
        }
        let (announced, pushed) = self.chunks;
        if pushed == announced {
            return Err(malformed!("more than the {announced} chunks that were announced"));
        }
        let done = self.pool.push(chunk)?;
        self.chunks.1 += 1;
        self.pushed += length;
        done.map_or(Ok(()), |stored| self.add(&stored))
    }

    /// Waits for the last chunks and writes the index. Leaves syncing and naming the file to the caller, with little to do.
    pub fn finish(mut self) -> Result<Summary> {
        while let Some(stored) = self.pool.take()? {
            self.add(&stored)?;
        }
        let (announced, pushed) = self.chunks;
        if pushed != announced {
            return Err(malformed!("{pushed} chunks, where {announced} were announced"));
        }
        self.header.file_len += self.stored;
        self.header.image_blocks += self.pushed / BLOCK;
        if let Some(chunks) = self.sections.iter_mut().find(|section| section.kind == format::SECTION_CHUNKS) {
            chunks.bytes = std::mem::take(&mut self.table);
        }
        let frame = index_frame(&self.header, content_len(&self.sections)?, &self.sections);
        self.out.write_all_at(&frame, 0).map_err(LayerError::io(WRITING))?;
        self.writeback.finish().map_err(LayerError::io(WRITING))?;
        Ok(Summary {
            id: LayerId::of(&frame),
            head_len: self.header.head_len,
            file_len: self.header.file_len,
            image_blocks: self.header.image_blocks,
            first_data_block: self.header.first_data_block,
            chunks: pushed,
            data_bytes: self.pushed,
            stored_bytes: self.stored,
        })
    }

    fn add(&mut self, stored: &Stored) -> Result<()> {
        let at = self.header.head_len + self.stored;
        self.out.write_all_at(&stored.bytes, at).map_err(LayerError::io(WRITING))?;
        self.stored += u64::from(stored.entry.stored_len);
        self.table.extend_from_slice(&stored.entry.encode());
        self.writeback.wrote(u64::from(stored.entry.stored_len));
        Ok(())
    }
}

const WRITING: &str = "writing the layer";

fn blocks_of(metadata: &[u8]) -> Result<u64> {
    let length = metadata.len() as u64;
    if length == 0 || !length.is_multiple_of(BLOCK) || length / BLOCK > format::MAX_METADATA_BLOCKS {
        return Err(malformed!("metadata of {length} bytes"));
    }
    Ok(length / BLOCK)
}

/// Writes the metadata's frames from byte `end` on, which is where they end then, and gives their table.
fn write_metadata(pool: &mut Pool, metadata: &[u8], out: &File, end: &mut u64) -> Result<Vec<u8>> {
    let mut table = Vec::new();
    let mut add = |stored: Stored| -> Result<()> {
        table.extend_from_slice(&stored.entry.encode());
        out.write_all_at(&stored.bytes, *end).map_err(LayerError::io(WRITING))?;
        *end += stored.bytes.len() as u64;
        Ok(())
    };
    for part in metadata.chunks(format::METADATA_FRAME as usize) {
        // They are large: no more are under way than keep all threads busy.
        if pool.is_busy() {
            pool.take()?.map_or(Ok(()), &mut add)?;
        }
        pool.push(part.to_vec())?.map_or(Ok(()), &mut add)?;
    }
    while let Some(stored) = pool.take()? {
        add(stored)?;
    }
    Ok(table)
}

/// The tables as sections, still empty of meaning, then the caller's.
fn all_sections(front: &Front<'_>) -> Result<Vec<Section>> {
    let frames = front.metadata.len().div_ceil(format::METADATA_FRAME as usize);
    let table = u64::from(front.chunks) * format::ENTRY as u64;
    if table > u64::from(format::MAX_CONTENT) {
        return Err(malformed!("more chunks than an index can hold"));
    }
    let mut sections = vec![
        Section { kind: format::SECTION_METADATA, must_understand: true, bytes: vec![0; frames * format::ENTRY] },
        Section { kind: format::SECTION_CHUNKS, must_understand: true, bytes: vec![0; table as usize] },
    ];
    for section in front.sections {
        if sections.iter().any(|earlier| earlier.kind == section.kind) {
            return Err(malformed!("section {} stands twice", section.kind));
        }
        sections.push(section.clone());
    }
    if sections.len() > format::MAX_SECTIONS as usize {
        return Err(malformed!("{} sections", sections.len()));
    }
    Ok(sections)
}

fn content_len(sections: &[Section]) -> Result<u32> {
    let table_end = (format::HEADER + sections.len() * format::SECTION) as u64;
    let length = sections.iter().fold(table_end, |end, section| format::align(end) + section.bytes.len() as u64);
    match u32::try_from(length) {
        Ok(length) if length <= format::MAX_CONTENT => Ok(length),
        _ => Err(malformed!("an index of {length} bytes; {} at most", format::MAX_CONTENT)),
    }
}

fn index_frame(header: &Header, content_len: u32, sections: &[Section]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(format::FRAME_HEADER + content_len as usize);
    frame.extend_from_slice(&format::frame_header(content_len));
    frame.extend_from_slice(&header.encode());
    let mut end = (format::HEADER + sections.len() * format::SECTION) as u64;
    for section in sections {
        let flags = if section.must_understand { format::MUST_UNDERSTAND } else { 0 };
        let (offset, length) = (format::align(end), section.bytes.len() as u64);
        frame.extend_from_slice(&SectionHead { kind: section.kind, flags, offset, length }.encode());
        end = offset + length;
    }
    for section in sections {
        // The frame's header is 8 bytes long: alignment in the frame is alignment in the content.
        frame.resize(format::align(frame.len() as u64) as usize, 0);
        frame.extend_from_slice(&section.bytes);
    }
    frame
}
