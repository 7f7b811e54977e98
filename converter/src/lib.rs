//! OCI images, tar files and directories to Lamina layers.
//!
//! * [`options`]: what may be asked of a conversion ([`ChunkSize`]); [`progress`] and [`report`]: what is told of it, while
//!   it runs and at its end. * [`error`]: what can go wrong. * [`limits`]: how much an input may ask for.
//! * [`source`]: where layers come from: image layouts, registries, tar files, directories; every digest checked.
//! * [`media_type`]: by what images name their parts. * [`registry`]: how registries are spoken to.
//! * [`convert`](mod@convert): all of it in order, `session` layer by layer; `work`: where layers wait, and are kept for
//!   others; `publish`: the references in the store; `ready`: layers that can be published.
//! * `build`: one layer, from its input to its file, with the rooms that follow.
//! * [`tar`]: a tar stream of any dialect as plain entries.
//! * [`read_entries`] and what else is in `entries`: all of a tar or a directory, into a tree and a spool of contents.
//! * [`tree`]: a layer's entries applied to the tree below it, in overlayfs's own form; `assume`: what a layer took from
//!   there, as references say it.
//! * [`pack`]: file contents to the data space, cut into chunks; [`started_files`]: which of them starts read, so that they
//!   come first.
//! * `below`: stored layers as the tree that the next one lies over; `contents`: the bytes of their files.
//! * `collapse`: fewer layers that show the same.
//! * `push`: to a registry, beside the original.
//! * [`export`](mod@export): back to an image, a tar or a directory.
//! * [`model`]: the image specification once more, applied literally; [`compare`](mod@compare): whether the store shows
//!   what it says of a source.
//!
//! A conversion is deterministic (equal input and options give equal bytes) and lossless, or the input is refused
//! ([`Error::Refused`]) and nothing is written. This crate knows OCI, tar and overlayfs's layers; what an EROFS image and
//! a layer file look like is known to `erofs` and `blobstore`.

mod assume;
mod below;
mod build;
mod chunk_size;
mod collapse;
pub mod compare;
pub mod convert;
mod entries;
pub mod error;
pub mod export;
pub mod limits;
pub mod media_type;
mod metadata;
pub mod model;
pub mod options;
pub mod pack;
pub mod progress;
mod publish;
mod push;
mod ready;
pub mod registry;
pub mod report;
mod session;
pub mod source;
mod started;
mod stored;
pub mod tar;
pub mod tree;
mod work;

pub use chunk_size::ChunkSize;
pub use compare::{Comparison, compare};
pub use convert::{convert, convert_until};
pub use entries::read_entries;
pub use error::{Error, Refusal, Result};
pub use export::{Exported, Origin, Output, export};
pub use options::Options;
pub use pack::First;
pub use progress::{Event, Progress};
pub use report::{
    CollapsedLayer, CollapsedReport, ImageReport, LayerReport, MadeReport, PushReport, PushedImage, Report,
};
pub use source::{Platforms, Source};
pub use started::started_files;
