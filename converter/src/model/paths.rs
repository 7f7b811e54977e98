//! Paths, and what stands at them. A path is kept as its name and the path above it: millions of deep ones would fill the
//! memory else, and be slow to compare.
//!
//! Paths are numbered, and a number holds as long as the tree. One at which nothing stands (any more) keeps its number.
//! Where something stands, directories stand above.

use hashbrown::HashTable;
use std::hash::{BuildHasher as _, RandomState};
use std::iter::successors;

/// The number of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PathId(u32);

/// What a path's name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    /// Its number among the model's inodes.
    pub(super) inode: InodeId,
    /// The layer whose entry it is, counted from 1; 0 for a directory that only entries below it name.
    pub(super) entry: u32,
}

/// The number of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InodeId(pub(super) u32);

#[derive(Debug, Clone)]
struct Path {
    parent: PathId,
    name: Box<[u8]>,
    stands: Option<Name>,
    /// One of the paths that are listed as in it; the root for none.
    first: PathId,
    /// Another one that is listed as in the same directory; the root for none.
    next: PathId,
    /// Whether it is listed. What stands is; what no longer stands may be.
    listed: bool,
}

/// All paths that were ever asked for.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    paths: Vec<Path>,
    table: HashTable<PathId>,
    hasher: RandomState,
}

impl Default for Paths {
    /// The root, at which nothing stands.
    fn default() -> Self {
        let mut paths = Self { paths: Vec::new(), table: HashTable::new(), hasher: RandomState::new() };
        paths.push(PathId::ROOT, b"");
        paths
    }
}

impl PathId {
    pub(crate) const ROOT: Self = Self(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Paths {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PathId> + use<> {
        (0..self.paths.len() as u32).map(PathId)
    }

    fn push(&mut self, parent: PathId, name: &[u8]) -> PathId {
        // Fits: a layer's entries name `limits::PATHS` at most, its links lead to as many more, and what it leaves unused is forgotten.
        let id = PathId(self.paths.len() as u32);
        let (first, next) = (PathId::ROOT, PathId::ROOT);
        self.paths.push(Path { parent, name: name.into(), stands: None, first, next, listed: false });
        id
    }

    /// The path of a name in a directory, if it is known.
    pub(super) fn find(&self, directory: PathId, name: &[u8]) -> Option<PathId> {
        let is_it = |id: &PathId| self.parent(*id) == directory && self.name(*id) == name;
        self.table.find(self.hasher.hash_one((directory, name)), is_it).copied()
    }

    /// The path of a name in a directory.
    pub(super) fn child(&mut self, directory: PathId, name: &[u8]) -> PathId {
        if let Some(known) = self.find(directory, name) {
            return known;
        }
        let id = self.push(directory, name);
        let Self { paths, table, hasher } = self;
        let hash = |id: &PathId| hasher.hash_one((paths[id.index()].parent, &*paths[id.index()].name));
        table.insert_unique(hash(&id), id, hash);
        id
    }

    /// The path of names, each in the one before.
    pub(super) fn at<N: AsRef<[u8]>>(&mut self, names: impl IntoIterator<Item = N>) -> PathId {
        names.into_iter().fold(PathId::ROOT, |directory, name| self.child(directory, name.as_ref()))
    }

    /// The directory of a path; the root's is the root.
    pub(super) fn parent(&self, id: PathId) -> PathId {
        self.paths[id.index()].parent
    }

    /// The last name; the root's is empty.
    pub(super) fn name(&self, id: PathId) -> &[u8] {
        &self.paths[id.index()].name
    }

    /// The path and those above it, up to the root.
    pub(super) fn upwards(&self, id: PathId) -> impl Iterator<Item = PathId> {
        successors(Some(id), |&at| (at != PathId::ROOT).then(|| self.parent(at)))
    }

    /// The paths above a path, up to the root.
    pub(super) fn above(&self, id: PathId) -> impl Iterator<Item = PathId> {
        self.upwards(id).skip(1)
    }

    /// The whole path, without a slash in front; the root's is empty.
    pub(super) fn bytes(&self, id: PathId) -> Vec<u8> {
        let mut names: Vec<&[u8]> = self.upwards(id).filter(|&at| at != PathId::ROOT).map(|at| self.name(at)).collect();
        names.reverse();
        names.join(&b'/')
    }

    /// What stands there.
    pub(super) fn get(&self, id: PathId) -> Option<Name> {
        self.paths[id.index()].stands
    }

    /// Says what stands there; above it, something has to stand.
    pub(super) fn set(&mut self, id: PathId, name: Name) {
        let parent = self.parent(id);
        self.paths[id.index()].stands = Some(name);
        if id != PathId::ROOT && !self.paths[id.index()].listed {
            self.paths[id.index()].listed = true;
            self.paths[id.index()].next = self.paths[parent.index()].first;
            self.paths[parent.index()].first = id;
        }
    }

    /// Says that nothing stands there; below it nothing may stand. What stood there.
    pub(super) fn remove(&mut self, id: PathId) -> Option<Name> {
        self.paths[id.index()].stands.take()
    }

    /// Takes all that is in a directory, or was, out of its list. That it does not stand any more is still to be said.
    pub(super) fn unlist(&mut self, directory: PathId) -> Vec<PathId> {
        let listed: Vec<_> = self.listed(directory).collect();
        self.paths[directory.index()].first = PathId::ROOT;
        for id in &listed {
            self.paths[id.index()].listed = false;
        }
        listed
    }

    /// What stands in a directory, in byte order of the names.
    pub(super) fn children(&self, directory: PathId) -> Vec<PathId> {
        let mut inside: Vec<_> = self.listed(directory).filter(|&id| self.get(id).is_some()).collect();
        // The last came first, and many inputs are sorted.
        inside.reverse();
        inside.sort_by_key(|&id| self.name(id));
        inside
    }

    fn listed(&self, directory: PathId) -> impl Iterator<Item = PathId> {
        let some = |id: PathId| (id != PathId::ROOT).then_some(id);
        successors(some(self.paths[directory.index()].first), move |id| some(self.paths[id.index()].next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_number_and_costs_its_name_and_some_bytes() {
        let mut paths = Paths::default();
        let deep = paths.at([b"a", b"b", b"c"]);
        assert_eq!(paths.at([b"a", b"b", b"c"]), deep);
        assert_eq!((paths.len(), paths.bytes(deep), paths.bytes(PathId::ROOT)), (4, b"a/b/c".to_vec(), Vec::new()));
        assert_eq!(paths.find(paths.parent(deep), b"d"), None);
        assert_eq!(paths.above(deep).count(), 3);
        assert!(size_of::<Path>() <= 48);
    }

    #[test]
    fn what_is_taken_out_of_a_directory_can_stand_in_it_again() {
        let mut paths = Paths::default();
        let name = Name { inode: InodeId(0), entry: 1 };
        let ids = [b"c", b"a", b"b"].map(|name| paths.child(PathId::ROOT, name));
        ids.iter().for_each(|&id| paths.set(id, name));
        assert_eq!(paths.children(PathId::ROOT), [ids[1], ids[2], ids[0]]);
        paths.remove(ids[2]);
        assert_eq!(paths.children(PathId::ROOT), [ids[1], ids[0]]);
        paths.set(ids[2], name);
        assert_eq!(paths.unlist(PathId::ROOT).len(), 3);
        assert_eq!(paths.children(PathId::ROOT), []);
        paths.set(ids[0], name);
        assert_eq!(paths.children(PathId::ROOT), [ids[0]]);
    }
}
