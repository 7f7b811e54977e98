//! Hard links whose target had no entry yet when they came: resolved at the end of the layer, in the layer as it is
//! then, else in the tree below, whose file is then copied into the layer.

use super::assume::{Assumes, Assumption, Found};
use super::merged::{Id, Merged, Placed};
use super::paths::{Slot, Slots};
use super::upper::{Says, Upper, not_linkable};
use super::visit::{Lower, step};
use crate::error::{Error, Result};
use crate::limits::check_paths;
use crate::tar::TreePath;
use erofs::{Content, Kind, Node, NodeId};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// The node that a hard link is another name of.
enum Target {
    Inode(NodeId),
    Below(Id, TreePath),
}

/// Where a hard link leads, and over which others.
struct Chased {
    target: Target,
    over: Vec<Slot>,
}

impl Upper {
    /// Gives each hard link that had no target the inode of its target: in the layer as it is now, else below. The layer
    /// may have `most` paths then.
    pub(super) fn resolve_links(&mut self, below: &Merged, assumes: &mut Assumes, most: usize) -> Result<()> {
        let mut copied: HashMap<Id, NodeId> = HashMap::new();
        for slot in self.pending() {
            // An earlier one's way led over it.
            let Says::Link(_) = self.slots[slot].says else { continue };
            let resolved = self.resolve_link(slot, below, assumes, &mut copied);
            let resolved = resolved.and_then(|()| check_paths(self.paths(), most));
            resolved.map_err(|e| e.at(&self.path_of(slot).to_bytes()))?;
        }
        Ok(())
    }

    /// One of them, and all that its way leads over. What of the tree below was copied is in `copied`.
    fn resolve_link(
        &mut self,
        slot: Slot,
        below: &Merged,
        assumes: &mut Assumes,
        copied: &mut HashMap<Id, NodeId>,
    ) -> Result<()> {
        let Chased { target, over } = self.chase(slot, below, assumes)?;
        let inode = match target {
            Target::Inode(inode) => inode,
            Target::Below(id, target) => {
                let inode = match copied.entry(id) {
                    Entry::Occupied(copy) => *copy.get(),
                    Entry::Vacant(place) => *place.insert(self.copy_up(below, id)?),
                };
                let place = self.place(&target)?;
                self.put(place, Says::Inode(inode));
                assumes.push(Assumption { path: target, found: Found::Copied })?;
                inode
            }
        };
        for slot in over {
            self.put(slot, Says::Inode(inode));
        }
        Ok(())
    }

    /// What still holds an unresolved hard link. Not by their paths: of deep ones a million would fill the memory.
    fn pending(&mut self) -> Vec<Slot> {
        if !self.slots.iter().any(|path| matches!(path.says, Says::Link(_))) {
            return Vec::new();
        }
        let visits = self.downwards(&Merged::new());
        let links = visits.iter().filter(|visit| matches!(self.slots[visit.slot].says, Says::Link(_)));
        links.map(|visit| visit.slot).collect()
    }

    /// Follows a hard link to hard links to its end.
    fn chase(&self, start: Slot, below: &Merged, assumes: &mut Assumes) -> Result<Chased> {
        let mut over = vec![start];
        let mut seen = HashSet::from([start]);
        let mut slot = start;
        loop {
            let Says::Link(target) = self.slots[slot].says else { return Err(unresolved()) };
            let target = &TreePath::clean(&self.targets[target as usize])?;
            let led = self.lead_parent(target, below, assumes)?;
            let next = self.find(&led).filter(|&next| seen.insert(next));
            let target = match next.map(|next| (next, &self.slots[next].says)) {
                Some((_, Says::Inode(inode))) => Target::Inode(*inode),
                Some((_, Says::Directory(_) | Says::Implied)) => return Err(not_linkable(target)),
                Some((next, Says::Link(_))) => {
                    over.push(next);
                    slot = next;
                    continue;
                }
                _ => self.target_below(&led, below)?,
            };
            return Ok(Chased { target, over });
        }
    }

    fn target_below(&self, target: &TreePath, below: &Merged) -> Result<Target> {
        match self.visible(target, below) {
            Lower::Node(id) if below.is_directory(id) => Err(not_linkable(target)),
            Lower::Node(id) => Ok(Target::Below(id, target.clone())),
            _ => Err(Error::refused(format!("hard link to '{target}', which is not in the image"))),
        }
    }

    /// What can be seen of the tree below at a path once the layer is over it.
    fn visible(&self, path: &TreePath, below: &Merged) -> Lower {
        let mut slot = Some(Slots::ROOT);
        let mut lower = below.root().map_or(Lower::Absent, Lower::Node);
        for part in path.parts() {
            if let Some(directory) = slot {
                lower = self.slots[directory].inside(lower, below);
                slot = self.slots.find(&self.tree, directory, part);
            }
            lower = step(lower, part, below);
        }
        match slot.map(|slot| &self.slots[slot]) {
            Some(path) if path.whiteout => Lower::Hidden,
            _ => lower,
        }
    }

    fn copy_up(&mut self, below: &Merged, id: Id) -> Result<NodeId> {
        let found = below.node(id);
        let (kind, content) = match found.kind {
            Kind::File(content) => (Kind::File(Content::EMPTY), Some(content)),
            other => (other, None),
        };
        let node = self.node(Node { attributes: found.attributes, kind })?;
        self.copies.extend(content.map(|content| (node, Placed { layer: found.layer, content })));
        Ok(node)
    }
}

/// Cannot happen: links are resolved before anything asks; an error is better than a panic all the same.
pub(super) fn unresolved() -> Error {
    Error::failed("applying the layer", "a hard link was not resolved")
}
