//! What is recorded of a snapshot, and how it is written in the database: JSON, one value a snapshot.
//!
//! Unknown fields are ignored and missing ones have defaults, so that an older and a newer build read each other's
//! records; a change that an older build must not ignore raises the database's version (see `state`).

use crate::error::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Labels of a snapshot.
pub(crate) type Labels = BTreeMap<String, String>;

/// What a snapshot is, in containerd's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Active,
    View,
    Committed,
}

/// UTC, to the nanosecond: containerd compares what it was told with what it is told later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

impl Time {
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }
}

/// What a snapshot takes by itself, without its parents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Bytes allocated on disk.
    pub(crate) size: u64,
    pub(crate) inodes: u64,
}

/// One layer, as laminad resolved it. Everything but the id and `root_opaque` is handed back to laminad untouched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// 64 lower-case hex digits.
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) head: u64,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) format: u32,
    #[serde(default)]
    pub(crate) generation: u32,
    #[serde(default)]
    pub(crate) root_opaque: bool,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// Exactly as the caller named it; "" = none.
    #[serde(default)]
    pub(crate) parent: String,
    #[serde(default)]
    pub(crate) labels: Labels,
    pub(crate) created: Time,
    pub(crate) updated: Time,
    /// Number of its directory. A remote snapshot has none, nor has a view of something.
    #[serde(default)]
    pub(crate) dir: Option<u64>,
    /// The whole stack, bottom to top, of a remote snapshot: nothing below it is looked at. None for all others.
    #[serde(default)]
    pub(crate) remote: Option<Vec<Layer>>,
    /// Layers stacked between its own directory and its parent (workspace, toolkits), bottom to top.
    #[serde(default)]
    pub(crate) composed: Vec<Layer>,
    /// Of a committed snapshot.
    #[serde(default)]
    pub(crate) usage: Usage,
}

/// Whether a text is what a layer's id is, and what follows `sha256:`: 64 lower-case hex digits.
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Record {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context(|| "cannot encode a snapshot's record".into())
    }

    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).context(|| format!("the record of snapshot {name:?} cannot be read"))
    }

    /// Every layer that it names.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.remote.iter().flatten().chain(&self.composed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_later_build_can_be_read_and_a_short_one_too() {
        let text =
            br#"{"kind":"committed","created":{"seconds":1,"nanos":2},"updated":{"seconds":1,"nanos":2},"novel":7,
                        "remote":[{"id":"ab"}]}"#;
        let record = Record::decode("x", text).unwrap();
        assert_eq!(record.kind, Kind::Committed);
        assert_eq!(record.layers().map(|layer| layer.id.as_str()).collect::<Vec<_>>(), ["ab"]);
        assert_eq!(Record::decode("x", &record.encode().unwrap()).unwrap(), record);
    }
}
