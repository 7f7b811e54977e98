//! OCI images, tar files and directories to Lamina layers.

pub mod error;
pub mod tar;

pub use error::{Error, Refusal, Result};
