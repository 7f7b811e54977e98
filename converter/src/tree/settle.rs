//! From what a layer says to what it must hold, over the tree below.
//!
//! First what stands below symbolic links goes where they lead, and hard links find their targets. Then three passes over
//! the paths, none recursive: downwards, what of the tree below each path can be seen; upwards, which
//! marks hide anything; downwards again, the layer's tree.

use super::assume::{Assumes, Assumption};
use super::emit::Build;
use super::merged::{Merged, Placed};
use super::paths::{Path, Slots};
use super::upper::{Says, Upper};
use super::visit::{Lower, Visit, step};
use crate::error::Result;
use crate::limits::{ASSUMED, IMAGE, PATHS, Totals, check_directories};
use erofs::{Attributes, NodeId, Tree};

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
    pub fn settle(self, below: &Merged) -> Result<Settled> {
        self.settle_within(below, &IMAGE, ASSUMED)
    }

    /// As [`Upper::settle`]: with the layers below, the layer may hold `most`, and its list of assumptions takes so many bytes.
    pub(super) fn settle_within(mut self, below: &Merged, most: &Totals, assumed: usize) -> Result<Settled> {
        let mut assumes = Assumes::new(assumed);
        self.follow_links(below, &mut assumes, PATHS)?;
        self.resolve_links(below, &mut assumes, PATHS)?;
        let mut visits = self.downwards(below);
        self.held.names = visits.len();
        (below.held() + self.held).check(most)?;
        check_directories(self.directory_bytes(&visits))?;
        self.upwards(&mut visits, below);
        self.slots.forget_table();
        let tree = std::mem::replace(&mut self.tree, Tree::new(Attributes::default()));
        let mut build = Build::new(&self, below, tree, visits, assumes)?;
        for number in 1..build.visits.len() {
            build.visit(number).map_err(|e| e.at(&build.path_of(number).to_bytes()))?;
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

    /// All paths, a directory before what is in it, siblings in byte order.
    pub(super) fn downwards(&mut self, below: &Merged) -> Vec<Visit> {
        let mut visits = Vec::with_capacity(self.slots.len());
        visits.push(Visit::new(0, Slots::ROOT, root(below)));
        let mut next = 0;
        while next < visits.len() {
            let Visit { slot, lower, .. } = visits[next];
            let inside = self.slots[slot].inside(lower, below);
            visits[next].has_children = self.slots.has_children(slot);
            self.slots.put_in_order(&self.tree, slot);
            for child in self.slots.children(slot) {
                let lower = step(inside, self.slots.name(&self.tree, child), below);
                visits.push(Visit::new(next, child, lower));
            }
            next += 1;
        }
        visits
    }

    /// Bytes of the paths that have others below them, together.
    pub(super) fn directory_bytes(&self, visits: &[Visit]) -> u64 {
        let (mut lengths, mut sum) = (vec![0u32; visits.len()], 0);
        for (number, visit) in visits.iter().enumerate().skip(1) {
            let above = lengths[visit.parent()];
            // Fits: PATHS names of 255 bytes each are a gigabyte.
            lengths[number] = above + u32::from(above > 0) + self.slots.name(&self.tree, visit.slot).len() as u32;
            sum += if visit.has_children { u64::from(lengths[number]) } else { 0 };
        }
        sum
    }

    /// A path has to stand in the layer if it has an entry, hides something, or one below it has to.
    fn upwards(&self, visits: &mut [Visit], below: &Merged) {
        for number in (1..visits.len()).rev() {
            let visit = &visits[number];
            let path = &self.slots[visit.slot];
            let hides = match visit.lower {
                Lower::Node(id) => path.whiteout || (path.opaque && below.is_directory(id)),
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
