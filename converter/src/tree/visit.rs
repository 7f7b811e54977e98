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

/// A path on the way down: its last name, and the visit of its parent. A layer can have millions.
#[derive(Debug)]
pub(super) struct Visit<N> {
    pub(super) name: N,
    pub(super) slot: Slot,
    parent: u32,
    pub(super) lower: Lower,
    /// Whether the layer says something of paths below it.
    pub(super) has_children: bool,
    /// Whether anything must stand here in the layer.
    pub(super) effective: bool,
}

impl<N> Visit<N> {
    /// The visit of a path in the directory that was visited as number `parent`.
    pub(super) fn new(parent: usize, name: N, slot: Slot, lower: Lower) -> Self {
        // Fits: see `limits::PATHS`.
        Self { name, slot, parent: parent as u32, lower, has_children: false, effective: false }
    }

    /// The number of its parent's visit.
    pub(super) fn parent(&self) -> usize {
        self.parent as usize
    }
}

/// The path of a visit. It is put together when it is needed: millions of them would fill the memory.
pub(super) fn path_of<N: AsRef<[u8]>>(visits: &[Visit<N>], mut number: usize) -> TreePath {
    let mut parts = Vec::new();
    while number != 0 {
        parts.push(visits[number].name.as_ref().to_vec());
        number = visits[number].parent();
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
