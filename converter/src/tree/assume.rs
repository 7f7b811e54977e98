//! What a layer took from the tree below it, or relied on: a layer may be used again over another tree where all of
//! that holds.

use super::merged::Merged;
use crate::error::{Error, Result};
use crate::limits::STEPS;
use erofs::{Attributes, Kind};
use hashbrown::HashTable;
use std::hash::{BuildHasher as _, RandomState};

/// Something that holds of the tree below a layer, at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumption {
    /// Where: names from the root joined by slashes, as [`crate::tar::TreePath::to_bytes`] has them. There can be many, and
    /// deep ones.
    pub path: Vec<u8>,
    /// What stands there.
    pub found: Found,
}

/// What stands at a path of the tree below. Times do not count. The names are those of `docs/format.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A directory with this mode, owner and these attributes (its time is not looked at).
    Directory(Attributes),
    /// No directory: nothing, or something else.
    NoDirectory,
    /// A symbolic link with this target, which was followed.
    Symlink(Vec<u8>),
    /// No symbolic link: nothing, or something else. The layer would have gone through one.
    NoLink,
    /// Something.
    Present,
    /// Nothing.
    Absent,
    /// A file whose contents were copied: holds nowhere else.
    Copied,
}

/// The assumptions of a layer while it is settled: each once, however often it is met, in the order in which they first
/// are; of a bounded size together. And how long the ways were on which they were met.
#[derive(Debug)]
pub(super) struct Assumes {
    list: Vec<Assumption>,
    /// Places in the list, found by the hash of their path: the paths themselves are kept once.
    places: HashTable<u32>,
    hasher: RandomState,
    /// What the list takes in memory, about.
    bytes: usize,
    most: usize,
    steps: u64,
}

impl Assumes {
    /// None yet, of so many bytes at most.
    pub(super) fn new(most: usize) -> Self {
        Self { list: Vec::new(), places: HashTable::new(), hasher: RandomState::new(), bytes: 0, most, steps: 0 }
    }

    /// Notes an assumption.
    pub(super) fn push(&mut self, assumption: Assumption) -> Result<()> {
        let Self { list, places, hasher, .. } = self;
        let hash = |assumption: &Assumption| hasher.hash_one(&assumption.path);
        if places.find(hash(&assumption), |&place| list[place as usize] == assumption).is_some() {
            return Ok(());
        }
        self.bytes += assumption.bytes();
        if self.bytes > self.most {
            return Err(Error::refused("the layer takes too much from the tree below for a list of it"));
        }
        // Fits: its length is bounded.
        places.insert_unique(hash(&assumption), list.len() as u32, |&place| hash(&list[place as usize]));
        list.push(assumption);
        Ok(())
    }

    /// Counts a name on a way through the tree.
    pub(super) fn step(&mut self) -> Result<()> {
        self.steps += 1;
        match self.steps > STEPS {
            false => Ok(()),
            true => Err(Error::refused(format!("the layer's links lead over too many names: more than {STEPS}"))),
        }
    }

    pub(super) fn into_list(self) -> Vec<Assumption> {
        self.list
    }
}

impl Assumption {
    /// What it takes in memory, about: with its place among the others, and what the allocator sets aside for the path.
    fn bytes(&self) -> usize {
        const BESIDE: usize = 32;
        let found = match &self.found {
            Found::Directory(attributes) => {
                attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum()
            }
            Found::Symlink(target) => target.len(),
            _ => 0,
        };
        size_of_val(self) + BESIDE + self.path.len() + found
    }
}

impl Merged {
    /// Whether an assumption holds of this tree.
    pub fn holds(&self, assumption: &Assumption) -> bool {
        let node = self.at(&assumption.path).map(|id| self.node(id));
        match &assumption.found {
            Found::Directory(want) if assumption.path.is_empty() && node.is_none() => *want == default_directory(),
            Found::Directory(want) => {
                node.is_some_and(|node| node.kind == Kind::Directory && without_time(&node.attributes) == *want)
            }
            Found::NoDirectory => node.is_none_or(|node| node.kind != Kind::Directory),
            Found::Symlink(want) => {
                node.is_some_and(|node| matches!(&node.kind, Kind::Symlink(target) if target == want))
            }
            Found::NoLink => node.is_none_or(|node| !matches!(node.kind, Kind::Symlink(_))),
            Found::Present => node.is_some(),
            Found::Absent => node.is_none(),
            Found::Copied => false,
        }
    }
}

/// What a directory has that no layer ever said anything of: 0755, root, and the time 0.
pub(super) fn default_directory() -> Attributes {
    Attributes { mode: 0o755, ..Attributes::default() }
}

/// What a directory that is only implied takes from below: all but the time, which is always 0.
pub(super) fn without_time(attributes: &Attributes) -> Attributes {
    Attributes { mtime: 0, mtime_nsec: 0, ..attributes.clone() }
}
