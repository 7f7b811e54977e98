//! What a layer assumes of the tree below it, in the words of the store's references.
//!
//! A conversion keeps the lists of all its layers until it publishes them, and a list can have megabytes: they are kept as
//! they are written ([`AssumeList`]), and are read where one is looked at.

use crate::below::Below;
use crate::error::{Error, Result};
use crate::limits::{LISTED, check_listed};
use crate::tar::TreePath;
use crate::tree::{Assumption, Found};
use blobstore::refs::{Assume, Assumed, Attributes, Target};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// A layer's list of assumptions, as its own index has it: JSON, or no bytes where there is none. Copies share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct AssumeList(Bytes);

impl AssumeList {
    /// Writes a list, of so many bytes at most.
    pub(crate) fn write(assumes: impl IntoIterator<Item = Assume>, most: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        for assume in assumes {
            bytes.push(if bytes.is_empty() { b'[' } else { b',' });
            serde_json::to_writer(&mut bytes, &assume).map_err(failed)?;
            check_listed(bytes.len() + 1, most)?;
        }
        if !bytes.is_empty() {
            bytes.push(b']');
        }
        bytes.shrink_to_fit();
        Ok(Self(bytes.into()))
    }

    /// The assumptions.
    pub(crate) fn read(&self) -> Result<Vec<Assume>> {
        match self.is_empty() {
            true => Ok(Vec::new()),
            false => serde_json::from_slice(&self.0).map_err(failed),
        }
    }

    /// Whether all of it holds of a tree.
    pub(crate) fn all_hold(&self, below: &Below) -> bool {
        self.read().is_ok_and(|assumes| all_hold(&assumes, below))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Records have it as references do.
impl Serialize for AssumeList {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.read().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AssumeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Self::write(Vec::deserialize(deserializer)?, LISTED).map_err(de::Error::custom)
    }
}

fn failed(error: serde_json::Error) -> Error {
    Error::failed("listing what was taken from below", error)
}

/// An assumption as references and the layer's own index write it.
pub(crate) fn assume(assumption: Assumption) -> Assume {
    let what = match assumption.found {
        Found::Directory(attributes) => Assumed::Directory(Attributes {
            mode: u32::from(attributes.mode),
            uid: attributes.uid,
            gid: attributes.gid,
            xattrs: (*attributes.xattrs).clone(),
        }),
        Found::Absent => Assumed::Absent,
        Found::NoDirectory => Assumed::NoDirectory,
        Found::Symlink(target) => Assumed::Symlink(Target(target)),
        Found::NoLink => Assumed::NoLink,
        Found::Present => Assumed::Present,
        Found::Copied => Assumed::Copied,
    };
    Assume { path: assumption.path, what }
}

/// Whether assumptions of a reference hold of a tree; one that is not understood never does.
pub(crate) fn all_hold(assumes: &[Assume], below: &Below) -> bool {
    assumes.iter().all(|assume| holds(assume, below))
}

fn holds(assume: &Assume, below: &Below) -> bool {
    let found = match &assume.what {
        Assumed::Directory(attributes) => Found::Directory(erofs::Attributes {
            mode: (attributes.mode & 0o7777) as u16,
            uid: attributes.uid,
            gid: attributes.gid,
            xattrs: attributes.xattrs.clone().into(),
            ..erofs::Attributes::default()
        }),
        Assumed::Absent => Found::Absent,
        Assumed::Present => Found::Present,
        Assumed::NoDirectory => Found::NoDirectory,
        Assumed::Symlink(Target(target)) => Found::Symlink(target.clone()),
        Assumed::NoLink => Found::NoLink,
        Assumed::Copied | Assumed::Collapsed | Assumed::Unknown => return false,
    };
    let path = TreePath::clean(&assume.path).map(|path| path.to_bytes());
    path.is_ok_and(|path| below.merged.holds(&Assumption { path, found }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<Assume> {
        let directory =
            Attributes { mode: 0o755, xattrs: [(b"user.a".to_vec(), vec![0])].into(), ..Attributes::default() };
        let found = [Assumed::Present, Assumed::Directory(directory), Assumed::Symlink(Target(b"\xff".to_vec()))];
        found.into_iter().map(|what| Assume { path: b"usr/\xfe".to_vec(), what }).collect()
    }

    #[test]
    fn a_list_is_written_as_indexes_and_records_have_it_and_comes_back() {
        for assumes in [list(), list()[..1].to_vec()] {
            let listed = AssumeList::write(assumes.clone(), 1000).unwrap();
            let json = serde_json::to_vec(&assumes).unwrap();
            assert_eq!((listed.bytes(), listed.read().unwrap()), (&json[..], assumes));
            assert_eq!(serde_json::to_vec(&listed).unwrap(), json);
            assert_eq!(serde_json::from_slice::<AssumeList>(&json).unwrap().bytes(), json);
        }
        assert!(AssumeList::write([], 0).unwrap().bytes().is_empty());
        assert_eq!(serde_json::to_string(&AssumeList::default()).unwrap(), "[]");
        assert!(serde_json::from_str::<AssumeList>("[]").unwrap().is_empty());
    }

    #[test]
    fn a_list_is_refused_past_its_bound() {
        let length = serde_json::to_vec(&list()).unwrap().len();
        assert!(AssumeList::write(list(), length).is_ok());
        let error = AssumeList::write(list(), length - 1).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("take too much from the trees below"), "{error}");
    }
}
