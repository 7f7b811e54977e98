//! The layer file: a compressed EROFS image that is read whole as one zstd stream, or lazily by ranges.
//!
//! * [`mod@format`]: the specification: where each byte stands, with its encoder and decoder.
//! * [`Index`]: the table in front of a layer file, validated; answers where each chunk lies.
//! * [`Writer`]: the metadata, then chunks in order, to a layer file; the same bytes on any number of threads.
//! * [`decode`], [`read_index`], [`read_head`], [`read_head_file`], [`parse_head`]: stored bytes to content, verified before
//!   they are decompressed.
//! * [`verify_file`], [`verify_object`]: every byte of a layer read again. [`walk`](fn@walk): the same for who needs the bytes.
//!
//! Invariants: no stored byte reaches the decompressor before its BLAKE3 matched the index; every number of an index is
//! checked when it is parsed, so that later arithmetic on it stays in bounds. What the metadata means is not known
//! here: it is bytes with a length that is a multiple of [`format::BLOCK`].

mod error;
pub mod format;
mod id;
mod index;
mod map;
mod parse;
mod pool;
mod read;
mod verify;
mod walk;
mod write;
mod writeback;

pub use error::LayerError;
pub use format::{ChunkEntry, Flags, WRITER_GENERATION};
pub use id::{LayerId, ParseIdError};
pub use index::{Index, Located};
pub use map::map_file;
pub(crate) use read::check_stored;
pub use read::{Head, decode, parse_head, read_head, read_head_file, read_index};
pub use verify::{Verified, verify_file, verify_object};
pub use walk::walk;
pub use write::{Front, LEVEL, Options, Section, Summary, Writer};
