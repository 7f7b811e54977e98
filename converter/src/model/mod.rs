//! The image specification, applied literally: an independent judge of what a conversion made.
//!
//! A tree is paths and the inodes that stand at them. A layer is its tar's entries, read with the tar reader and applied one
//! by one: first whiteouts and opaque marks, which take names out of the layers below, then the other entries in order. No
//! tree is merged, nothing is packed, no EROFS is written: of the converter's own work only [`crate::tar`] and
//! [`crate::limits`] are shared, so that a fault in the rest is seen. Contents count by [`content`], not by where they lie.
//! Memory: names and attributes, and some 150 bytes for each name.
//!
//! The rules beyond the specification (docs/format.md, "What layers mean") are the converter's promises, said here a
//! second time: what an implied directory has, what a hard link to a lower file does, what a device 0:0 is, which
//! directories marks alone make where they are kept.

mod apply;
pub mod content;
mod difference;
mod directory;
mod layer;
mod lead;
mod links;
mod marks;
mod paths;
#[cfg(test)]
mod tests;

pub use directory::LeftOut;
pub(crate) use paths::{InodeId, PathId};

use crate::error::Result;
use crate::tar::Reader;
use erofs::Attributes;
use paths::{Name, Paths};
use std::io::Read;
use std::path::Path;

/// A tree: what every name stands for. The root is always there.
#[derive(Debug, Clone)]
pub struct Model {
    paths: Paths,
    /// Names that share one are hard links.
    inodes: Vec<Inode>,
    /// Layers that were applied.
    layers: u32,
    /// See [`Model::keeping_marks`].
    keeps_marks: bool,
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
    /// While a layer is applied: a hard link to a path that had no entry in the layer yet.
    Link,
}

impl Default for Model {
    /// What an image without layers shows: an empty root.
    fn default() -> Self {
        let mut model = Self { paths: Paths::default(), inodes: Vec::new(), layers: 0, keeps_marks: false };
        model.set(PathId::ROOT, implied_directory(), 0);
        model
    }
}

impl Model {
    /// For one layer that will be stacked on something that is not known: its marks stay, and so do the directories in which
    /// they are.
    pub(crate) fn keeping_marks() -> Self {
        Self { keeps_marks: true, ..Self::default() }
    }

    /// Applies a layer: a decompressed tar.
    ///
    /// # Errors
    /// What the converter refuses too: a tar that cannot be read, or that cannot mean a tree.
    pub fn apply_tar(&mut self, tar: impl Read) -> Result<()> {
        self.apply_reader(&mut Reader::new(tar))
    }

    /// Applies a layer that is being read, up to the end of its archive.
    pub(crate) fn apply_reader<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        let items = layer::read(reader, &mut self.paths)?;
        self.apply(items)
    }

    /// What a directory of this machine holds, and what of it is no part of any image.
    ///
    /// # Errors
    /// What the system says, by path.
    pub fn of_directory(path: &Path) -> Result<(Self, Vec<LeftOut>)> {
        directory::read(path)
    }

    /// The path of a name in a directory, at which nothing may stand.
    pub(crate) fn child(&mut self, directory: PathId, name: &[u8]) -> PathId {
        self.paths.child(directory, name)
    }

    /// What stands at a path from the root, without a slash in front.
    pub fn inode(&self, path: &[u8]) -> Option<&Inode> {
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let name = self.paths.get(names.try_fold(PathId::ROOT, |at, name| self.paths.find(at, name))?)?;
        Some(self.at(name.inode))
    }

    fn at(&self, inode: InodeId) -> &Inode {
        &self.inodes[inode.0 as usize]
    }

    fn kind(&self, path: PathId) -> Option<&Kind> {
        self.paths.get(path).map(|name| &self.at(name.inode).kind)
    }

    fn is_directory(&self, path: PathId) -> bool {
        matches!(self.kind(path), Some(Kind::Directory))
    }

    /// An inode more, without a name.
    fn add(&mut self, inode: Inode) -> InodeId {
        self.inodes.push(inode);
        // Fits: see `limits::ENTRIES`.
        InodeId((self.inodes.len() - 1) as u32)
    }

    /// Gives a path an inode of its own; above it stand directories.
    pub(crate) fn set(&mut self, path: PathId, inode: Inode, entry: u32) -> InodeId {
        let inode = self.add(inode);
        self.link(path, inode, entry);
        inode
    }

    /// Gives a path an inode that is there.
    pub(crate) fn link(&mut self, path: PathId, inode: InodeId, entry: u32) {
        self.paths.set(path, Name { inode, entry });
    }
}

/// A directory that no entry speaks of, as it is where there is none below.
fn implied_directory() -> Inode {
    Inode { attributes: Attributes { mode: 0o755, ..Attributes::default() }, kind: Kind::Directory }
}
