//! Entries and marks whose parent is a symbolic link, of this layer or below: they belong where the link leads.
//!
//! Unpackers that write to the merged tree follow such a link inside the image's root, and build tools rely on it
//! (`lib/x` over `lib -> usr/lib`). A layer that has an entry of its own for the directory replaces the link instead, as
//! everywhere. A target that is missing is made; one that is no directory is refused, as are loops: at most [`LINKS_MAX`]
//! links are followed for a path, as by Linux. No path leaves the root: `..` ends there, and absolute targets start
//! there. A target can be two thousand directories deep, none of which an entry names: they count as the layer's paths.

use super::assume::{Assumes, Assumption, Found};
use super::merged::{Id, Merged};
use super::paths::{Slot, Slots};
use super::upper::{Says, Upper};
use super::visit::{Lower, step};
use crate::error::{Error, Result};
use crate::limits::check_paths;
use crate::tar::TreePath;

/// Links that are followed for one path: Linux's own bound.
const LINKS_MAX: usize = 40;

/// A directory on the way of a path.
struct Step {
    name: Vec<u8>,
    slot: Option<Slot>,
    lower: Lower,
}

impl Upper {
    /// Moves what stands below symbolic links to where they lead; the layer may have `most` paths then.
    pub(super) fn follow_links(&mut self, below: &Merged, assumes: &mut Assumes, most: usize) -> Result<()> {
        // What was moved can again stand below a link.
        for round in 0..LINKS_MAX {
            let found = self.below_links(below);
            if found.is_empty() {
                if round > 0 {
                    self.forget_implied();
                }
                return Ok(());
            }
            for slot in found {
                // As it was found: nothing above it is moved in a round.
                let path = self.path_of(slot);
                let at = |e: Error| e.at(&path.to_bytes());
                let led = self.lead(&path, below, assumes).map_err(at)?;
                self.graft(slot, &led).map_err(at)?;
                check_paths(self.paths(), most).map_err(at)?;
            }
        }
        Err(too_many())
    }

    /// The links with something below them, but for those below others.
    fn below_links(&mut self, below: &Merged) -> Vec<Slot> {
        let visits = self.downwards(below);
        let mut inside = vec![false; visits.len()];
        let mut found = Vec::new();
        for (number, visit) in visits.iter().enumerate().skip(1) {
            let path = &self.slots[visit.slot];
            let link = (path.opaque || visit.has_children) && self.link_at(visit.slot, visit.lower, below).is_some();
            inside[number] = inside[visit.parent()] || link;
            if link && !inside[visit.parent()] {
                found.push(visit.slot);
            }
        }
        found
    }

    /// The target of the link that can be seen at a slot, and the node below that it is.
    fn link_at<'a>(&'a self, slot: Slot, lower: Lower, below: &'a Merged) -> Option<(&'a [u8], Option<Id>)> {
        let path = &self.slots[slot];
        match (&path.says, lower) {
            (Says::Inode(node), _) => Some((self.tree.target(*node)?, None)),
            (Says::Nothing | Says::Implied, Lower::Node(id)) if !path.whiteout && !path.fresh => link_below(id, below),
            _ => None,
        }
    }

    /// Where the directory at a path is, all links followed; those of the tree below are noted.
    pub(super) fn lead(&self, path: &TreePath, below: &Merged, assumes: &mut Assumes) -> Result<TreePath> {
        let root =
            Step { name: Vec::new(), slot: Some(Slots::ROOT), lower: below.root().map_or(Lower::Absent, Lower::Node) };
        let mut way = vec![root];
        let mut parts: Vec<Vec<u8>> = path.parts().iter().rev().cloned().collect();
        let mut links = 0;
        while let Some(part) = parts.pop() {
            assumes.step()?;
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    way.truncate(usize::max(way.len() - 1, 1));
                    continue;
                }
                _ => {}
            }
            let next = self.enter(&way, part, below);
            let Some((target, id)) = self.link_of(&next, below) else {
                self.check_directory(&next, below)?;
                way.push(next);
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(too_many());
            }
            if id.is_some() {
                let path = names(way.iter().chain([&next]));
                assumes.push(Assumption { path, found: Found::Symlink(target.to_vec()) })?;
            }
            if target.starts_with(b"/") {
                way.truncate(1);
            }
            parts.extend(target.rsplit(|&byte| byte == b'/').map(<[u8]>::to_vec));
        }
        // Targets are not cleaned paths: their parts may be too long.
        TreePath::clean(&names(&way).to_bytes())
    }

    /// As [`Upper::lead`] for the directory of a path; its last name stays, link or not.
    pub(super) fn lead_parent(&self, path: &TreePath, below: &Merged, assumes: &mut Assumes) -> Result<TreePath> {
        let Some((parents, name)) = path.split() else { return self.lead(path, below, assumes) };
        Ok(self.lead(&TreePath::from(parents.to_vec()), below, assumes)?.join(name))
    }

    fn enter(&self, way: &[Step], name: Vec<u8>, below: &Merged) -> Step {
        let (slot, lower) = way.last().map_or((None, Lower::Absent), |step| (step.slot, step.lower));
        let inside = slot.map_or(lower, |slot| self.slots[slot].inside(lower, below));
        let slot = slot.and_then(|slot| self.slots.find(&self.tree, slot, &name));
        let lower = step(inside, &name, below);
        Step { name, slot, lower }
    }

    fn link_of<'a>(&'a self, at: &Step, below: &'a Merged) -> Option<(&'a [u8], Option<Id>)> {
        match (at.slot, at.lower) {
            (Some(slot), lower) => self.link_at(slot, lower, below),
            (None, Lower::Node(id)) => link_below(id, below),
            (None, _) => None,
        }
    }

    /// Refuses a way through something that is no directory and does not become one.
    fn check_directory(&self, at: &Step, below: &Merged) -> Result<()> {
        let hidden = at.slot.is_some_and(|slot| self.slots[slot].whiteout || self.slots[slot].fresh);
        let blocked = match (at.slot.map(|slot| &self.slots[slot].says), at.lower) {
            (Some(Says::Inode(_) | Says::Link(_)), _) => true,
            (None | Some(Says::Nothing), Lower::Node(id)) => !hidden && !below.is_directory(id),
            _ => false,
        };
        match blocked {
            true => Err(Error::refused(format!(
                "it leads through '{}', which is no directory",
                crate::error::show(&at.name)
            ))),
            false => Ok(()),
        }
    }

    /// Moves the children and the mark of a slot into the directory at a path.
    fn graft(&mut self, from: Slot, to: &TreePath) -> Result<()> {
        self.order = self.slots[from].order;
        let children = self.slots.detach(&self.tree, from);
        let opaque = std::mem::take(&mut self.slots[from].opaque);
        // Marks alone make no directory.
        let entries = children.iter().any(|&child| !matches!(self.slots[child].says, Says::Nothing));
        if let Says::Implied = self.slots[from].says {
            self.slots[from].says = Says::Nothing;
        }
        let mut place = Slots::ROOT;
        for part in to.parts() {
            if entries {
                self.imply(place);
            }
            place = self.child(place, part)?;
        }
        if entries {
            self.imply(place);
        }
        self.slots[place].opaque |= opaque;
        let mut open: Vec<_> = children.into_iter().map(|child| (place, child)).collect();
        while let Some((place, child)) = open.pop() {
            match self.slots.find(&self.tree, place, self.slots.name(&self.tree, child)) {
                None => self.slots.attach(&self.tree, place, child),
                Some(there) => {
                    let moved = self.merge(there, child);
                    open.extend(moved.into_iter().map(|child| (there, child)));
                }
            }
        }
        Ok(())
    }

    /// Directories that were implied only by what is no longer below them are not.
    fn forget_implied(&mut self) {
        let empty = Merged::new();
        let visits = self.downwards(&empty);
        let mut implied = vec![false; visits.len()];
        let mut forgotten = Vec::new();
        for (number, visit) in visits.iter().enumerate().skip(1).rev() {
            match self.slots[visit.slot].says {
                Says::Nothing => {}
                Says::Implied if !implied[number] => forgotten.push(visit.slot),
                _ => implied[visit.parent()] = true,
            }
        }
        for slot in forgotten {
            self.slots[slot].says = Says::Nothing;
        }
    }

    /// Lays what one slot says over another of the same path; which children must still be moved there.
    fn merge(&mut self, there: Slot, child: Slot) -> Vec<Slot> {
        let (symlink, moved_symlink) = (self.is_symlink(there), self.is_symlink(child));
        let children = self.slots.detach(&self.tree, child);
        let from = self.slots[child].take();
        let path = &mut self.slots[there];
        path.whiteout |= from.whiteout;
        path.opaque |= from.opaque;
        path.fresh |= from.fresh;
        let later = from.order >= path.order;
        path.order = path.order.max(from.order);
        let is_directory = |says: &Says| matches!(says, Says::Directory(_) | Says::Implied);
        match (&path.says, &from.says) {
            (_, Says::Nothing) => {}
            (Says::Nothing, _) => path.says = from.says,
            (Says::Directory(_), Says::Implied) => {}
            (Says::Implied, Says::Directory(_)) => path.says = from.says,
            // What only stands below the link goes on through it.
            (Says::Inode(_), Says::Implied) if symlink => {}
            (Says::Implied, Says::Inode(_)) if moved_symlink && !later => path.says = from.says,
            (a, b) if is_directory(a) && is_directory(b) => {
                if later {
                    path.says = from.says;
                }
            }
            (_, b) if later => {
                path.fresh |= is_directory(b);
                path.says = from.says;
                self.slots.detach(&self.tree, there);
            }
            (a, b) => {
                path.fresh |= is_directory(a) && !is_directory(b);
                return Vec::new();
            }
        }
        children
    }
}

fn link_below(id: Id, below: &Merged) -> Option<(&[u8], Option<Id>)> {
    Some((below.target(id)?, Some(id)))
}

fn names<'a>(way: impl IntoIterator<Item = &'a Step>) -> TreePath {
    TreePath::from(way.into_iter().skip(1).map(|step| step.name.clone()).collect::<Vec<_>>())
}

fn too_many() -> Error {
    Error::refused(format!("more than {LINKS_MAX} symlinks on its way, perhaps a loop"))
}
