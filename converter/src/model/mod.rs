//! The image specification, applied literally: an independent judge of what a conversion made.
//!
//! A tree is a plain map of paths to inodes. A layer is its tar's entries, read with the tar reader and applied one by one:
//! first whiteouts and opaque marks, which take names out of the layers below, then the other entries in order. No tree is
//! merged, nothing is packed, no EROFS is written: of the converter's own work only [`crate::tar`] is shared, so that a
//! fault in the rest is seen. Contents count by [`content`], not by where they lie. Memory: the names and attributes.
//!
//! The rules beyond the specification (docs/format.md, "What layers mean") are the converter's promises, said here a
//! second time: what an implied directory has, what a hard link to a lower file does, what a device 0:0 is.

mod apply;
pub mod content;
mod difference;
mod directory;
mod layer;
mod lead;

pub use directory::LeftOut;

use crate::error::Result;
use crate::tar::Reader;
use erofs::Attributes;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// A tree: what every name stands for.
#[derive(Debug, Clone)]
pub struct Model {
    /// By path from the root, without a slash in front; the root's is empty, and always there.
    pub names: BTreeMap<Vec<u8>, Name>,
    /// Names that share one are hard links.
    pub inodes: Vec<Inode>,
    /// Layers that were applied.
    layers: u32,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Its place in [`Model::inodes`].
    pub inode: usize,
    /// The layer whose entry it is, counted from 1; 0 for a directory that only entries below it name.
    entry: u32,
}

/// A file, directory, link or device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Mode, owner, time, extended attributes.
    pub attributes: Attributes,
    /// What it is.
    pub kind: Kind,
}

/// What an inode is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Bytes.
        size: u64,
        /// See [`content`].
        content: [u8; 32],
    },
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A character device: major, minor.
    Char(u32, u32),
    /// A block device: major, minor.
    Block(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// While a layer is applied: a hard link to this path, which had no entry in the layer yet.
    Link(Vec<u8>),
}

impl Default for Model {
    /// What an image without layers shows: an empty root.
    fn default() -> Self {
        let mut model = Self { names: BTreeMap::new(), inodes: Vec::new(), layers: 0 };
        model.set(Vec::new(), Inode { attributes: implied(), kind: Kind::Directory }, 0);
        model
    }
}

impl Model {
    /// Applies a layer: a decompressed tar.
    ///
    /// # Errors
    /// What the converter refuses too: a tar that cannot be read, or that cannot mean a tree.
    pub fn apply_tar(&mut self, tar: impl Read) -> Result<()> {
        self.apply(layer::read(&mut Reader::new(tar))?)
    }

    /// Applies a layer that is being read, up to the end of its archive.
    pub(crate) fn apply_reader<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        self.apply(layer::read(reader)?)
    }

    /// What a directory of this machine holds, and what of it is no part of any image.
    ///
    /// # Errors
    /// What the system says, by path.
    pub fn of_directory(path: &Path) -> Result<(Self, Vec<LeftOut>)> {
        directory::read(path)
    }

    /// What a name stands for.
    pub fn inode(&self, path: &[u8]) -> Option<&Inode> {
        self.names.get(path).map(|name| &self.inodes[name.inode])
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        self.inode(path).is_some_and(|inode| inode.kind == Kind::Directory)
    }

    /// Gives a name an inode of its own.
    pub(crate) fn set(&mut self, path: Vec<u8>, inode: Inode, entry: u32) -> usize {
        self.inodes.push(inode);
        let inode = self.inodes.len() - 1;
        self.names.insert(path, Name { inode, entry });
        inode
    }

    /// Gives a name an inode that is there.
    pub(crate) fn link(&mut self, path: Vec<u8>, inode: usize, entry: u32) {
        self.names.insert(path, Name { inode, entry });
    }
}

/// What a directory has that no entry speaks of.
fn implied() -> Attributes {
    Attributes { mode: 0o755, ..Attributes::default() }
}
