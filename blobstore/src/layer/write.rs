//! Writing a layer file: the data first, chunk by chunk into a spool file; then the head, which needs to know them all.
//!
//! Equal chunks, metadata, flags, sections and level give equal bytes, on any number of threads. Memory stays at the
//! chunks under way, 40 bytes a chunk, and the compressed metadata.

use super::error::{LayerError, Result, malformed};
use super::format::{self, BLOCK, Flags, Header, SectionHead};
use super::id::LayerId;
use super::pool::{Pool, Stored};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::PathBuf;

/// How a layer is written.
#[derive(Debug, Clone)]
pub struct Options {
    /// zstd's compression level.
    pub level: i32,
    /// Threads that compress; 0 counts as 1.
    pub threads: usize,
    /// Directory for the nameless file that holds the data frames until the head is known: about the layer's size.
    pub spool_dir: PathBuf,
}

impl Options {
    /// Level 3, one thread a processor, spooled in `spool_dir`.
    pub fn new(spool_dir: impl Into<PathBuf>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { level: 3, threads, spool_dir: spool_dir.into() }
    }
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
    data: Data,
}

/// The data of a layer, complete; waits for the metadata.
#[derive(Debug)]
pub struct Sealed {
    pool: Pool,
    data: Data,
}

/// The data frames so far.
#[derive(Debug)]
struct Data {
    spool: File,
    table: Vec<u8>,
    chunks: u32,
    pushed: u64,
    stored: u64,
}

impl Writer {
    /// Starts the threads and makes the spool file.
    pub fn new(options: &Options) -> Result<Self> {
        let dir = &options.spool_dir;
        let spool =
            tempfile::tempfile_in(dir).map_err(LayerError::io(format!("making a spool file in {}", dir.display())))?;
        let pool = Pool::new(options.level, options.threads)?;
        Ok(Self { pool, data: Data { spool, table: Vec::new(), chunks: 0, pushed: 0, stored: 0 } })
    }

    /// Bytes of data pushed so far: where the next chunk will start in the data space.
    pub fn data_bytes(&self) -> u64 {
        self.data.pushed
    }

    /// Adds the next chunk: 4096 bytes to 8 MiB, a multiple of 4096.
    pub fn push(&mut self, chunk: Vec<u8>) -> Result<()> {
        let length = chunk.len() as u64;
        if length == 0 || !length.is_multiple_of(BLOCK) || length > u64::from(format::MAX_FRAME) {
            return Err(malformed!("a chunk of {length} bytes"));
        }
        if self.data.table.len() >= format::MAX_CONTENT as usize {
            return Err(malformed!("more chunks than an index can hold"));
        }
        let done = self.pool.push(chunk)?;
        self.data.pushed += length;
        done.map_or(Ok(()), |stored| self.data.add(&stored))
    }

    /// Waits until all chunks are compressed.
    pub fn seal(mut self) -> Result<Sealed> {
        while let Some(stored) = self.pool.take()? {
            self.data.add(&stored)?;
        }
        Ok(Sealed { pool: self.pool, data: self.data })
    }

    /// [`Writer::seal`] and [`Sealed::finish`].
    pub fn finish<W: Write>(self, metadata: &[u8], flags: Flags, sections: &[Section], out: &mut W) -> Result<Summary> {
        self.seal()?.finish(metadata, flags, sections, out)
    }
}

impl Data {
    fn add(&mut self, stored: &Stored) -> Result<()> {
        self.spool.write_all(&stored.bytes).map_err(LayerError::io("writing the spool file"))?;
        self.stored += u64::from(stored.entry.stored_len);
        self.table.extend_from_slice(&stored.entry.encode());
        self.chunks += 1;
        Ok(())
    }

    fn summary(&self, id: LayerId, header: &Header) -> Summary {
        Summary {
            id,
            head_len: header.head_len,
            file_len: header.file_len,
            image_blocks: header.image_blocks,
            first_data_block: header.first_data_block,
            chunks: self.chunks,
            data_bytes: self.pushed,
            stored_bytes: self.stored,
        }
    }
}

impl Sealed {
    /// Bytes of data, decompressed.
    pub fn data_bytes(&self) -> u64 {
        self.data.pushed
    }

    /// A digest of all the data (BLAKE3 of the chunk table): what a name derived from the content can be made of.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.data.table).as_bytes()
    }

    /// Writes the layer to `out`: index, `metadata` (a positive multiple of 4096 bytes: its blocks are U), data.
    /// `sections` stand in the index in the order given. Flushes, but leaves syncing and naming the file to the caller.
    pub fn finish<W: Write>(
        mut self,
        metadata: &[u8],
        flags: Flags,
        sections: &[Section],
        out: &mut W,
    ) -> Result<Summary> {
        let first_data_block = blocks_of(metadata)?;
        let (frames, table) = compress_metadata(&mut self.pool, metadata)?;
        let sections = all_sections(table, std::mem::take(&mut self.data.table), sections)?;
        let content_len = content_len(&sections)?;
        let metadata_stored: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
        let head_len = format::FRAME_HEADER as u64 + u64::from(content_len) + metadata_stored;
        let header = Header {
            minor: format::MINOR,
            flags,
            head_len,
            file_len: head_len + self.data.stored,
            image_blocks: first_data_block + self.data.pushed / BLOCK,
            first_data_block,
            generation: format::WRITER_GENERATION,
            section_count: sections.len() as u32,
        };
        let frame = index_frame(&header, content_len, &sections);
        write_out(&frame, &frames, &mut self.data, out).map_err(LayerError::io("writing the layer"))?;
        Ok(self.data.summary(LayerId::of(&frame), &header))
    }
}

fn blocks_of(metadata: &[u8]) -> Result<u64> {
    let length = metadata.len() as u64;
    if length == 0 || !length.is_multiple_of(BLOCK) || length / BLOCK > format::MAX_METADATA_BLOCKS {
        return Err(malformed!("metadata of {length} bytes"));
    }
    Ok(length / BLOCK)
}

/// The metadata's frames and their table.
fn compress_metadata(pool: &mut Pool, metadata: &[u8]) -> Result<(Vec<Vec<u8>>, Vec<u8>)> {
    let (mut frames, mut table) = (Vec::new(), Vec::new());
    let mut add = |stored: Stored| {
        table.extend_from_slice(&stored.entry.encode());
        frames.push(stored.bytes);
    };
    for part in metadata.chunks(format::METADATA_FRAME as usize) {
        pool.push(part.to_vec())?.into_iter().for_each(&mut add);
    }
    while let Some(stored) = pool.take()? {
        add(stored);
    }
    Ok((frames, table))
}

/// The tables as sections, then the caller's.
fn all_sections(metadata: Vec<u8>, chunks: Vec<u8>, others: &[Section]) -> Result<Vec<Section>> {
    let mut sections = vec![
        Section { kind: format::SECTION_METADATA, must_understand: true, bytes: metadata },
        Section { kind: format::SECTION_CHUNKS, must_understand: true, bytes: chunks },
    ];
    for section in others {
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

fn write_out<W: Write>(frame: &[u8], metadata: &[Vec<u8>], data: &mut Data, out: &mut W) -> io::Result<()> {
    out.write_all(frame)?;
    metadata.iter().try_for_each(|frame| out.write_all(frame))?;
    data.spool.rewind()?;
    let copied = io::copy(&mut data.spool, out)?;
    if copied != data.stored {
        return Err(io::Error::other(format!("the spool file has {copied} bytes, not {}", data.stored)));
    }
    out.flush()
}
