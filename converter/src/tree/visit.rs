//! A layer's paths on their way through the passes: where each stands, and what of the tree below can be seen there.

use super::merged::{Id, Merged};
use super::paths::{Path, Slot};
use super::upper::Says;

/// What the tree below has at a path, as this layer's parent directories let it be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lower {
    /// The layer itself hides whatever may be there.
    Hidden,
    /// Nothing.
    Absent,
    /// This node.
    Node(Id),
}

/// A path on the way down, and the visit of its parent. A layer can have millions.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) slot: Slot,
    parent: u32,
    pub(super) lower: Lower,
    /// Whether the layer says something of paths below it.
    pub(super) has_children: bool,
    /// Whether anything must stand here in the layer.
    pub(super) effective: bool,
}

impl Visit {
    /// The visit of a path in the directory that was visited as number `parent`.
    pub(super) fn new(parent: usize, slot: Slot, lower: Lower) -> Self {
        // Fits: see `limits::PATHS`.
        Self { slot, parent: parent as u32, lower, has_children: false, effective: false }
    }

    /// The number of its parent's visit.
    pub(super) fn parent(&self) -> usize {
        self.parent as usize
    }
}

impl Path {
    /// Whether the layer hides what the tree below has in this directory.
    pub(super) fn hides(&self) -> bool {
        self.whiteout || self.fresh || self.opaque
    }

    /// What of the tree below can be seen in this directory, given what can be seen of itself.
    pub(super) fn inside(&self, lower: Lower, below: &Merged) -> Lower {
        match (&self.says, lower) {
            (Says::Inode(_) | Says::Link(_), _) | (_, Lower::Hidden) => Lower::Hidden,
            _ if self.hides() => Lower::Hidden,
            (_, Lower::Node(id)) if below.is_directory(id) => lower,
            _ => Lower::Absent,
        }
    }
}

/// What is seen of a name in a directory of which this is seen.
pub(super) fn step(lower: Lower, name: &[u8], below: &Merged) -> Lower {
    match lower {
        Lower::Node(id) => below.child(id, name).map_or(Lower::Absent, Lower::Node),
        other => other,
    }
}
