//! Names of tar entries: byte strings, cleaned, and taken from the image's root.

use crate::error::{Error, Result, show};
use std::fmt;

/// What the kernel takes as a path, without the NUL at the end.
pub(crate) const PATH_MAX: usize = 4095;

/// What a directory entry can hold.
pub const NAME_MAX: usize = 255;

/// What the name of a whiteout starts with.
pub const WHITEOUT: &[u8] = b".wh.";

/// A path inside an image: its components, from the root. No component is empty, `.` or `..`, or holds a slash or NUL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath(Vec<Vec<u8>>);

impl TreePath {
    /// Cleans a tar name: leading, double and trailing slashes and `.` go, `x/..` goes, and a path that leaves the
    /// root is refused.
    pub fn clean(raw: &[u8]) -> Result<Self> {
        if raw.len() > PATH_MAX {
            return Err(Error::refused(format!("the path is too long: {} bytes, {PATH_MAX} are possible", raw.len())));
        }
        if raw.contains(&0) {
            return Err(Error::refused("invalid path: it holds a NUL byte"));
        }
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for part in raw.split(|&b| b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop().ok_or_else(|| Error::refused("invalid path: '..' leads outside the image's root"))?;
                }
                _ => parts.push(checked(part)?.to_vec()),
            }
        }
        Ok(Self(parts))
    }

    /// The components.
    pub fn parts(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory and the name in it; `None` for the root.
    pub fn split(&self) -> Option<(&[Vec<u8>], &[u8])> {
        self.0.split_last().map(|(name, parents)| (parents, name.as_slice()))
    }

    /// The path of a name in this directory.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut parts = self.0.clone();
        parts.push(name.to_vec());
        Self(parts)
    }

    /// The components joined by slashes, without one in front; empty for the root.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.join(&b'/')
    }
}

/// A component that a file system can hold. A whiteout's own name is never stored, so only what it hides must fit.
fn checked(part: &[u8]) -> Result<&[u8]> {
    let stored = part.strip_prefix(WHITEOUT).unwrap_or(part);
    match stored.len() {
        0..=NAME_MAX => Ok(part),
        n => Err(Error::refused(format!("a name in the path is too long: {n} bytes, {NAME_MAX} are possible"))),
    }
}

impl From<Vec<Vec<u8>>> for TreePath {
    fn from(parts: Vec<Vec<u8>>) -> Self {
        Self(parts)
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { f.write_str(&show(&self.to_bytes())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(raw: &[u8]) -> Vec<u8> {
        TreePath::clean(raw).unwrap().to_bytes()
    }

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        for raw in [&b"a/b"[..], b"/a/b", b"./a//b/", b"a/x/../b", b"a/./b/."] {
            assert_eq!(clean(raw), b"a/b");
        }
        assert_eq!(clean(b"./"), b"");
        assert_eq!(clean(b"\xff\xfe"), b"\xff\xfe");
    }

    #[test]
    fn a_path_out_of_the_root_or_too_long_is_refused() {
        for raw in [&b".."[..], b"../../x", b"a/../../x", b"a\0b", &[b'x'; 256], &[b'/'; 5000]] {
            assert!(TreePath::clean(raw).is_err(), "{raw:?}");
        }
        let whiteout = [WHITEOUT, &[b'x'; 255]].concat();
        assert!(TreePath::clean(&whiteout).is_ok());
    }
}
