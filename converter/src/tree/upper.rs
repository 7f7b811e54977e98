//! A layer while its entries come in: a tree of what it says about each path.
//!
//! Entries apply in order and the last one for a path wins as a whole, except that a directory over a directory keeps
//! the children. Whiteouts and opaque marks are only noted here, since they speak about lower layers, wherever they
//! stand; [`super::settle`] decides what becomes of them. What stands below a symbolic link is kept below its slot:
//! `through.rs` moves it to where the link leads, once all entries and the tree below are known.

use crate::error::{Error, Result, show};
use crate::limits::{Totals, WARNINGS};
use crate::tar::{Entry, Kind as TarKind, TreePath, WHITEOUT};
use crate::tree::merged::Placed;
use crate::tree::paths::{Slot, Slots};
use erofs::{Attributes, Content, FileType, Kind, Node, NodeId, Tree};

/// Name of the mark of an opaque directory.
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

/// The entry that holds for a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Says {
    /// None: marks only, here or below.
    Nothing,
    /// A directory that only entries below it name.
    Implied,
    /// A directory: its place in [`Upper::directories`].
    Directory(u32),
    /// Anything else, which several paths can share: a node of [`Upper::tree`].
    Inode(NodeId),
    /// A hard link to a path that had no entry yet: its place in [`Upper::targets`].
    Link(u32),
}

/// What a layer's entries say, so far.
#[derive(Debug)]
pub struct Upper {
    pub(super) slots: Slots,
    /// The layer's tree. It keeps the names of all paths. Until it is settled only what is no directory is in it, and
    /// nothing has a name; of what later entries replace nothing ever has.
    pub(super) tree: Tree,
    /// Attributes of directories that have an entry.
    pub(super) directories: Vec<Attributes>,
    /// Targets of hard links that had no entry yet: the paths' bytes, which take less room than their parts.
    pub(super) targets: Vec<Box<[u8]>>,
    /// Files whose contents are in this layer's spool, with their numbers there.
    pub(super) contents: Vec<(NodeId, u32)>,
    /// Files whose contents are in a layer below.
    pub(super) copies: Vec<(NodeId, Placed)>,
    pub(super) warnings: Vec<String>,
    /// How many warnings there were.
    pub(super) warned: u64,
    /// See [`Upper::keep_marks`].
    pub(super) keep_marks: bool,
    /// Number of the entry that is being added.
    pub(super) order: u32,
    /// What the entries held, names not counted.
    pub(super) held: Totals,
}

/// What the name of an entry makes of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    /// An entry like any other.
    Entry,
    /// The name of this path in the layers below is hidden.
    Whiteout(TreePath),
    /// What the layers below have in this directory is hidden.
    Opaque(TreePath),
    /// AUFS's own data at the image's root, which no unpacker shows.
    Ignored,
}

impl Meaning {
    /// The meaning of an entry by its name alone; its type does not count.
    pub fn of(path: &TreePath) -> Result<Self> {
        let Some((parents, name)) = path.split() else { return Ok(Self::Entry) };
        if path.parts()[0].starts_with(b".wh..wh.") && path.parts()[0] != OPAQUE_MARK {
            return Ok(Self::Ignored);
        }
        if let Some(odd) = parents.iter().find(|part| part.starts_with(WHITEOUT)) {
            return Err(Error::refused(format!("the directory '{}' has the name of a whiteout", show(odd))));
        }
        let directory = TreePath::from(parents.to_vec());
        match name.strip_prefix(WHITEOUT) {
            None => Ok(Self::Entry),
            Some(_) if name == OPAQUE_MARK => Ok(Self::Opaque(directory)),
            Some(b"" | b"." | b"..") => Err(Error::refused("invalid whiteout: it names nothing that can be removed")),
            Some(hidden) => Ok(Self::Whiteout(directory.join(hidden))),
        }
    }
}

impl Default for Upper {
    fn default() -> Self {
        Self {
            slots: Slots::new(),
            tree: Tree::new(Attributes::default()),
            directories: Vec::new(),
            targets: Vec::new(),
            contents: Vec::new(),
            copies: Vec::new(),
            warnings: Vec::new(),
            warned: 0,
            keep_marks: false,
            order: 0,
            held: Totals::default(),
        }
    }
}

impl Upper {
    /// A layer without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes something that was left out.
    pub fn warn(&mut self, warning: String) {
        self.warned += 1;
        if self.warnings.len() < WARNINGS {
            self.warnings.push(warning);
        }
    }

    /// How many paths the layer says something about, implied directories among them.
    pub fn paths(&self) -> usize {
        self.slots.len()
    }

    /// Whether files of layers below may be copied into the layer.
    pub fn may_copy(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Keeps whiteouts and opaque marks that hide nothing: what the layer will lie over is not known. It has to be settled
    /// over nothing then.
    pub fn keep_marks(&mut self) {
        self.keep_marks = true;
    }

    /// Notes a whiteout.
    pub fn whiteout(&mut self, path: &TreePath) -> Result<()> {
        if let Some(slot) = self.mark(path)? {
            self.slots[slot].whiteout = true;
        }
        Ok(())
    }

    /// Notes an opaque mark in a directory.
    pub fn opaque(&mut self, directory: &TreePath) -> Result<()> {
        if let Some(slot) = self.mark(directory)? {
            self.slots[slot].opaque = true;
        }
        Ok(())
    }

    /// Adds an entry that is no mark; `contents` are those of a regular file, by their number in the spool.
    pub fn add(&mut self, entry: Entry, contents: Option<u32>) -> Result<()> {
        let Entry { path, kind, attributes } = entry;
        self.order = self.order.saturating_add(1);
        self.held.count_attributes(&attributes);
        if let TarKind::Symlink(target) = &kind {
            self.held.count_target(target);
        }
        let kind = match kind {
            TarKind::Directory => return self.directory(&path, attributes),
            TarKind::HardLink(target) => return self.link(&path, target),
            TarKind::File(_) => Kind::File(Content::EMPTY),
            TarKind::Symlink(target) => Kind::Symlink(target),
            TarKind::Char(major, minor) => Kind::Char(major, minor),
            TarKind::Block(major, minor) => Kind::Block(major, minor),
            TarKind::Fifo => Kind::Fifo,
        };
        let slot = self.place(&path)?;
        self.may_replace(slot)?;
        let node = self.node(Node { attributes, kind })?;
        self.contents.extend(contents.map(|number| (node, number)));
        self.put(slot, Says::Inode(node));
        Ok(())
    }

    /// A node more, without a name.
    pub(super) fn node(&mut self, node: Node) -> Result<NodeId> {
        self.tree.add_unnamed(node).map_err(|e| Error::refused(e.to_string()))
    }

    fn directory(&mut self, path: &TreePath, attributes: Attributes) -> Result<()> {
        let slot = if path.is_root() { Slots::ROOT } else { self.place(path)? };
        self.may_replace(slot)?;
        let path = &mut self.slots[slot];
        path.fresh |= matches!(path.says, Says::Inode(_) | Says::Link(_));
        match path.says {
            // However often a directory comes.
            Says::Directory(place) => self.directories[place as usize] = attributes,
            _ => {
                // Fits: see `limits::ENTRIES`.
                path.says = Says::Directory(self.directories.len() as u32);
                self.directories.push(attributes);
            }
        }
        Ok(())
    }

    /// A hard link shares the inode that its target has now; where it has none in this layer, that is settled later.
    fn link(&mut self, path: &TreePath, target: TreePath) -> Result<()> {
        let found = self.find(&target);
        let says = match found.map(|slot| self.slots[slot].says) {
            _ if target.is_root() => return Err(not_linkable(&target)),
            Some(Says::Directory(_) | Says::Implied) => return Err(not_linkable(&target)),
            Some(Says::Inode(_)) if *path == target => return Ok(()),
            Some(Says::Inode(inode)) => Says::Inode(inode),
            _ => {
                self.targets.push(target.to_bytes().into());
                // Fits: see `limits::ENTRIES`.
                Says::Link((self.targets.len() - 1) as u32)
            }
        };
        let slot = self.place(path)?;
        self.may_replace(slot)?;
        self.put(slot, says);
        Ok(())
    }

    /// Puts something that is no directory at a slot: children go, and marks in it.
    pub(super) fn put(&mut self, slot: Slot, says: Says) {
        let path = &mut self.slots[slot];
        path.says = says;
        path.opaque = false;
        self.slots.detach(&self.tree, slot);
    }

    /// Refuses to replace a link through which something was unpacked: where that went would have to be known by now.
    fn may_replace(&self, slot: Slot) -> Result<()> {
        match self.is_symlink(slot) && (self.slots[slot].opaque || self.slots.has_children(slot)) {
            true => Err(Error::refused("it replaces a symlink through which entries before it were unpacked")),
            false => Ok(()),
        }
    }

    /// Whether the layer has a symbolic link here.
    pub(super) fn is_symlink(&self, slot: Slot) -> bool {
        matches!(self.slots[slot].says, Says::Inode(node) if self.tree.file_type(node) == FileType::Symlink)
    }

    /// The slot of a path, if the layer says anything about it.
    pub(super) fn find(&self, path: &TreePath) -> Option<Slot> {
        path.parts().iter().try_fold(Slots::ROOT, |slot, part| self.slots.find(&self.tree, slot, part))
    }

    /// The slot of an entry's path; the directories above become implied ones where they have no entry.
    pub(super) fn place(&mut self, path: &TreePath) -> Result<Slot> {
        let (parents, name) = path.split().ok_or_else(|| Error::refused("the image's root must be a directory"))?;
        let mut slot = Slots::ROOT;
        for part in parents {
            self.imply(slot);
            slot = self.child(slot, part)?;
        }
        self.imply(slot);
        let slot = self.child(slot, name)?;
        self.slots[slot].order = self.order;
        Ok(slot)
    }

    /// Makes the path a directory, because something stands below it; a symbolic link stays.
    pub(super) fn imply(&mut self, slot: Slot) {
        let symlink = self.is_symlink(slot);
        let path = &mut self.slots[slot];
        path.order = self.order;
        match path.says {
            _ if symlink => {}
            Says::Directory(_) | Says::Implied => {}
            Says::Nothing => path.says = Says::Implied,
            Says::Inode(_) | Says::Link(_) => {
                path.says = Says::Implied;
                path.fresh = true;
            }
        }
    }

    /// The slot for a mark, without making anything of the directories above; `None` where one of them is no directory
    /// in this layer, so that the mark has nothing to act on.
    fn mark(&mut self, path: &TreePath) -> Result<Option<Slot>> {
        let mut slot = Slots::ROOT;
        for part in path.parts() {
            if matches!(self.slots[slot].says, Says::Inode(_) | Says::Link(_)) && !self.is_symlink(slot) {
                return Ok(None);
            }
            slot = self.child(slot, part)?;
        }
        Ok(Some(slot))
    }

    pub(super) fn child(&mut self, slot: Slot, name: &[u8]) -> Result<Slot> {
        if let Some(child) = self.slots.find(&self.tree, slot, name) {
            return Ok(child);
        }
        let child = self.slots.push(self.tree.keep(name).map_err(|e| Error::refused(e.to_string()))?);
        self.slots.attach(&self.tree, slot, child);
        Ok(child)
    }

    /// The path of a slot. It is put together when it is needed: millions of them would fill the memory.
    pub(super) fn path_of(&self, slot: Slot) -> TreePath {
        self.slots.path(&self.tree, slot)
    }
}

pub(super) fn not_linkable(target: &TreePath) -> Error {
    Error::refused(format!("hard link to the directory '{target}'"))
}
