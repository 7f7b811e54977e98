//! OCI images, tar files and directories to Lamina layers.

pub mod error;
pub mod pack;
pub mod tar;
pub mod tree;

pub use error::{Error, Refusal, Result};
