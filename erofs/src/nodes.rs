//! Nodes in little memory: a layer can have millions of them.
//!
//! A node takes 32 bytes. What many have in common (mode, owner, extended attributes) is kept once, what few have at
//! all (targets, maps of holes) beside them.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::tree::{FileType, Kind, Node};
use crate::{Attributes, Content, RareMap};

/// Extended attributes by full name.
type Xattrs = RareMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    slots: Vec<Slot>,
    owners: Vec<Owner>,
    /// Places in `owners` by what stands there.
    places: HashTable<u32>,
    hasher: RandomState,
    targets: Vec<Box<[u8]>>,
    /// Contents that are not one run of blocks.
    contents: Vec<Content>,
}

/// What nodes have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    mode: u16,
    uid: u32,
    gid: u32,
    xattrs: Xattrs,
}

#[derive(Clone, Debug)]
struct Slot {
    mtime: i64,
    /// Of a file its size, of a device its numbers, of a directory what its tree wants; else a place in a list.
    value: u64,
    /// Of a file its first block.
    start: u32,
    mtime_nsec: u32,
    owner: u32,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Directory,
    /// A file whose contents are one run of blocks, at an address that an image can have.
    Plain,
    /// Any other file.
    Listed,
    Symlink,
    Char,
    Block,
    Fifo,
    Socket,
}

impl Nodes {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a node; of a directory `value` is kept with it.
    pub(crate) fn push(&mut self, node: Node, value: u64) {
        let Node { attributes, kind } = node;
        let owner = self.owner(&attributes);
        let Attributes { mtime, mtime_nsec, .. } = attributes;
        let mut slot = Slot { mtime, value, start: 0, mtime_nsec, owner, form: Form::Directory };
        self.set_kind(&mut slot, kind);
        self.slots.push(slot);
    }

    fn set_kind(&mut self, slot: &mut Slot, kind: Kind) {
        let device = |major: u32, minor: u32| u64::from(major) << 32 | u64::from(minor);
        (slot.form, slot.value) = match kind {
            Kind::Directory => (Form::Directory, slot.value),
            Kind::File(content) => return self.put_content(slot, content),
            Kind::Symlink(target) => {
                self.targets.push(target.into());
                (Form::Symlink, self.targets.len() as u64 - 1)
            }
            Kind::Char(major, minor) => (Form::Char, device(major, minor)),
            Kind::Block(major, minor) => (Form::Block, device(major, minor)),
            Kind::Fifo => (Form::Fifo, 0),
            Kind::Socket => (Form::Socket, 0),
        };
    }

    fn put_content(&mut self, slot: &mut Slot, content: Content) {
        (slot.form, slot.value, slot.start) = match content {
            Content::Plain { size, start } if u32::try_from(start).is_ok() => (Form::Plain, size, start as u32),
            content => {
                self.contents.push(content);
                (Form::Listed, self.contents.len() as u64 - 1, 0)
            }
        };
    }

    /// The place of what these attributes have in common with others'.
    fn owner(&mut self, attributes: &Attributes) -> u32 {
        let Attributes { mode, uid, gid, xattrs, .. } = attributes.clone();
        let owner = Owner { mode, uid, gid, xattrs };
        let Self { owners, places, hasher, .. } = self;
        let hash = hasher.hash_one(&owner);
        if let Some(place) = places.find(hash, |&place| owners[place as usize] == owner) {
            return *place;
        }
        // Fits: see `Nodes::tidy`.
        let place = owners.len() as u32;
        owners.push(owner);
        places.insert_unique(hash, place, |&place| hasher.hash_one(&owners[place as usize]));
        place
    }

    pub(crate) fn set_attributes(&mut self, index: usize, attributes: &Attributes) {
        let owner = self.owner(attributes);
        let slot = &mut self.slots[index];
        (slot.owner, slot.mtime, slot.mtime_nsec) = (owner, attributes.mtime, attributes.mtime_nsec);
    }

    /// Forgets what no node has any more, where that is more than what they have.
    pub(crate) fn tidy(&mut self) {
        let Self { slots, owners, places, hasher, .. } = self;
        if owners.len() <= 2 * slots.len() {
            return;
        }
        let mut old: Vec<_> = std::mem::take(owners).into_iter().map(Some).collect();
        let mut kept = vec![0; old.len()];
        for slot in slots {
            let at = slot.owner as usize;
            if let Some(owner) = old[at].take() {
                kept[at] = owners.len() as u32;
                owners.push(owner);
            }
            slot.owner = kept[at];
        }
        places.clear();
        for (place, owner) in (0..).zip(&*owners) {
            places.insert_unique(hasher.hash_one(owner), place, |&place| hasher.hash_one(&owners[place as usize]));
        }
    }

    /// Makes it a file of these contents.
    pub(crate) fn set_content(&mut self, index: usize, content: Content) {
        let mut slot = self.slots[index].clone();
        self.put_content(&mut slot, content);
        self.slots[index] = slot;
    }

    pub(crate) fn attributes(&self, index: usize) -> Attributes {
        let Slot { mtime, mtime_nsec, owner, .. } = self.slots[index];
        let Owner { mode, uid, gid, xattrs } = self.owners[owner as usize].clone();
        Attributes { mode, uid, gid, mtime, mtime_nsec, xattrs }
    }

    /// A number that nodes have in common whose modes, owners and extended attributes are equal, less than
    /// [`Nodes::owners`].
    pub(crate) fn owner_of(&self, index: usize) -> usize {
        self.slots[index].owner as usize
    }

    /// How many such numbers there are.
    pub(crate) fn owners(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn xattrs_of(&self, owner: usize) -> &Xattrs {
        &self.owners[owner].xattrs
    }

    pub(crate) fn file_type(&self, index: usize) -> FileType {
        match self.slots[index].form {
            Form::Directory => FileType::Directory,
            Form::Plain | Form::Listed => FileType::File,
            Form::Symlink => FileType::Symlink,
            Form::Char => FileType::Char,
            Form::Block => FileType::Block,
            Form::Fifo => FileType::Fifo,
            Form::Socket => FileType::Socket,
        }
    }

    pub(crate) fn kind(&self, index: usize) -> Kind {
        let Slot { value, form, .. } = self.slots[index];
        let (major, minor) = ((value >> 32) as u32, value as u32);
        match form {
            Form::Directory => Kind::Directory,
            Form::Plain | Form::Listed => Kind::File(self.content(index).map_or(Content::EMPTY, Cow::into_owned)),
            Form::Symlink => Kind::Symlink(self.target(index).unwrap_or_default().to_vec()),
            Form::Char => Kind::Char(major, minor),
            Form::Block => Kind::Block(major, minor),
            Form::Fifo => Kind::Fifo,
            Form::Socket => Kind::Socket,
        }
    }

    /// The contents of a file.
    pub(crate) fn content(&self, index: usize) -> Option<Cow<'_, Content>> {
        let Slot { value, start, form, .. } = self.slots[index];
        match form {
            Form::Plain => Some(Cow::Owned(Content::Plain { size: value, start: u64::from(start) })),
            Form::Listed => Some(Cow::Borrowed(&self.contents[value as usize])),
            _ => None,
        }
    }

    /// The target of a symlink.
    pub(crate) fn target(&self, index: usize) -> Option<&[u8]> {
        let Slot { value, form, .. } = self.slots[index];
        (form == Form::Symlink).then(|| &*self.targets[value as usize])
    }

    /// What is kept with a directory.
    pub(crate) fn directory(&self, index: usize) -> Option<usize> {
        let Slot { value, form, .. } = self.slots[index];
        (form == Form::Directory).then_some(value as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_that_no_node_has_any_more_are_forgotten_and_the_others_stay() {
        let mut nodes = Nodes::default();
        let of = |uid: u32| Attributes { mode: 0o755, uid, ..Attributes::default() };
        (0..3).for_each(|uid| nodes.push(Node { attributes: of(uid), kind: Kind::Directory }, 0));
        for uid in 3..300 {
            nodes.set_attributes(1, &of(uid));
            nodes.tidy();
            assert!(nodes.owners() <= 6, "{}", nodes.owners());
            assert_eq!([0, 1, 2].map(|index| nodes.attributes(index)), [of(0), of(uid), of(2)]);
        }
        // Equal ones are still one.
        nodes.set_attributes(1, &of(2));
        assert_eq!(nodes.owner_of(1), nodes.owner_of(2));
    }

    #[test]
    fn nodes_come_back_as_they_were() {
        let kinds = [
            Kind::Directory,
            Kind::File(Content::Plain { size: 1 << 40, start: 7 }),
            Kind::File(Content::Plain { size: 5, start: 1 << 40 }),
            Kind::File(Content::Sparse { size: 9000, chunk_bits: 0, chunks: vec![None, Some(3), None] }),
            Kind::Symlink(b"target".to_vec()),
            Kind::Char(u32::MAX, 1),
            Kind::Block(1, u32::MAX),
            Kind::Fifo,
            Kind::Socket,
        ];
        let xattrs = [(b"user.a".to_vec(), b"b".to_vec())].into_iter().collect();
        let attributes = Attributes { mode: 0o644, uid: 1, gid: 2, mtime: -3, mtime_nsec: 4, xattrs };
        let mut nodes = Nodes::default();
        for kind in &kinds {
            nodes.push(Node { attributes: attributes.clone(), kind: kind.clone() }, 11);
        }
        for (index, kind) in kinds.iter().enumerate() {
            assert_eq!((nodes.attributes(index), nodes.kind(index)), (attributes.clone(), kind.clone()));
            assert_eq!(nodes.file_type(index), kind.file_type());
        }
        assert_eq!((nodes.directory(0), nodes.directory(1), nodes.owners()), (Some(11), None, 1));
        nodes.set_content(1, Content::EMPTY);
        nodes.set_attributes(2, &Attributes::default());
        assert_eq!(nodes.kind(1), Kind::File(Content::EMPTY));
        assert_eq!((nodes.attributes(2), nodes.owners()), (Attributes::default(), 2));
        assert_eq!(size_of::<Slot>(), 32);
    }
}
