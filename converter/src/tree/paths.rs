//! The paths of a layer while its entries come in, in little memory: a layer can have millions of them.
//!
//! A path takes 32 bytes, and some eight in the table that finds it by its directory and its name; the bytes of the names
//! are kept by the layer's tree, which has to be the same at all times. What is in a directory is linked as it came, and
//! linked anew in order of the names when that is wanted: it stays so until something else comes in, however many passes
//! there are. A path that was taken out of its directory stays, and is in none.

use super::upper::Says;
use crate::tar::TreePath;
use erofs::{Name, Tree};
use hashbrown::HashTable;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::{Index, IndexMut};

/// Place of a path in [`Slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot(u32);

/// What a layer says about one path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) says: Says,
    /// The layer has a whiteout for this path.
    pub(super) whiteout: bool,
    /// The layer has an opaque mark in this directory.
    pub(super) opaque: bool,
    /// The layer made it a directory after it was something else in the same layer.
    pub(super) fresh: bool,
    /// What is in it is linked in byte order of the names.
    in_order: bool,
    /// Number of the last entry that said anything of it, or of something below it.
    pub(super) order: u32,
    parent: Slot,
    name: Option<Name>,
    /// One of those in it; the root for none.
    first: Slot,
    /// Another one in the same directory; the root for none.
    next: Slot,
}

/// Paths by their slots.
#[derive(Debug)]
pub(super) struct Slots {
    paths: Vec<Path>,
    /// All that are in a directory.
    table: HashTable<Slot>,
    hasher: RandomState,
    /// How many were put in order so far.
    #[cfg(test)]
    pub(super) ordered: usize,
}

impl Slots {
    pub(super) const ROOT: Slot = Slot(0);

    /// The root alone.
    pub(super) fn new() -> Self {
        Self {
            paths: vec![Path::new(None)],
            table: HashTable::new(),
            hasher: RandomState::new(),
            #[cfg(test)]
            ordered: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter()
    }

    /// A path more, of which nothing is said yet, and which is in no directory.
    pub(super) fn push(&mut self, name: Name) -> Slot {
        self.paths.push(Path::new(Some(name)));
        // Fits: see `limits::PATHS`.
        Slot((self.paths.len() - 1) as u32)
    }

    /// The path of a name in a directory.
    pub(super) fn find(&self, names: &Tree, directory: Slot, name: &[u8]) -> Option<Slot> {
        let is_it = |slot: &Slot| self[*slot].parent == directory && self.name(names, *slot) == name;
        self.table.find(self.hash(directory, name), is_it).copied()
    }

    /// Puts a path that is in no directory into one, which has nothing of that name.
    pub(super) fn attach(&mut self, names: &Tree, directory: Slot, slot: Slot) {
        (self[slot].parent, self[slot].next) = (directory, self[directory].first);
        self[directory].first = slot;
        self[directory].in_order = false;
        let Self { paths, table, hasher, .. } = self;
        let hash = |slot: &Slot| {
            let path = &paths[slot.0 as usize];
            hasher.hash_one((path.parent, path.name.map_or(&b""[..], |name| names.name(name))))
        };
        table.insert_unique(hash(&slot), slot, hash);
    }

    /// Takes all that is in a directory out of it.
    pub(super) fn detach(&mut self, names: &Tree, directory: Slot) -> Vec<Slot> {
        let inside: Vec<_> = self.children(directory).collect();
        for slot in &inside {
            let hash = self.hash(directory, self.name(names, *slot));
            if let Ok(found) = self.table.find_entry(hash, |other| other == slot) {
                found.remove();
            }
        }
        self[directory].first = Self::ROOT;
        inside
    }

    /// Links what is in a directory in byte order of the names.
    pub(super) fn put_in_order(&mut self, names: &Tree, directory: Slot) {
        if std::mem::replace(&mut self[directory].in_order, true) {
            return;
        }
        let mut inside: Vec<_> = self.children(directory).collect();
        // The last came first, and many inputs are sorted: the sort knows runs, backwards too.
        inside.sort_by_key(|slot| self.name(names, *slot));
        #[cfg(test)]
        {
            self.ordered += inside.len();
        }
        let mut next = Self::ROOT;
        for slot in inside.into_iter().rev() {
            self[slot].next = next;
            next = slot;
        }
        self[directory].first = next;
    }

    /// What is in a directory; in byte order of the names where nothing came in since it was put in order.
    pub(super) fn children(&self, directory: Slot) -> impl Iterator<Item = Slot> {
        let some = |slot: Slot| (slot != Self::ROOT).then_some(slot);
        std::iter::successors(some(self[directory].first), move |slot| some(self[*slot].next))
    }

    pub(super) fn has_children(&self, directory: Slot) -> bool {
        self[directory].first != Self::ROOT
    }

    /// The last name of a path; of the root it is empty.
    pub(super) fn name<'n>(&self, names: &'n Tree, slot: Slot) -> &'n [u8] {
        self[slot].name.map_or(&[], |name| names.name(name))
    }

    /// The same as the tree keeps it.
    pub(super) fn kept_name(&self, slot: Slot) -> Option<Name> {
        self[slot].name
    }

    /// The whole path.
    pub(super) fn path(&self, names: &Tree, mut slot: Slot) -> TreePath {
        let mut parts = Vec::new();
        while slot != Self::ROOT {
            parts.push(self.name(names, slot).to_vec());
            slot = self[slot].parent;
        }
        parts.reverse();
        TreePath::from(parts)
    }

    /// Nothing is looked for any more.
    pub(super) fn forget_table(&mut self) {
        self.table = HashTable::new();
    }

    fn hash(&self, directory: Slot, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }
}

impl Path {
    fn new(name: Option<Name>) -> Self {
        let (parent, first, next) = (Slots::ROOT, Slots::ROOT, Slots::ROOT);
        let (whiteout, opaque, fresh, in_order) = (false, false, false, false);
        Self { says: Says::Nothing, whiteout, opaque, fresh, in_order, order: 0, parent, name, first, next }
    }

    /// Leaves a path of which nothing is said, and which is nowhere.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(None))
    }
}

impl Index<Slot> for Slots {
    type Output = Path;

    fn index(&self, slot: Slot) -> &Path {
        &self.paths[slot.0 as usize]
    }
}

impl IndexMut<Slot> for Slots {
    fn index_mut(&mut self, slot: Slot) -> &mut Path {
        &mut self.paths[slot.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use erofs::Attributes;

    #[test]
    fn what_is_in_a_directory_is_found_sorted_and_taken_out() {
        let (mut names, mut slots) = (Tree::new(Attributes::default()), Slots::new());
        let mut add = |slots: &mut Slots, directory, name: &[u8]| {
            let slot = slots.push(names.keep(name).unwrap());
            slots.attach(&names, directory, slot);
            slot
        };
        let d = add(&mut slots, Slots::ROOT, b"d");
        let inside: Vec<_> = [&b"c"[..], b"a", b"b"].map(|name| add(&mut slots, d, name)).into();
        let (other, names) = (add(&mut slots, Slots::ROOT, b"a"), names);
        let sorted = |slots: &mut Slots| {
            slots.put_in_order(&names, d);
            slots.children(d).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(sorted(&mut slots), [inside[1], inside[2], inside[0]]);
            assert_eq!(slots.ordered, 3, "once");
        }
        assert_eq!(
            (slots.find(&names, d, b"a"), slots.find(&names, Slots::ROOT, b"a")),
            (Some(inside[1]), Some(other))
        );
        assert_eq!(slots.detach(&names, d).len(), 3);
        assert!(!slots.has_children(d) && slots.find(&names, d, b"a").is_none());
        slots.attach(&names, other, inside[1]);
        assert_eq!((slots.find(&names, other, b"a"), slots.name(&names, inside[1])), (Some(inside[1]), &b"a"[..]));
        assert_eq!(size_of::<Path>(), 32);
    }
}
