//! The tree that a writer is given: nodes in an arena, names in the directories that hold them.
//!
//! Invariants kept here: names are valid and unique, and a directory has exactly one, so a tree is a tree. Other nodes can
//! be added before their names are known; those that never get one are in no walk, and not written. Whether EROFS can hold
//! the attributes of a node is found out by [`crate::write()`], which knows the path.

use std::collections::{HashMap, btree_map};

use crate::{Content, RareMap};

/// The longest name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// A node of one tree. It means nothing in another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// The node's place in the arena: nodes are numbered in the order they were added, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What every node has, whatever its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions, set-id and sticky bits: the lower 12 bits of `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime: i64,
    /// Its nanoseconds, less than 10^9.
    pub mtime_nsec: u32,
    /// Extended attributes by full name, such as `user.x`.
    pub xattrs: RareMap<Vec<u8>, Vec<u8>>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory; its entries are in the tree.
    Directory,
    /// A regular file.
    File(Content),
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// A character device: major, minor. 0, 0 is overlayfs's whiteout.
    Char(u32, u32),
    /// A block device: major, minor.
    Block(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A kind without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Character device.
    Char,
    /// Block device.
    Block,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileType {
    const ALL: [(FileType, u8, u16); 7] = [
        (FileType::File, 1, 0o10),
        (FileType::Directory, 2, 0o04),
        (FileType::Char, 3, 0o02),
        (FileType::Block, 4, 0o06),
        (FileType::Fifo, 5, 0o01),
        (FileType::Socket, 6, 0o14),
        (FileType::Symlink, 7, 0o12),
    ];

    /// The number in directory entries.
    pub(crate) fn dirent(self) -> u8 {
        Self::ALL[self as usize].1
    }

    /// The bits of `st_mode` that tell file types apart.
    pub fn mode_bits(self) -> u16 {
        Self::ALL[self as usize].2 << 12
    }

    pub(crate) fn from_dirent(number: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, dirent, _)| *dirent == number).map(|(file_type, ..)| *file_type)
    }

    pub(crate) fn from_mode(mode: u16) -> Option<Self> {
        Self::ALL.iter().find(|(.., bits)| *bits == mode >> 12).map(|(file_type, ..)| *file_type)
    }
}

impl Kind {
    /// The kind's file type.
    pub fn file_type(&self) -> FileType {
        match self {
            Kind::Directory => FileType::Directory,
            Kind::File(_) => FileType::File,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Char(..) => FileType::Char,
            Kind::Block(..) => FileType::Block,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
        }
    }
}

/// A node: an inode, once written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Mode, owner, time, xattrs.
    pub attributes: Attributes,
    /// What it is.
    pub kind: Kind,
}

/// Why a name was not taken into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The parent is no directory.
    #[error("the parent is not a directory")]
    NotADirectory,
    /// Empty, `.`, `..`, longer than 255 bytes, or with `/` or NUL in it.
    #[error("not a valid file name")]
    InvalidName,
    /// The directory has the name already.
    #[error("the name exists already")]
    Exists,
    /// A directory would have two names.
    #[error("hard link to a directory")]
    LinkToDirectory,
    /// More than 2^32 nodes.
    #[error("too many nodes")]
    Full,
}

/// A whole file tree. Two trees are equal if they show the same, however they were put together: same paths, same nodes
/// there, same hard links.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Slot>,
}

#[derive(Clone, Debug)]
struct Slot {
    node: Node,
    children: RareMap<Box<[u8]>, NodeId>,
}

impl Tree {
    /// The root directory's node.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree of a root directory only.
    pub fn new(root: Attributes) -> Self {
        let node = Node { attributes: root, kind: Kind::Directory };
        Tree { nodes: vec![Slot { node, children: RareMap::new() }] }
    }

    /// Adds a new node under a name.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn add(&mut self, parent: NodeId, name: &[u8], node: Node) -> Result<NodeId, TreeError> {
        let id = self.next_id()?;
        self.insert(parent, name.into(), id)?;
        self.nodes.push(Slot { node, children: RareMap::new() });
        Ok(id)
    }

    /// Adds a new node that is no directory and has no name yet: [`Tree::link`] and [`Tree::link_owned`] give it one.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn add_unnamed(&mut self, node: Node) -> Result<NodeId, TreeError> {
        if node.kind == Kind::Directory {
            return Err(TreeError::LinkToDirectory);
        }
        let id = self.next_id()?;
        self.nodes.push(Slot { node, children: RareMap::new() });
        Ok(id)
    }

    fn next_id(&self) -> Result<NodeId, TreeError> {
        u32::try_from(self.nodes.len()).map(NodeId).map_err(|_| TreeError::Full)
    }

    /// Adds a name (a hard link, if there was one before) for a node that is not a directory.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn link(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<(), TreeError> {
        self.link_owned(parent, name.into(), node)
    }

    /// As [`Tree::link`], of a name that the caller has no more use for.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn link_owned(&mut self, parent: NodeId, name: Box<[u8]>, node: NodeId) -> Result<(), TreeError> {
        if self.is_directory(node) {
            return Err(TreeError::LinkToDirectory);
        }
        self.insert(parent, name, node)
    }

    fn insert(&mut self, parent: NodeId, name: Box<[u8]>, id: NodeId) -> Result<(), TreeError> {
        if !self.is_directory(parent) {
            return Err(TreeError::NotADirectory);
        }
        if !valid_name(&name) {
            return Err(TreeError::InvalidName);
        }
        let children = &mut self.nodes[parent.index()].children;
        if children.contains_key(&name) {
            return Err(TreeError::Exists);
        }
        children.insert(name, id);
        Ok(())
    }

    fn is_directory(&self, id: NodeId) -> bool {
        self.node(id).kind == Kind::Directory
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()].node
    }

    /// A node, to be changed. A directory that is made something else loses its children.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()].node
    }

    /// How many nodes were ever added, the root included: the bound of [`NodeId::index`].
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is always a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The node under a name of a directory.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        if !self.is_directory(parent) {
            return None;
        }
        self.nodes[parent.index()].children.get(name).copied()
    }

    /// The entries of a directory in byte order of their names; of anything else none.
    pub fn children(&self, id: NodeId) -> impl DoubleEndedIterator<Item = (&[u8], NodeId)> {
        let children = self.is_directory(id).then(|| self.nodes[id.index()].children.iter());
        children.into_iter().flatten().map(|(name, child)| (&**name, *child))
    }

    /// Every name in the tree, a directory before what is in it, siblings in byte order; the root first.
    pub fn walk(&self) -> Walk<'_> {
        Walk { tree: self, path: Vec::new(), open: Vec::new(), next: Some(Tree::ROOT) }
    }
}

pub(crate) fn valid_name(name: &[u8]) -> bool {
    let dots = name == b"." || name == b"..";
    (1..=MAX_NAME).contains(&name.len()) && !dots && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.walk(), other.walk());
        let mut pairs = HashMap::new();
        let mut backwards = HashMap::new();
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (Some(our), Some(their)) => {
                    let same = our.path == their.path && self.node(our.node) == other.node(their.node);
                    let linked = *pairs.entry(our.node).or_insert(their.node) == their.node
                        && *backwards.entry(their.node).or_insert(our.node) == our.node;
                    if !same || !linked {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }
}

impl Eq for Tree {}

/// A name met on a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The path from the root, without a leading slash; that of the root is empty.
    pub path: Vec<u8>,
    /// The node there. One that has several names is met under each.
    pub node: NodeId,
}

type Names<'a> = btree_map::Iter<'a, Box<[u8]>, NodeId>;

/// See [`Tree::walk`].
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    tree: &'a Tree,
    path: Vec<u8>,
    /// The directories that are being walked: what is left of each, and how long its path is.
    open: Vec<(Names<'a>, usize)>,
    next: Option<NodeId>,
}

impl Iterator for Walk<'_> {
    type Item = Visit;

    fn next(&mut self) -> Option<Visit> {
        let node = match self.next.take() {
            Some(root) => root,
            None => self.step()?,
        };
        if self.tree.is_directory(node) {
            self.open.push((self.tree.nodes[node.index()].children.iter(), self.path.len()));
        }
        Some(Visit { path: self.path.clone(), node })
    }
}

impl Walk<'_> {
    /// Moves the path to the next name.
    fn step(&mut self) -> Option<NodeId> {
        loop {
            let (entries, base) = self.open.last_mut()?;
            self.path.truncate(*base);
            if let Some((name, node)) = entries.next() {
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(name);
                return Some(*node);
            }
            self.open.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u16) -> Node {
        Node { attributes: Attributes { mode, ..Attributes::default() }, kind: Kind::File(Content::EMPTY) }
    }

    fn directory() -> Node {
        Node { attributes: Attributes::default(), kind: Kind::Directory }
    }

    #[test]
    fn a_walk_meets_every_name_in_byte_order() {
        let mut tree = Tree::new(Attributes::default());
        let b = tree.add(Tree::ROOT, b"b", directory()).unwrap();
        let f = tree.add(b, b"f", file(1)).unwrap();
        tree.link(Tree::ROOT, b"a", f).unwrap();
        tree.add(b, b"e", directory()).unwrap();
        tree.add(Tree::ROOT, b"c", file(2)).unwrap();
        let paths: Vec<_> = tree.walk().map(|visit| String::from_utf8(visit.path).unwrap()).collect();
        assert_eq!(paths, ["", "a", "b", "b/e", "b/f", "c"]);
    }

    #[test]
    fn bad_names_and_links_are_refused() {
        let mut tree = Tree::new(Attributes::default());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert_eq!(tree.add(Tree::ROOT, name, file(0)), Err(TreeError::InvalidName));
        }
        let f = tree.add(Tree::ROOT, &[b'x'; 255], file(0)).unwrap();
        assert_eq!(tree.add(f, b"y", file(0)), Err(TreeError::NotADirectory));
        assert_eq!(tree.link(Tree::ROOT, &[b'x'; 255], f), Err(TreeError::Exists));
        assert_eq!(tree.link(Tree::ROOT, b"r", Tree::ROOT), Err(TreeError::LinkToDirectory));
        assert_eq!(tree.len(), 2);
    }

    #[test]
    fn equality_sees_hard_links_and_not_the_order_of_adding() {
        let build = |names: [&[u8]; 2], linked: bool| {
            let mut tree = Tree::new(Attributes::default());
            let f = tree.add(Tree::ROOT, names[0], file(1)).unwrap();
            match linked {
                true => tree.link(Tree::ROOT, names[1], f).unwrap(),
                false => drop(tree.add(Tree::ROOT, names[1], file(1)).unwrap()),
            }
            tree
        };
        assert_eq!(build([b"a", b"b"], true), build([b"b", b"a"], true));
        assert_ne!(build([b"a", b"b"], true), build([b"a", b"b"], false));
        assert_ne!(build([b"a", b"b"], false), build([b"a", b"b"], true));
        assert_ne!(build([b"a", b"b"], false), build([b"a", b"c"], false));
    }
}
