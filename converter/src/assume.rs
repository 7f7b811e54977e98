//! What a layer assumes of the tree below it, in the words of the store's references.

use crate::below::Below;
use crate::tar::TreePath;
use crate::tree::{Assumption, Found};
use blobstore::refs::{Assume, Assumed, Attributes, Target};

/// An assumption as references and the layer's own index write it.
pub(crate) fn assume(assumption: &Assumption) -> Assume {
    let what = match &assumption.found {
        Found::Directory(attributes) => Assumed::Directory(Attributes {
            mode: u32::from(attributes.mode),
            uid: attributes.uid,
            gid: attributes.gid,
            xattrs: (*attributes.xattrs).clone(),
        }),
        Found::Absent => Assumed::Absent,
        Found::NoDirectory => Assumed::NoDirectory,
        Found::Symlink(target) => Assumed::Symlink(Target(target.clone())),
        Found::NoLink => Assumed::NoLink,
        Found::Present => Assumed::Present,
        Found::Copied => Assumed::Copied,
    };
    Assume { path: assumption.path.to_bytes(), what }
}

/// Whether an assumption of a reference holds of a tree; one that is not understood never does.
pub(crate) fn holds(assume: &Assume, below: &Below) -> bool {
    let found = match &assume.what {
        Assumed::Directory(attributes) => Found::Directory(erofs::Attributes {
            mode: (attributes.mode & 0o7777) as u16,
            uid: attributes.uid,
            gid: attributes.gid,
            xattrs: attributes.xattrs.clone().into(),
            ..erofs::Attributes::default()
        }),
        Assumed::Absent => Found::Absent,
        Assumed::Present => Found::Present,
        Assumed::NoDirectory => Found::NoDirectory,
        Assumed::Symlink(Target(target)) => Found::Symlink(target.clone()),
        Assumed::NoLink => Found::NoLink,
        Assumed::Copied | Assumed::Collapsed | Assumed::Unknown => return false,
    };
    TreePath::clean(&assume.path).is_ok_and(|path| below.merged.holds(&Assumption { path, found }))
}
