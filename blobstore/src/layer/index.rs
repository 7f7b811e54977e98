//! The index of a layer: which frame holds which bytes, where it is stored, and its hash.

use super::error::{LayerError, Result};
use super::format::{self, ChunkEntry, ENTRY, Flags};
use super::id::LayerId;
use super::map::map_file;
use super::parse::{self, Parsed, Position, STRIDE};
use bytes::Bytes;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A validated index. The tables stay in the bytes that it was parsed from (in memory or mapped), so that a layer of
/// 100 GB costs about 100 KB of memory of its own.
pub struct Index {
    id: LayerId,
    frame: Bytes,
    parsed: Parsed,
}

/// Where a data chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Number of the chunk, counted from 0 in file order.
    pub chunk: u32,
    /// Byte of the data space at which its content starts; the data space begins with block U of the image.
    pub data_start: u64,
    /// Byte of the layer file at which it is stored.
    pub file_offset: u64,
    /// Its lengths and hash.
    pub entry: ChunkEntry,
}

impl Index {
    /// Validates the index frame that `bytes` begin with; what follows it is not looked at.
    ///
    /// The id is whatever these bytes give: compare it with the one that was asked for, or use [`Index::parse_as`].
    pub fn parse(bytes: Bytes) -> Result<Self> {
        let frame = first_frame(bytes)?;
        let id = LayerId::of(&frame);
        let parsed = parse::parse(&frame)?;
        Ok(Self { id, frame, parsed })
    }

    /// As [`Index::parse`], of the layer `id` only: anything else is [`LayerError::Corrupt`], found before the
    /// bytes are interpreted.
    pub fn parse_as(bytes: Bytes, id: &LayerId) -> Result<Self> {
        let frame = first_frame(bytes).map_err(|error| LayerError::corrupt(format!("index of {id}: {error}")))?;
        let found = LayerId::of(&frame);
        if found != *id {
            return Err(LayerError::corrupt(format!("the index is that of {found}, not of {id}")));
        }
        let parsed = parse::parse(&frame)?;
        Ok(Self { id: found, frame, parsed })
    }

    /// The index at the start of a layer file, mapped; the file must not be changed meanwhile (see [`map_file`]).
    pub fn of_file(file: &File) -> Result<Self> {
        let mut start = [0; format::FRAME_HEADER];
        file.read_exact_at(&mut start, 0).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => LayerError::Malformed("shorter than a frame header".to_owned()),
            _ => LayerError::io("reading the start of a layer's file")(error),
        })?;
        let frame = format::index_frame_len(&start)?;
        Self::parse(map_file(file, 0..frame)?)
    }

    /// The layer's id.
    pub fn id(&self) -> LayerId {
        self.id
    }

    /// The whole index frame, header included.
    pub fn frame(&self) -> &Bytes {
        &self.frame
    }

    /// Bytes of the index frame: the metadata frames start behind them.
    pub fn frame_len(&self) -> u64 {
        self.frame.len() as u64
    }

    /// Properties of the layer.
    pub fn flags(&self) -> Flags {
        self.parsed.header.flags
    }

    /// Bytes from the file's start to the end of the metadata frames.
    pub fn head_len(&self) -> u64 {
        self.parsed.header.head_len
    }

    /// Bytes from the file's start to the end of the data frames.
    pub fn file_len(&self) -> u64 {
        self.parsed.header.file_len
    }

    /// 4 KiB blocks of the decompressed image, metadata and data.
    pub fn image_blocks(&self) -> u64 {
        self.parsed.header.image_blocks
    }

    /// 4 KiB blocks of the metadata: the data space starts at this block of the image.
    pub fn first_data_block(&self) -> u64 {
        self.parsed.header.first_data_block
    }

    /// Bytes of the metadata, decompressed.
    pub fn metadata_len(&self) -> u64 {
        self.first_data_block() * format::BLOCK
    }

    /// Bytes of the data space.
    pub fn data_len(&self) -> u64 {
        (self.image_blocks() - self.first_data_block()) * format::BLOCK
    }

    /// Generation of the writer that made the layer.
    pub fn generation(&self) -> u32 {
        self.parsed.header.generation
    }

    /// Number of data chunks.
    pub fn chunk_count(&self) -> u32 {
        // The content's bound keeps the number of 40-byte entries far below 2^32.
        (self.parsed.chunks.len() / ENTRY) as u32
    }

    /// Lengths and hash of a chunk; `None` past the last.
    pub fn chunk(&self, number: u32) -> Option<ChunkEntry> {
        let start = (number as usize).checked_mul(ENTRY)?;
        self.chunk_table().get(start..)?.first_chunk().map(ChunkEntry::decode)
    }

    /// Where a chunk lies; `None` past the last.
    pub fn chunk_at(&self, number: u32) -> Option<Located> {
        let sample = number as usize / STRIDE;
        self.walk(sample).nth(number as usize % STRIDE)
    }

    /// The chunk that holds byte `offset` of the data space; `None` past its end.
    pub fn locate(&self, offset: u64) -> Option<Located> {
        if offset >= self.data_len() {
            return None;
        }
        let sample = self.parsed.samples.partition_point(|sample| sample.data_start <= offset).checked_sub(1)?;
        self.walk(sample).find(|located| offset - located.data_start < u64::from(located.entry.data_len))
    }

    /// All data chunks in file order.
    pub fn chunks(&self) -> impl Iterator<Item = Located> + '_ {
        self.walk(0)
    }

    /// The metadata's frames in file order: byte of the file at which each is stored, with its lengths and hash.
    pub fn metadata_frames(&self) -> impl Iterator<Item = (u64, ChunkEntry)> + '_ {
        let table = self.frame.get(self.parsed.metadata.clone()).unwrap_or_default();
        let mut next = self.frame_len();
        parse::entries(table).map(move |entry| {
            let offset = next;
            next = next.saturating_add(u64::from(entry.stored_len));
            (offset, entry)
        })
    }

    /// The bytes of the section of this type; `None` where the layer has none.
    pub fn section(&self, kind: u32) -> Option<&[u8]> {
        let (_, range) = self.parsed.sections.iter().find(|(found, _)| *found == kind)?;
        self.frame.get(range.clone())
    }

    fn chunk_table(&self) -> &[u8] {
        self.frame.get(self.parsed.chunks.clone()).unwrap_or_default()
    }

    /// The chunks from the one that `sample` remembers on. Saturating: a mapped table may have changed since it was
    /// validated, and then the answers are wrong but finite.
    fn walk(&self, sample: usize) -> impl Iterator<Item = Located> + '_ {
        let first = sample.saturating_mul(STRIDE);
        let table = first.checked_mul(ENTRY).and_then(|start| self.chunk_table().get(start..)).unwrap_or_default();
        let mut at = self.parsed.samples.get(sample).copied().unwrap_or(Position { data_start: 0, file_offset: 0 });
        parse::entries(table).zip(first as u32..).map(move |(entry, chunk)| {
            let located = Located { chunk, data_start: at.data_start, file_offset: at.file_offset, entry };
            at.data_start = at.data_start.saturating_add(u64::from(entry.data_len));
            at.file_offset = at.file_offset.saturating_add(u64::from(entry.stored_len));
            located
        })
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("id", &self.id).field("header", &self.parsed.header).finish_non_exhaustive()
    }
}

fn first_frame(bytes: Bytes) -> Result<Bytes> {
    let length = format::index_frame_len(&bytes)?;
    match usize::try_from(length) {
        Ok(length) if length <= bytes.len() => Ok(bytes.slice(..length)),
        _ => Err(LayerError::Malformed(format!("{} bytes of an index frame of {length}", bytes.len()))),
    }
}
