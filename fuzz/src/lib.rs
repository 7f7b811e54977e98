//! What the fuzz targets do with their bytes.
//!
//! Bytes from a fuzzer have wrong checksums and digests, and would be refused at the door. So each target first makes
//! those right ([`repair`](repair_tar)) and then looks at what must hold of whatever was accepted. A target fails by a
//! panic (overflow included), by a time-out, or by using too much memory.

mod index;
mod layer;
mod metadata;
mod oci;
mod profile;
mod stream;

pub use index::layer_file;
pub use layer::{convert_tar, repair_tar};
pub use metadata::metadata;
pub use oci::{documents, envelope, names};
pub use profile::{list, profile, profiles};
pub use stream::stream;

use std::path::{Path, PathBuf};

/// Where temporary files go: memory, where there is a file system for that.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
