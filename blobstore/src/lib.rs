//! Lamina's layer files, the store that holds them, the node's cache, and the fetching between the two.
//!
//! * [`layer`]: the layer file: one zstd stream that is a whole EROFS image, read lazily by an index in front of it.
//! * [`store`]: where layer files and references lie: a narrow trait, its backends, its conformance suite.
//! * [`refs`]: the store's small objects: which stack of layers a chain id, an image or a tag stands for.
//! * [`collect`]: deleting what of a store nothing needs, and holding what somebody does.
//! * [`fsck`]: looking at everything that a store holds.
//! * [`cache`]: what a node keeps: heads (metadata and index) and compressed chunks.
//! * [`fetch`]: a chunk, from memory, the cache or the store: verified before anybody sees it.
//! * [`profile`]: what starts read of a layer, so that the next ones find it here.
//! * [`meter`]: the counters of all this.
//! * [`https`]: what HTTP clients share, those of the store and of others.
//! * [`causes`](fn@causes): errors in words.
//! * [`small_file`]: what people name is read up to a limit.
//!
//! This crate knows chunks and names. It does not know EROFS (metadata is bytes to it), FUSE or containerd.

pub mod cache;
mod causes;
pub mod collect;
pub mod fetch;
pub mod fsck;
pub mod https;
pub mod layer;
pub mod meter;
mod pause;
pub mod profile;
pub mod refs;
pub mod small_file;
pub mod store;

pub use causes::causes;
