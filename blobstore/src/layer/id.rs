//! The name of a layer: the BLAKE3 of its whole index frame.

use std::fmt;
use std::str::FromStr;

/// BLAKE3 of a layer's index frame, header included. Whoever knows it can verify every byte of the layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId([u8; 32]);

/// A text that is not 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a layer id: 64 lower-case hex digits are")]
pub struct ParseIdError(pub String);

impl LayerId {
    /// The id of the layer whose index frame is `frame`.
    pub fn of(frame: &[u8]) -> Self {
        Self(*blake3::hash(frame).as_bytes())
    }

    /// The id with these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl fmt::Debug for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerId({self})")
    }
}

impl FromStr for LayerId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match blake3::Hash::from_hex(text) {
            Ok(hash) if lower => Ok(Self(*hash.as_bytes())),
            _ => Err(ParseIdError(text.to_owned())),
        }
    }
}

impl serde::Serialize for LayerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for LayerId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
