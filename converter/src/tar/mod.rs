//! A tar stream as a sequence of plain entries: one form for every dialect.
//!
//! V7, ustar, GNU (long names, base-256 numbers, sparse type `S`, directories of incremental archives), star, PAX (records,
//! sparse 0.0, 0.1 and 1.0). What is not understood is refused with the entry's name; nothing is passed over in silence,
//! except what belongs to no entry (a volume's label), and records that describe nothing a file system shows. Records that no
//! unpacker of images follows, though they do, are told of ([`Reader::passed_over`]). A PAX
//! global header that would change what entries show is refused: POSIX has it apply to all of them, and no unpacker
//! of images lets it. As in Go's `archive/tar`, links, directories and devices have no data whatever their size field
//! says.
//!
//! `reader` goes through the stream; `header`, `pax` and `sparse` understand what stands in it, `number` and `path` the fields.
//! This module knows the tar format. It does not know what a whiteout is, and makes no directories.

mod header;
mod number;
mod path;
mod pax;
mod reader;
mod sparse;

pub use path::{NAME_MAX, TreePath, WHITEOUT};
pub use reader::Reader;
pub use sparse::Extent;

use erofs::Attributes;

/// One entry.
#[derive(Debug)]
pub struct Entry {
    /// Where it stands in the image.
    pub path: TreePath,
    /// What it is.
    pub kind: Kind,
    /// Mode, owner, time and all extended attributes as written.
    pub attributes: Attributes,
}

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file; its stored bytes come from [`Reader::read`].
    File(Shape),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// Another name for the entry at this path.
    HardLink(TreePath),
    /// A character device: major, minor.
    Char(u32, u32),
    /// A block device: major, minor.
    Block(u32, u32),
    /// A named pipe.
    Fifo,
}

/// How a file's stored bytes lie in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes, holes included.
    pub size: u64,
    /// The stored pieces of a sparse file, in order; `None`: all of it is stored.
    pub map: Option<Vec<Extent>>,
}

#[cfg(test)]
mod tests;
