//! The tree that a writer is given: nodes in an arena, names in the directories that hold them. Beside its nodes
//! (`nodes.rs`) it takes, for each name, its bytes and some ten more.
//!
//! Invariants kept here: names are valid and unique, and a directory has exactly one, so a tree is a tree. Other nodes can
//! be added before their names are known; those that never get one are in no walk, and not written. Whether EROFS can hold
//! the attributes of a node is found out by [`crate::write()`], which knows the path.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::names::{Name, Names};
use crate::nodes::Nodes;
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
    nodes: Nodes,
    names: Names,
    /// What is in each directory, in byte order of the names. A directory knows its place here.
    directories: Vec<Vec<Child>>,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    name: Name,
    node: NodeId,
}

impl Tree {
    /// The root directory's node.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree of a root directory only.
    pub fn new(root: Attributes) -> Self {
        let mut tree = Tree { nodes: Nodes::default(), names: Names::default(), directories: Vec::new() };
        tree.push(Node { attributes: root, kind: Kind::Directory });
        tree
    }

    /// Adds a new node under a name. Names of a directory are best added in byte order: others take the longer the more
    /// there are.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn add(&mut self, parent: NodeId, name: &[u8], node: Node) -> Result<NodeId, TreeError> {
        let name = self.keep(name)?;
        self.add_kept(parent, name, node)
    }

    /// As [`Tree::add`], under a name that the tree keeps already.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn add_kept(&mut self, parent: NodeId, name: Name, node: Node) -> Result<NodeId, TreeError> {
        let id = self.next_id()?;
        self.insert(parent, name, id)?;
        self.push(node);
        Ok(id)
    }

    /// Adds a new node that has no name yet. [`Tree::link`] and [`Tree::link_kept`] give it one, and [`Tree::change`] does,
    /// which alone names a directory.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn add_unnamed(&mut self, node: Node) -> Result<NodeId, TreeError> {
        let id = self.next_id()?;
        self.push(node);
        Ok(id)
    }

    fn next_id(&self) -> Result<NodeId, TreeError> {
        u32::try_from(self.nodes.len()).map(NodeId).map_err(|_| TreeError::Full)
    }

    fn push(&mut self, node: Node) {
        if node.kind == Kind::Directory {
            self.directories.push(Vec::new());
        }
        self.nodes.push(node, self.directories.len() as u64 - 1);
    }

    /// Adds a name (a hard link, if there was one before) for a node that is not a directory.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn link(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<(), TreeError> {
        let name = self.keep(name)?;
        self.link_kept(parent, name, node)
    }

    /// As [`Tree::link`], of a name that the tree keeps already.
    ///
    /// # Errors
    /// See [`TreeError`]; the tree is unchanged then.
    pub fn link_kept(&mut self, parent: NodeId, name: Name, node: NodeId) -> Result<(), TreeError> {
        if self.is_directory(node) {
            return Err(TreeError::LinkToDirectory);
        }
        self.insert(parent, name, node)
    }

    /// Keeps a name for [`Tree::add_kept`] and [`Tree::link_kept`]. A name that is kept is no name of anything yet.
    ///
    /// # Errors
    /// It is no valid name, or one too many.
    pub fn keep(&mut self, name: &[u8]) -> Result<Name, TreeError> {
        if !valid_name(name) {
            return Err(TreeError::InvalidName);
        }
        self.names.keep(name).ok_or(TreeError::Full)
    }

    fn insert(&mut self, parent: NodeId, name: Name, node: NodeId) -> Result<(), TreeError> {
        let place = self.nodes.directory(parent.index()).ok_or(TreeError::NotADirectory)?;
        let bytes = self.names.get(name);
        let children = &mut self.directories[place];
        let last = children.last().map(|last| self.names.get(last.name));
        match last.is_none_or(|last| last < bytes) {
            true => children.push(Child { name, node }),
            false => match children.binary_search_by_key(&bytes, |child| self.names.get(child.name)) {
                Ok(_) => return Err(TreeError::Exists),
                Err(at) => children.insert(at, Child { name, node }),
            },
        }
        Ok(())
    }

    /// Changes many names of a directory at once: `changes` are in byte order, each once; a name without a node goes, one
    /// that is there gets another node. A directory among those has no name yet.
    ///
    /// # Errors
    /// See [`TreeError`]; the directory is unchanged then.
    pub fn change<'n>(
        &mut self,
        directory: NodeId,
        changes: impl Iterator<Item = (&'n [u8], Option<NodeId>)>,
    ) -> Result<(), TreeError> {
        let Some(place) = self.nodes.directory(directory.index()) else { return Err(TreeError::NotADirectory) };
        let mut kept = Vec::new();
        for (bytes, node) in changes {
            kept.push((bytes, node.map(|node| Ok((self.keep(bytes)?, node))).transpose()?));
        }
        let before = std::mem::take(&mut self.directories[place]);
        let mut after = Vec::with_capacity(before.len() + kept.len());
        let mut before = before.into_iter().peekable();
        for (bytes, change) in kept {
            while let Some(child) = before.next_if(|child| self.names.get(child.name) < bytes) {
                after.push(child);
            }
            before.next_if(|child| self.names.get(child.name) == bytes);
            after.extend(change.map(|(name, node)| Child { name, node }));
        }
        after.extend(before);
        after.shrink_to_fit();
        self.directories[place] = after;
        Ok(())
    }

    /// Whether a node is a directory.
    pub fn is_directory(&self, id: NodeId) -> bool {
        self.nodes.directory(id.index()).is_some()
    }

    /// A node. What of it is a list is copied.
    pub fn node(&self, id: NodeId) -> Node {
        Node { attributes: self.attributes(id), kind: self.nodes.kind(id.index()) }
    }

    /// The attributes of a node.
    pub fn attributes(&self, id: NodeId) -> Attributes {
        self.nodes.attributes(id.index())
    }

    /// What kind of file a node is.
    pub fn file_type(&self, id: NodeId) -> FileType {
        self.nodes.file_type(id.index())
    }

    /// The contents of a regular file; of anything else none.
    pub fn content(&self, id: NodeId) -> Option<Cow<'_, Content>> {
        self.nodes.content(id.index())
    }

    /// The target of a symbolic link; of anything else none.
    pub fn target(&self, id: NodeId) -> Option<&[u8]> {
        self.nodes.target(id.index())
    }

    /// Gives a node other attributes.
    pub fn set_attributes(&mut self, id: NodeId, attributes: &Attributes) {
        self.nodes.set_attributes(id.index(), attributes);
    }

    /// Forgets owners and extended attributes that no node has any more, where they are more than those that some have. Who changes
    /// attributes again and again has to ask for it.
    pub fn tidy(&mut self) {
        self.nodes.tidy();
    }

    /// How many different modes, owners and extended attributes together it keeps, those that no node has any more included:
    /// after [`Tree::tidy`] at most two for each node.
    pub fn owners(&self) -> usize {
        self.nodes.owners()
    }

    /// Gives a regular file other contents. Anything else stays as it is.
    pub fn set_content(&mut self, id: NodeId, content: Content) {
        if self.file_type(id) == FileType::File {
            self.nodes.set_content(id.index(), content);
        }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
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
        let children = self.entries(parent);
        let found = children.binary_search_by_key(&name, |child| self.names.get(child.name));
        found.ok().map(|at| children[at].node)
    }

    fn entries(&self, id: NodeId) -> &[Child] {
        self.nodes.directory(id.index()).map_or(&[], |place| &self.directories[place])
    }

    /// The entries of a directory in byte order of their names; of anything else none.
    pub fn children(&self, id: NodeId) -> impl DoubleEndedIterator<Item = (&[u8], NodeId)> {
        self.entries(id).iter().map(|child| (self.names.get(child.name), child.node))
    }

    /// A name that the tree keeps.
    pub fn name(&self, name: Name) -> &[u8] {
        self.names.get(name)
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

/// See [`Tree::walk`].
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    tree: &'a Tree,
    path: Vec<u8>,
    /// The directories that are being walked: what is left of each, and how long its path is.
    open: Vec<(std::slice::Iter<'a, Child>, usize)>,
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
            self.open.push((self.tree.entries(node).iter(), self.path.len()));
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
            if let Some(child) = entries.next() {
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(self.tree.names.get(child.name));
                return Some(child.node);
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
    fn names_can_be_changed_together() {
        let mut tree = Tree::new(Attributes::default());
        let d = tree.add(Tree::ROOT, b"d", directory()).unwrap();
        for name in [&b"e"[..], b"c", b"a", b"g"] {
            tree.add(d, name, file(1)).unwrap();
        }
        let new = tree.add_unnamed(file(2)).unwrap();
        let changes = [(&b"b"[..], Some(new)), (b"c", None), (b"e", Some(new)), (b"f", None), (b"h", Some(new))];
        tree.change(d, changes.into_iter()).unwrap();
        let named: Vec<_> = tree.children(d).map(|(name, node)| (name.to_vec(), node == new)).collect();
        let expected = [(&b"a"[..], false), (b"b", true), (b"e", true), (b"g", false), (b"h", true)];
        assert_eq!(named, expected.map(|(name, new)| (name.to_vec(), new)));
        assert_eq!(tree.lookup(d, b"h"), Some(new));
        assert_eq!(tree.change(new, std::iter::empty()), Err(TreeError::NotADirectory));
    }

    #[test]
    fn a_kept_name_is_no_name_of_anything_yet() {
        let mut tree = Tree::new(Attributes::default());
        let name = tree.keep(b"kept").unwrap();
        assert_eq!((tree.lookup(Tree::ROOT, b"kept"), tree.keep(b"b/d")), (None, Err(TreeError::InvalidName)));
        let f = tree.add_kept(Tree::ROOT, name, file(1)).unwrap();
        assert_eq!((tree.lookup(Tree::ROOT, b"kept"), tree.name(name)), (Some(f), &b"kept"[..]));
        assert_eq!(tree.link_kept(Tree::ROOT, name, f), Err(TreeError::Exists));
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
