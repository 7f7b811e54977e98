//! A layer's paths on their way through the passes: where each stands, and what of the tree below can be seen there.

use super::merged::{Id, Merged};
use super::upper::{Path, Says, Slot};
use crate::tar::TreePath;
use erofs::Kind;

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

/// A path on the way down: its last name, and the visit of its parent.
pub(super) struct Visit<'a> {
    pub(super) slot: Slot,
    pub(super) name: &'a [u8],
    pub(super) parent: usize,
    pub(super) lower: Lower,
    /// Whether anything must stand here in the layer.
    pub(super) effective: bool,
}

/// The path of a visit. It is put together when it is needed: millions of them would fill the memory.
pub(super) fn path_of(visits: &[Visit<'_>], mut number: usize) -> TreePath {
    let mut parts = Vec::new();
    while number != 0 {
        parts.push(visits[number].name.to_vec());
        number = visits[number].parent;
    }
    parts.reverse();
    TreePath::from(parts)
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
            (_, Lower::Node(id)) if below.node(id).kind == Kind::Directory => lower,
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
