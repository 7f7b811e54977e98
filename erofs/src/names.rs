//! File names, one behind the other: what stands for a name elsewhere is four bytes. Nothing is taken out again.

use std::num::NonZeroU32;

use crate::tree::MAX_NAME;

/// A name that a [`crate::Tree`] keeps. It means nothing in another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(NonZeroU32);

/// Names of up to 255 bytes, 4 GiB of them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    /// Of each its length, in a byte, and its bytes. A name is where its bytes begin.
    bytes: Vec<u8>,
}

impl Names {
    /// Keeps a name; `None` where it is too long, or one too many.
    pub(crate) fn keep(&mut self, name: &[u8]) -> Option<Name> {
        let length = u8::try_from(name.len()).ok().filter(|_| name.len() <= MAX_NAME)?;
        let place = NonZeroU32::new(u32::try_from(self.bytes.len() + 1).ok()?)?;
        self.bytes.push(length);
        self.bytes.extend_from_slice(name);
        Some(Name(place))
    }

    /// The bytes of a name.
    pub(crate) fn get(&self, name: Name) -> &[u8] {
        let place = name.0.get() as usize;
        &self.bytes[place..][..usize::from(self.bytes[place - 1])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_one_behind_the_other() {
        let mut names = Names::default();
        let kept: Vec<_> = [&b"a"[..], b"", &[b'x'; 255]].into_iter().map(|name| names.keep(name).unwrap()).collect();
        assert_eq!(kept.iter().map(|name| names.get(*name).len()).collect::<Vec<_>>(), [1, 0, 255]);
        assert_eq!(names.get(kept[0]), b"a");
        assert_eq!(names.keep(&[b'x'; 256]), None);
    }
}
