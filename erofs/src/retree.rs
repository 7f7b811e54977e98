//! A whole image back into a tree.

use std::collections::HashMap;

use crate::ReadError;
use crate::format::Dirent;
use crate::inode::Inode;
use crate::read::Image;
use crate::{Attributes, FileType, Kind, Node, NodeId, Tree, TreeError};

/// How much larger than the metadata a tree may be, in bytes of what is copied into it, beside what it may have in any case.
/// Xattrs that are stored once can be used by many inodes, and a hostile image could ask for any amount of memory.
const BLOW_UP: u64 = 64;
/// What a tree may have in any case: as much as converters take for an image, so that what was written is read.
const ALLOWANCE: u64 = 1 << 30;

/// Reads a whole image into a tree, hard links kept. [`crate::write()`] of that tree gives the same image again, if the image was
/// written so.
///
/// # Errors
/// Broken metadata. It ends in bounded time and memory on any image, checked or not.
pub fn read_tree(image: &Image<'_>) -> Result<Tree, ReadError> {
    let root = image.root()?;
    if root.file_type != FileType::Directory {
        return Err(ReadError::WrongType("directory"));
    }
    let mut reader = Reader {
        image: *image,
        nodes: HashMap::new(),
        entries: image.bytes().len() as u64 / Dirent::SIZE as u64,
        bytes: image.bytes().len() as u64 * BLOW_UP + ALLOWANCE,
    };
    let mut tree = Tree::new(reader.attributes(&root)?);
    reader.nodes.insert(root.nid, Tree::ROOT);
    let mut waiting = vec![(root, Tree::ROOT)];
    while let Some((directory, id)) = waiting.pop() {
        reader.directory(&mut tree, &directory, id, &mut waiting)?;
    }
    Ok(tree)
}

struct Reader<'a> {
    image: Image<'a>,
    /// Directories, and what has several names. Whatever has one name by its own count is met once, or is twice in the tree.
    nodes: HashMap<u64, NodeId>,
    /// How many more entries there can be: no two of an honest image share their bytes.
    entries: u64,
    /// How many more bytes may be copied.
    bytes: u64,
}

impl Reader<'_> {
    fn directory(
        &mut self,
        tree: &mut Tree,
        directory: &Inode,
        id: NodeId,
        waiting: &mut Vec<(Inode, NodeId)>,
    ) -> Result<(), ReadError> {
        for entry in self.image.entries(directory)? {
            let entry = entry?;
            self.entries = self.entries.checked_sub(1).ok_or(ReadError::Corrupt("directories that share blocks"))?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            if let Some(node) = self.nodes.get(&entry.nid) {
                tree.link(id, entry.name, *node).map_err(tree_error)?;
                continue;
            }
            let inode = self.image.inode(entry.nid)?;
            let node = Node { attributes: self.attributes(&inode)?, kind: self.kind(&inode)? };
            let added = tree.add(id, entry.name, node).map_err(tree_error)?;
            if inode.nlink != 1 {
                self.nodes.insert(inode.nid, added);
            }
            if inode.file_type == FileType::Directory {
                self.nodes.insert(inode.nid, added);
                waiting.push((inode, added));
            }
        }
        Ok(())
    }

    fn attributes(&mut self, inode: &Inode) -> Result<Attributes, ReadError> {
        let Inode { mode, uid, gid, mtime, mtime_nsec, .. } = *inode;
        let mut attributes = Attributes { mode, uid, gid, mtime, mtime_nsec, ..Attributes::default() };
        for (name, value) in self.image.xattrs(inode)? {
            self.spend(name.len() + value.len())?;
            if attributes.xattrs.insert(name, value.to_vec()).is_some() {
                return Err(ReadError::Corrupt("an xattr twice"));
            }
        }
        Ok(attributes)
    }

    fn kind(&mut self, inode: &Inode) -> Result<Kind, ReadError> {
        let (own, _) = self.image.extents(inode)?;
        self.spend(usize::try_from(own.end - own.start).unwrap_or(usize::MAX))?;
        self.image.kind(inode)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ReadError> {
        let left = self.bytes.checked_sub(bytes as u64);
        self.bytes = left.ok_or(ReadError::Corrupt("more than an image of this length can hold"))?;
        Ok(())
    }
}

fn tree_error(error: TreeError) -> ReadError {
    ReadError::Corrupt(match error {
        TreeError::NotADirectory => "an entry below something that is no directory",
        TreeError::InvalidName => "name of a directory entry",
        TreeError::Exists => "a name twice",
        TreeError::LinkToDirectory => "a directory with two names",
        TreeError::Full => "too many inodes",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    #[test]
    fn attributes_that_are_stored_once_are_read_for_each_that_has_them() {
        let mut tree = Tree::new(Attributes::default());
        let xattrs: crate::RareMap<_, _> = [(b"user.large".to_vec(), vec![7; 60_000])].into_iter().collect();
        for number in 0..500 {
            let attributes = Attributes { mode: number, xattrs: xattrs.clone(), ..Attributes::default() };
            let node = Node { attributes, kind: Kind::File(Content::EMPTY) };
            tree.add(Tree::ROOT, format!("{number:03}").as_bytes(), node).unwrap();
        }
        let metadata = crate::write(&tree, 0).unwrap();
        assert!(metadata.bytes().len() < 200_000, "they are stored once");
        assert!(read_tree(&Image::new(metadata.bytes()).unwrap()).unwrap() == tree);
    }
}
