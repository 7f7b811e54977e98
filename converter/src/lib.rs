//! OCI images, tar files and directories to Lamina layers.
//!
//! * [`source`]: where layers come from: image layouts, registries, tar files, directories; every digest checked.
//! * [`registry`]: how registries are spoken to.
//! * [`tar`]: a tar stream of any dialect as plain entries.
//! * [`tree`]: a layer's entries applied to the tree below it, in overlayfs's own form.
//! * [`pack`]: file contents to the data space, cut into chunks.
//! * [`convert`](mod@convert): all of it in order; `publish`: the references in the store.
//! * `push`: to a registry, beside the original.
//! * [`compare`](mod@compare): whether the store shows what a source holds.
//!
//! A conversion is deterministic (equal input and options give equal bytes) and lossless, or the input is refused
//! ([`Error::Refused`]) and nothing is written. This crate knows OCI, tar and overlayfs's layers; what an EROFS image and
//! a layer file look like is known to `erofs` and `blobstore`.

mod assume;
mod below;
mod build;
pub mod compare;
pub mod convert;
pub mod error;
pub mod pack;
mod publish;
mod push;
pub mod registry;
pub mod report;
pub mod source;
mod stage;
pub mod tar;
pub mod tree;

pub use compare::{Comparison, compare};
pub use convert::{Options, Progress, convert};
pub use error::{Error, Refusal, Result};
pub use report::{ImageReport, LayerReport, PushReport, Report};
pub use source::{Platforms, Source};
