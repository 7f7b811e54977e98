//! Specification of the layer file, with the encoders and decoders of its fixed parts.
//!
//! ```text
//! layer = index frame ++ zstd frames: metadata ++ zstd frames: data, one per chunk
//!         \_______________ head ____________/
//! ```
//!
//! All integers are little endian. Decompressed as a plain zstd stream, a layer is metadata ++ data: an EROFS image.
//! The metadata starts right behind the index frame, the data right behind the metadata. Behind the last data frame
//! further skippable frames may stand; `file length` does not count them and readers ignore them.
//!
//! **The layer's id is the BLAKE3 of the whole index frame**, its 8-byte frame header included.
//!
//! # Index frame
//!
//! A zstd skippable frame (RFC 8878, 3.1.2): u32 [`SKIPPABLE_MAGIC`], u32 content length (at most [`MAX_CONTENT`]),
//! then the content:
//!
//! ```text
//!  0  8   magic "LAMINAIX"
//!  8  u16 major = 1                 10  u16 minor = 0
//! 12  u32 flags                     1 SELF_CONTAINED, 2 ROOT_OPAQUE, 4 NOT_PLAIN
//! 16  u64 head length               bytes from the file's start to the end of the metadata frames
//! 24  u64 file length               bytes from the file's start to the end of the data frames
//! 32  u64 image blocks              4 KiB blocks of the decompressed image: first data block + data blocks
//! 40  u64 first data block (U)      4 KiB blocks of the metadata, 1 to MAX_METADATA_BLOCKS
//! 48  u32 writer generation         tree rules, cutter and zstd version that made the bytes; readers ignore it
//! 52  u32 section count             at most MAX_SECTIONS
//! 56  section table                 24 bytes each
//! ```
//!
//! A section table entry is u32 type, u32 flags (1 = must be understood), u64 offset from the start of the content,
//! u64 length. The sections' bytes follow the table in its order, each at the next multiple of 8 behind the one before,
//! zeros between; the content ends with the last section. No type stands twice.
//!
//! | type | must | section |
//! |---|---|---|
//! | 1 | yes | metadata frame table |
//! | 2 | yes | chunk table |
//! | 3 | no | assumes: JSON, what the layer took from the tree below it |
//! | 16, 17, 18, 19, 20 | | reserved: chunks that lie in other layers, ciphers, dictionaries, verity trees, profile |
//!
//! Both tables are arrays of 40-byte entries, one a frame, in file order: u32 data length (decompressed), u32 stored
//! length (compressed), 32 bytes BLAKE3 of the stored bytes. Offsets are sums of the lengths before.
//!
//! # Rules
//!
//! * Unknown major, flag, section flag, or type of a section that must be understood: refused as unsupported. A higher
//!   minor and other unknown sections are accepted.
//! * A frame holds 1 to [`MAX_FRAME`] bytes of content, its header states the content's size, and it has neither
//!   checksum nor dictionary id. Its stored length is at most [`MAX_STORED`].
//! * Metadata frames hold [`METADATA_FRAME`] bytes each, the last one what is left. Their sum is U * 4096.
//! * A data chunk is a multiple of 4096 bytes; their sum is (image blocks - U) * 4096. There may be none.
//! * index frame + stored lengths of the metadata = head length; head length + those of the data = file length.

use super::error::{LayerError, Result, malformed};

/// Magic of the skippable frame that holds the index: one of the sixteen that zstd leaves to applications.
pub const SKIPPABLE_MAGIC: u32 = 0x184D_2A5D;
/// Bytes of a skippable frame's header.
pub const FRAME_HEADER: usize = 8;
/// First bytes of the index's content.
pub const MAGIC: [u8; 8] = *b"LAMINAIX";
/// Version that readers must know.
pub const MAJOR: u16 = 1;
/// Version that readers may ignore.
pub const MINOR: u16 = 0;
/// Tree rules, cutter and zstd version of this build's writer; other bytes for the same input mean another number.
pub const WRITER_GENERATION: u32 = 4;
/// Bytes of the content in front of the section table.
pub const HEADER: usize = 56;
/// Bytes of a section table entry.
pub const SECTION: usize = 24;
/// Bytes of a frame table entry.
pub const ENTRY: usize = 40;
/// Block of the decompressed image, in bytes.
pub const BLOCK: u64 = 4096;
/// Most content of one frame, in bytes: bounds what a reader allocates for a chunk.
pub const MAX_FRAME: u32 = 8 << 20;
/// Most stored bytes of one frame: zstd's own bound for incompressible content of [`MAX_FRAME`] bytes.
pub const MAX_STORED: u32 = MAX_FRAME + (MAX_FRAME >> 8);
/// Content of each metadata frame but the last, in bytes.
pub const METADATA_FRAME: u32 = 4 << 20;
/// Most metadata, in blocks (4 GiB, some thirty million files): bounds what a head can make a reader allocate.
pub const MAX_METADATA_BLOCKS: u64 = 1 << 20;
/// Most content of the index frame, in bytes.
pub const MAX_CONTENT: u32 = 1 << 30;
/// Most sections.
pub const MAX_SECTIONS: u32 = 256;
/// Bytes from a layer's start that tell the length of its index and its head.
pub const PROBE: usize = FRAME_HEADER + HEADER;

/// Type of the section that holds the metadata frame table.
pub const SECTION_METADATA: u32 = 1;
/// Type of the section that holds the chunk table.
pub const SECTION_CHUNKS: u32 = 2;
/// Type of the section that lists what the layer took from below, as JSON.
pub const SECTION_ASSUMES: u32 = 3;
/// Section flag: a reader that does not know the type refuses the layer.
pub const MUST_UNDERSTAND: u32 = 1;

const _: () = assert!(HEADER.is_multiple_of(8) && SECTION.is_multiple_of(8) && ENTRY.is_multiple_of(8));

/// Properties of a layer as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// Nothing was taken from a tree below: the layer means the same over any other.
    pub const SELF_CONTAINED: Self = Self(1);
    /// The layer's root hides everything below it.
    pub const ROOT_OPAQUE: Self = Self(2);
    /// The file cannot be decompressed alone.
    pub const NOT_PLAIN: Self = Self(4);

    const KNOWN: u32 = 7;

    /// No flags.
    pub const fn empty() -> Self {
        Self(0)
    }

    /// The flags of a number; [`LayerError::Unsupported`] where it has bits that are not known.
    pub fn from_bits(bits: u32) -> Result<Self> {
        match bits & !Self::KNOWN {
            0 => Ok(Self(bits)),
            unknown => Err(LayerError::Unsupported(format!("index flags {unknown:#x}"))),
        }
    }

    /// The number that stands in the file.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// One zstd frame of a layer: a data chunk or a part of the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Bytes of its content, decompressed.
    pub data_len: u32,
    /// Bytes that it takes in the file.
    pub stored_len: u32,
    /// BLAKE3 of those.
    pub hash: [u8; 32],
}

impl ChunkEntry {
    /// The entry as it stands in a table.
    pub fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[0..4].copy_from_slice(&self.data_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[8..].copy_from_slice(&self.hash);
        bytes
    }

    /// The entry in these bytes; any bytes are one.
    pub fn decode(bytes: &[u8; ENTRY]) -> Self {
        Self { data_len: u32_at(bytes, 0), stored_len: u32_at(bytes, 4), hash: array_at(bytes, 8) }
    }
}

/// The content's fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) minor: u16,
    pub(super) flags: Flags,
    pub(super) head_len: u64,
    pub(super) file_len: u64,
    pub(super) image_blocks: u64,
    pub(super) first_data_block: u64,
    pub(super) generation: u32,
    pub(super) section_count: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&MAJOR.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.minor.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.head_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.file_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.image_blocks.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first_data_block.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.generation.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.section_count.to_le_bytes());
        bytes
    }

    /// Refuses a wrong magic, an unknown major and unknown flags; the numbers are the caller's to check.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Self> {
        if bytes[0..8] != MAGIC {
            return Err(malformed!("the skippable frame in front holds no index"));
        }
        let major = u16::from_le_bytes(array_at(bytes, 8));
        if major != MAJOR {
            return Err(LayerError::Unsupported(format!("index version {major}; this build knows {MAJOR}")));
        }
        Ok(Self {
            minor: u16::from_le_bytes(array_at(bytes, 10)),
            flags: Flags::from_bits(u32_at(bytes, 12))?,
            head_len: u64_at(bytes, 16),
            file_len: u64_at(bytes, 24),
            image_blocks: u64_at(bytes, 32),
            first_data_block: u64_at(bytes, 40),
            generation: u32_at(bytes, 48),
            section_count: u32_at(bytes, 52),
        })
    }
}

/// An entry of the section table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SectionHead {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl SectionHead {
    pub(super) fn encode(&self) -> [u8; SECTION] {
        let mut bytes = [0; SECTION];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; SECTION]) -> Self {
        Self { kind: u32_at(bytes, 0), flags: u32_at(bytes, 4), offset: u64_at(bytes, 8), length: u64_at(bytes, 16) }
    }
}

/// The header of the index frame whose content has `content_len` bytes.
pub(super) fn frame_header(content_len: u32) -> [u8; FRAME_HEADER] {
    let mut bytes = [0; FRAME_HEADER];
    bytes[0..4].copy_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&content_len.to_le_bytes());
    bytes
}

/// Bytes of the whole index frame, header included, of a layer that begins with `start` (8 bytes or more).
pub fn index_frame_len(start: &[u8]) -> Result<u64> {
    let header: &[u8; FRAME_HEADER] = start.first_chunk().ok_or_else(|| malformed!("shorter than a frame header"))?;
    if u32_at(header, 0) != SKIPPABLE_MAGIC {
        return Err(malformed!("it does not begin with an index frame"));
    }
    match u32_at(header, 4) {
        short if (short as usize) < HEADER => Err(malformed!("an index of {short} bytes")),
        long if long > MAX_CONTENT => Err(malformed!("an index of {long} bytes; {MAX_CONTENT} at most")),
        length => Ok(FRAME_HEADER as u64 + u64::from(length)),
    }
}

/// `length` rounded up to the alignment of sections.
pub(super) const fn align(length: u64) -> u64 {
    length.next_multiple_of(8)
}

// The callers' offsets are constants within arrays of constant size.
fn array_at<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u32_at<const M: usize>(bytes: &[u8; M], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at<const M: usize>(bytes: &[u8; M], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}
