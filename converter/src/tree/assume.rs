//! What a layer took from the tree below it, or relied on: a layer may be used again over another tree where all of
//! that holds.

use super::merged::Merged;
use crate::tar::TreePath;
use erofs::{Attributes, Kind};

/// Something that holds of the tree below a layer, at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumption {
    /// Where.
    pub path: TreePath,
    /// What stands there.
    pub found: Found,
}

/// What stands at a path of the tree below. Times do not count.
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
    Something,
    /// Nothing.
    Nothing,
    /// A file whose contents were copied: holds nowhere else.
    Contents,
}

impl Merged {
    /// Whether an assumption holds of this tree.
    pub fn holds(&self, assumption: &Assumption) -> bool {
        let node = self.at(&assumption.path).map(|id| self.node(id));
        match &assumption.found {
            Found::Directory(want) if assumption.path.is_root() && node.is_none() => *want == default_directory(),
            Found::Directory(want) => {
                node.is_some_and(|node| node.kind == Kind::Directory && without_time(&node.attributes) == *want)
            }
            Found::NoDirectory => node.is_none_or(|node| node.kind != Kind::Directory),
            Found::Symlink(want) => {
                node.is_some_and(|node| matches!(&node.kind, Kind::Symlink(target) if target == want))
            }
            Found::NoLink => node.is_none_or(|node| !matches!(node.kind, Kind::Symlink(_))),
            Found::Something => node.is_some(),
            Found::Nothing => node.is_none(),
            Found::Contents => false,
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
