//! Whiteouts and opaque marks that are kept, because nobody knows yet what the layer will hide with them.
//!
//! The directories in which they stand are there then, though no entry names them. A mark is kept where nothing else in the
//! layer hides what it would hide: no other mark, and nothing that is no directory, at a path above.

use super::paths::{PathId, Paths};
use std::collections::HashSet;

/// The marks of a layer, and the paths at which it had something else than a directory, if only for a while.
#[derive(Default)]
pub(super) struct Kept {
    whiteouts: HashSet<PathId>,
    opaque: HashSet<PathId>,
    no_directories: HashSet<PathId>,
}

impl Kept {
    pub(super) fn whiteout(&mut self, path: PathId) {
        self.whiteouts.insert(path);
    }

    pub(super) fn opaque(&mut self, directory: PathId) {
        self.opaque.insert(directory);
    }

    pub(super) fn no_directory(&mut self, path: PathId) {
        self.no_directories.insert(path);
    }

    /// The directories that the marks need.
    pub(super) fn directories(&self, paths: &Paths) -> Vec<PathId> {
        let whiteouts = self.whiteouts.iter().filter(|&&path| path != PathId::ROOT).map(|&path| paths.parent(path));
        let needed = whiteouts.filter(|&at| !self.hides(at) && !self.is_hidden(paths, at));
        let opaque = self.opaque.iter().copied();
        let opaque = opaque.filter(|at| !self.no_directories.contains(at) && !self.is_hidden(paths, *at));
        // What is to be removed below is no directory here, but what it is removed from is one.
        let opaque = opaque.map(|at| if self.whiteouts.contains(&at) { paths.parent(at) } else { at });
        needed.chain(opaque).collect()
    }

    /// Whether the layer hides what lies below a path.
    fn hides(&self, path: PathId) -> bool {
        [&self.whiteouts, &self.opaque, &self.no_directories].into_iter().any(|set| set.contains(&path))
    }

    /// Whether the layer hides a path by what it has above.
    fn is_hidden(&self, paths: &Paths, path: PathId) -> bool {
        paths.above(path).any(|above| self.hides(above))
    }
}
