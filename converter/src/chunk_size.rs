//! The chunk size that is aimed at: the rule, said once for everybody who asks for one.

use crate::error::{Error, Result};
use blobstore::layer::format::{BLOCK, MAX_FRAME};
use std::fmt;
use std::str::FromStr;

/// The chunk size that a conversion aims at, in bytes: a multiple of 4096, 4 MiB at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// What is aimed at unless the caller asks for another.
    pub const DEFAULT: Self = Self(512 << 10);

    /// The largest.
    pub const MAX: Self = Self(4 << 20);

    /// A chunk size of so many bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] for one that is not possible.
    pub fn new(bytes: u32) -> Result<Self> {
        match bytes > 0 && u64::from(bytes).is_multiple_of(BLOCK) && bytes <= Self::MAX.0 {
            true => Ok(Self(bytes)),
            false => Err(Error::refused(format!(
                "a chunk size of {bytes}: multiples of {BLOCK} up to {} are possible",
                Self::MAX
            ))),
        }
    }

    /// In bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }
}

// A file's last chunk takes what is left of it, up to a quarter more than the size.
const _: () = assert!(ChunkSize::MAX.0 + ChunkSize::MAX.0 / 4 <= MAX_FRAME);

impl Default for ChunkSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for ChunkSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = text.parse().map_err(|e| Error::refused(format!("a chunk size of '{text}': {e}")))?;
        Self::new(bytes)
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_whole_blocks_up_to_the_largest() {
        for good in ["4096", "262144", "4194304"] {
            assert_eq!(good.parse::<ChunkSize>().unwrap().to_string(), good);
        }
        for bad in ["0", "4095", "4097", "4198400", "4294967295", "-1", "x", ""] {
            assert!(bad.parse::<ChunkSize>().unwrap_err().is_refusal(), "{bad}");
        }
    }
}
