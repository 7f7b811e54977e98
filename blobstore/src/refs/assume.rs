//! What a layer took from the tree below it when it was made.
//!
//! An OCI layer can imply directories it does not contain, and link to files below it; what overlayfs must show of
//! these is copied from below. The layer is right under another parent exactly where everything listed here holds.

use super::lossless::{join, split};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One assumption of a layer about the tree below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AssumeWire", into = "AssumeWire")]
pub struct Assume {
    /// Path from the root, without a leading slash; empty = the root itself. Any bytes but NUL.
    pub path: Vec<u8>,
    /// What must lie there.
    pub what: Assumed,
}

/// What must lie at a path below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Assumed {
    /// Nothing.
    Absent,
    /// Something: the layer hides it.
    Present,
    /// No directory: nothing, or something else.
    NoDirectory,
    /// A symbolic link with this target, which the layer went through.
    Symlink(Target),
    /// No symbolic link, which the layer would have gone through: nothing, or something else.
    NoLink,
    /// A directory with these attributes. (Its time is no assumption: an inherited time is a fixed value.)
    Directory(Attributes),
    /// A file of which the layer has a copy, and nothing is said of what it was: holds nowhere else.
    Copied,
    /// Exactly the tree that the layer was made over: it is several layers made one, and holds nowhere else.
    Collapsed,
    /// An assumption of a kind that this build does not know: holds nowhere.
    #[serde(other)]
    Unknown,
}

/// Target of an assumed symbolic link: any bytes but NUL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "TargetWire", into = "TargetWire")]
pub struct Target(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
struct TargetWire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_b64: Option<String>,
}

impl From<Target> for TargetWire {
    fn from(Target(target): Target) -> Self {
        let (target, target_b64) = split(target);
        Self { target, target_b64 }
    }
}

impl TryFrom<TargetWire> for Target {
    type Error = String;

    fn try_from(wire: TargetWire) -> Result<Self, String> {
        join("target", wire.target, wire.target_b64).map(Self)
    }
}

/// Attributes of an assumed directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// The 12 permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes by full name.
    #[serde(default, with = "xattrs", skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct AssumeWire {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(flatten)]
    what: Assumed,
}

impl From<Assume> for AssumeWire {
    fn from(assume: Assume) -> Self {
        let (path, path_b64) = split(assume.path);
        let what = assume.what;
        Self { path, path_b64, what }
    }
}

impl TryFrom<AssumeWire> for Assume {
    type Error = String;

    fn try_from(wire: AssumeWire) -> Result<Self, String> {
        let path = join("path", wire.path, wire.path_b64)?;
        let what = wire.what;
        Ok(Self { path, what })
    }
}

/// Extended attributes as a list of `{name | name_b64, value | value_b64}`, in byte order of the names.
mod xattrs {
    use super::super::lossless::{join, split};
    use super::BTreeMap;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Wire {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name_b64: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value_b64: Option<String>,
    }

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<Vec<u8>, Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map.iter().map(|(name, value)| {
            let (name, name_b64) = split(name.clone());
            let (value, value_b64) = split(value.clone());
            Wire { name, name_b64, value, value_b64 }
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, D::Error> {
        let list = Vec::<Wire>::deserialize(deserializer)?;
        list.into_iter()
            .map(|w| Ok((join("name", w.name, w.name_b64)?, join("value", w.value, w.value_b64)?)))
            .collect::<Result<_, String>>()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_and_xattrs_of_any_bytes_survive() {
        let xattrs = [(b"user.a".to_vec(), b"\xff\x00".to_vec()), (b"user.\xfe".to_vec(), b"v".to_vec())];
        let assume = Assume {
            path: b"usr/\xff\xfe".to_vec(),
            what: Assumed::Directory(Attributes { mode: 0o755, uid: 1, gid: 2, xattrs: xattrs.into() }),
        };
        let json = serde_json::to_string(&assume).unwrap();
        assert!(json.contains("\"path_b64\""), "{json}");
        assert_eq!(serde_json::from_str::<Assume>(&json).unwrap(), assume);
    }

    #[test]
    fn an_unknown_kind_is_kept_apart_from_all_that_can_hold() {
        let assume: Assume = serde_json::from_value(json!({"path": "a", "kind": "moon", "phase": 3})).unwrap();
        assert_eq!(assume.what, Assumed::Unknown);
        let absent: Assume = serde_json::from_value(json!({"path": "a", "kind": "absent"})).unwrap();
        assert_eq!(absent.what, Assumed::Absent);
        for target in [&b"usr/lib"[..], b"\xff"] {
            let link = Assume { path: b"lib".to_vec(), what: Assumed::Symlink(Target(target.to_vec())) };
            assert_eq!(serde_json::from_value::<Assume>(serde_json::to_value(&link).unwrap()).unwrap(), link);
        }
        assert!(serde_json::from_value::<Assume>(json!({"kind": "absent"})).is_err());
    }
}
