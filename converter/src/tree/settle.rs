//! From what a layer says to what it must hold, over the tree below.
//!
//! First what stands below symbolic links goes where they lead, and hard links find their targets. Then three passes over
//! the paths, none recursive: downwards, what of the tree below each path can be seen; upwards, which
//! marks hide anything; downwards again, the layer's tree.

use super::assume::{Assumes, Assumption};
use super::emit::Build;
use super::merged::Merged;
use super::upper::{ContentPlace, Path, Says, Upper};
use super::visit::{Lower, Visit, path_of, step};
use crate::error::Result;
use crate::limits::{ASSUMED, PATHS, check_nodes};
use erofs::{Kind, NodeId, Tree};

/// A layer, decided.
#[derive(Debug)]
pub struct Settled {
    /// The layer's tree. Files have no contents yet: see [`Settled::contents`].
    pub tree: Tree,
    /// The contents of each regular file.
    pub contents: Vec<(NodeId, ContentPlace)>,
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
        let mut visits = self.downwards(below);
        check_nodes(below.nodes() + visits.len())?;
        self.upwards(&mut visits, below);
        let mut build = Build::new(&self, below, &visits, assumes)?;
        for number in 1..build.visits.len() {
            build.visit(number).map_err(|e| e.at(&path_of(build.visits, number).to_bytes()))?;
        }
        let Build { tree, contents, assumes, .. } = build;
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
        Ok(Settled { tree, contents, root_opaque: self.slots[0].opaque, assumes, warnings: self.warnings, marks })
    }

    pub(super) fn downwards(&self, below: &Merged) -> Vec<Visit<'_>> {
        let lower = below.root().map_or(Lower::Absent, Lower::Node);
        let mut visits = vec![Visit { slot: 0, name: b"", parent: 0, lower, effective: true }];
        let mut next = 0;
        while next < visits.len() {
            let Visit { slot, lower, .. } = visits[next];
            let inside = self.slots[slot].inside(lower, below);
            for (name, &slot) in &self.slots[slot].children {
                let lower = step(inside, name, below);
                visits.push(Visit { slot, name, parent: next, lower, effective: false });
            }
            next += 1;
        }
        visits
    }

    /// A path has to stand in the layer if it has an entry, hides something, or one below it has to.
    fn upwards(&self, visits: &mut [Visit<'_>], below: &Merged) {
        for number in (1..visits.len()).rev() {
            let visit = &visits[number];
            let path = &self.slots[visit.slot];
            let hides = match visit.lower {
                Lower::Node(id) => path.whiteout || (path.opaque && below.node(id).kind == Kind::Directory),
                Lower::Absent => self.keep_marks && (path.whiteout || path.opaque),
                Lower::Hidden => false,
            };
            if visit.effective || hides || !matches!(path.says, Says::Nothing) {
                let parent = visit.parent;
                visits[number].effective = true;
                visits[parent].effective = true;
            }
        }
    }
}
