//! The EROFS on-disk format, as far as Lamina uses it: a writer, a reader and a checker. Bytes in, bytes out: this crate
//! opens no file, starts no thread, and knows nothing of layers, chunks or stores.
//!
//! An image is two address spaces of 4 KiB blocks. *Metadata* (superblock, device slot, inodes, directories, symlinks,
//! extended attributes) is `first_data_block` blocks long and is all that this crate makes and reads. *Data* (the contents
//! of regular files) follows it in the flat image, and is described by the one device slot of the superblock block, so
//! that a kernel can be told to take it from another file.
//!
//! - [`Tree`] is what a writer is given; [`write()`] makes [`Metadata`] of it. Equal trees give equal bytes.
//! - [`Image`] reads metadata bytes. It is safe on any bytes: it answers with errors and ends in bounded time.
//! - [`check()`] is the gate of metadata from outside: what it accepts may be given to the kernel.
//! - [`attach_device`] turns the stored (flat) form into the form that is mounted with `device=`.
//! - [`dump()`] lists an image as text; [`Files`] says whose the bytes of the data space are.
//!
//! The format itself is written down in [`mod@format`].

mod check;
mod content;
mod device;
mod directory;
mod dump;
mod emit;
mod error;
mod files;
pub mod format;
mod inode;
mod names;
mod nodes;
mod plan;
mod rare;
mod read;
mod retree;
mod tree;
mod xattr;

pub use check::{CheckError, Checked, Expect, check};
pub use content::{Content, Piece, SparseLayout};
pub use device::{attach_device, checksum};
pub use dump::dump;
pub use emit::{Layout, Metadata, set_uuid, write};
pub use error::ReadError;
pub use files::Files;
pub use inode::Inode;
pub use names::Name;
pub use plan::{NodeProblem, WriteError};
pub use rare::RareMap;
pub use read::{Entries, Entry, Extent, Image, Xattrs};
pub use retree::read_tree;
pub use tree::{Attributes, FileType, Kind, Node, NodeId, Tree, TreeError, Visit, Walk};
pub use xattr::XattrProblem;

/// The block size of every image, in bytes.
pub const BLOCK: usize = 4096;

/// [`BLOCK`] in the type of addresses.
pub const BLOCK_U64: u64 = BLOCK as u64;
