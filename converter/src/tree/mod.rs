//! A layer's entries, applied to the tree below, as the tree that overlayfs needs.
//!
//! An OCI layer does not stand alone: a directory that it only implies, the root, and hard links to lower files take
//! attributes or contents from the layers below. [`Upper`] collects what a layer says about each path,
//! [`Upper::settle`] decides it over a [`Merged`] tree and gives a [`Settled`] layer in overlayfs's own form (a whiteout
//! is a character device 0:0, an opaque directory has the attribute [`OPAQUE`]), and [`Merged::overlay`] makes the tree
//! for the next layer. What the layer took from below is listed with it ([`Assumption`]). [`collapse()`] makes several
//! layers one.
//!
//! * Whiteouts and opaque marks act on lower layers only, in any order, and only those with something to hide are kept.
//! * An implied directory has its lower mode, owner and attributes, or is 0755 root where there is none; its time is 0.
//! * A hard link to a lower file copies that file into this layer, under both names: what copying up and linking on an
//!   overlay gives. Other names of the lower file are not touched, as overlayfs does not touch them.
//! * A character device 0:0 of the image is what overlayfs takes it for: it hides the name, and shows nothing.
//! * An entry, mark or hard link's target whose parent is a symbolic link, in the layer or below, belongs where that leads
//!   inside the root, unless the layer makes the parent a directory. Last names are never followed.

mod assume;
mod collapse;
mod emit;
mod links;
mod merged;
mod paths;
mod settle;
mod through;
mod upper;
mod visit;
mod xattr;

pub use assume::{Assumption, Found};
pub use collapse::collapse;
pub use merged::{Id as NodeId, Merged, Node, OPAQUE, Placed};
pub use settle::Settled;
pub use upper::{Meaning, Upper};
pub use xattr::{Xattrs, keep_possible};

#[cfg(test)]
mod collapse_tests;
#[cfg(test)]
pub(crate) mod model_tests;
#[cfg(test)]
mod symlink_tests;
#[cfg(test)]
mod tests;
