//! What a layer is made of, read into its tree and its spool: contents to the spool, the rest to the tree.
//!
//! * `tar`: the entries of a tar; whiteouts and opaque marks are what they mean there.
//! * `directory`: what a directory of this machine holds.
//!
//! Both count what they read against the same [`limits`](crate::limits). What lies below the layer is not known here.

mod directory;
mod tar;

pub(crate) use directory::read_directory;
pub use tar::read_entries;
