//! From what a layer says to what it must hold, over the tree below.
//!
//! First what stands below symbolic links goes where they lead, and hard links find their targets. Then three passes over
//! the paths, none recursive: downwards, what of the tree below each path can be seen; upwards, which
//! marks hide anything; downwards again, the layer's tree.

use super::assume::{Assumes, Assumption};
use super::emit::Build;
use super::merged::{Merged, Placed};
use super::upper::{Path, Says, Slots, Upper};
use super::visit::{Lower, Visit, path_of, step};
use crate::error::Result;
use crate::limits::{ASSUMED, PATHS, check_nodes};
use erofs::{Attributes, Kind, NodeId, Tree};

/// A layer, decided.
#[derive(Debug)]
pub struct Settled {
    /// The layer's tree. Files have no contents yet: see [`Settled::contents`] and [`Settled::copies`].
    pub tree: Tree,
    /// Files whose contents are in this layer's spool, with their numbers there. Some may have no name in the tree.
    pub contents: Vec<(NodeId, u32)>,
    /// The other files: their contents are in a layer below.
    pub copies: Vec<(NodeId, Placed)>,
    /// Whether the layer hides all below it.
    pub root_opaque: bool,
    /// What holds of the tree below and was relied on, each once, in the order in which it was met.
    pub assumes: Vec<Assumption>,
    /// What was left out.
    pub warnings: Vec<String>,
    /// Whether it has marks that were kept though nothing lies below (see [`Upper::keep_marks`]).
    pub marks: bool,
}

impl Upper {
    /// Decides the layer over the tree below it.
    pub fn settle(mut self, below: &Merged) -> Result<Settled> {
        let mut assumes = Assumes::new(ASSUMED);
        self.follow_links(below, &mut assumes, PATHS)?;
        self.resolve_links(below, &mut assumes, PATHS)?;
        let mut visits = self.take_down(below);
        check_nodes(below.nodes() + visits.len())?;
        self.upwards(&mut visits, below);
        let tree = std::mem::replace(&mut self.tree, Tree::new(Attributes::default()));
        let mut build = Build::new(&self, below, tree, visits, assumes)?;
        for number in 1..build.visits.len() {
            build.visit(number).map_err(|e| e.at(&path_of(&build.visits, number).to_bytes()))?;
        }
        let Build { tree, assumes, .. } = build;
        let assumes = assumes.into_list();
        let more = self.warned - self.warnings.len() as u64;
        if more > 0 {
            self.warnings.push(format!("and {more} more"));
        }
        let marked = |path: &Path| path.whiteout || path.opaque;
        let marks = self.slots.iter().any(marked);
        if marks && !self.keep_marks && below.root().is_none() {
            self.warnings
                .push("whiteouts and opaque marks hide nothing, since nothing lies below: left out".to_owned());
        }
        let marks = marks && self.keep_marks;
        let root_opaque = self.slots[Slots::ROOT].opaque;
        let Self { contents, copies, warnings, .. } = self;
        Ok(Settled { tree, contents, copies, root_opaque, assumes, warnings, marks })
    }

    /// All paths, a directory before what is in it.
    pub(super) fn downwards(&self, below: &Merged) -> Vec<Visit<&[u8]>> {
        let mut visits = Vec::with_capacity(self.slots.len());
        visits.push(Visit::new(0, &b""[..], Slots::ROOT, root(below)));
        let mut next = 0;
        while next < visits.len() {
            let Visit { slot, lower, .. } = visits[next];
            let inside = self.slots[slot].inside(lower, below);
            for (name, &slot) in &self.slots[slot].children {
                visits.push(Visit::new(next, name, slot, step(inside, name, below)));
                visits[next].has_children = true;
            }
            next += 1;
        }
        visits
    }

    /// As [`Upper::downwards`], for the last time: the names are taken out of the directories, so that they are in memory
    /// once, there or in the visits or in the layer's tree.
    fn take_down(&mut self, below: &Merged) -> Vec<Visit<Box<[u8]>>> {
        let mut visits = Vec::with_capacity(self.slots.len());
        visits.push(Visit::new(0, Box::default(), Slots::ROOT, root(below)));
        let mut next = 0;
        while next < visits.len() {
            let Visit { slot, lower, .. } = visits[next];
            let inside = self.slots[slot].inside(lower, below);
            for (name, slot) in std::mem::take(&mut self.slots[slot].children) {
                let lower = step(inside, &name, below);
                visits.push(Visit::new(next, name, slot, lower));
                visits[next].has_children = true;
            }
            next += 1;
        }
        visits
    }

    /// A path has to stand in the layer if it has an entry, hides something, or one below it has to.
    fn upwards<N>(&self, visits: &mut [Visit<N>], below: &Merged) {
        for number in (1..visits.len()).rev() {
            let visit = &visits[number];
            let path = &self.slots[visit.slot];
            let hides = match visit.lower {
                Lower::Node(id) => path.whiteout || (path.opaque && below.node(id).kind == Kind::Directory),
                Lower::Absent => self.keep_marks && (path.whiteout || path.opaque),
                Lower::Hidden => false,
            };
            if visit.effective || hides || !matches!(path.says, Says::Nothing) {
                let parent = visit.parent();
                visits[number].effective = true;
                visits[parent].effective = true;
            }
        }
    }
}

/// What can be seen of the root of the tree below.
fn root(below: &Merged) -> Lower {
    below.root().map_or(Lower::Absent, Lower::Node)
}
