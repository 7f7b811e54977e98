//! OCI digests: how images, their layers and containerd name things. Only SHA-256, as everywhere in practice.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// A SHA-256 digest: of a manifest, index, config or layer blob, a diff id (of the uncompressed tar) or a chain id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A text that is not `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a digest: 'sha256:' and 64 lower-case hex digits are")]
pub struct ParseDigestError(pub String);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest with these 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The digest that an object is kept under: the last part of its key, if it is one.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        key.rsplit('/').next().and_then(from_hex).map(Self)
    }

    /// The 64 hex digits without `sha256:`.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The chain id of the layer `diff` on `parent`, as the OCI image specification defines it: the diff id itself at
    /// the bottom, else SHA-256 of `parent`, a space and `diff`.
    pub fn chain(parent: Option<&Self>, diff: &Self) -> Self {
        match parent {
            None => *diff,
            Some(parent) => Self::of(format!("{parent} {diff}").as_bytes()),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix("sha256:").and_then(from_hex).map(Self).ok_or_else(|| ParseDigestError(text.to_owned()))
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let lower = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let hash = blake3::Hash::from_hex(text).ok()?;
    lower.then(|| *hash.as_bytes())
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_ids_follow_the_oci_specification() {
        let a = Digest::of(b"a");
        let b = Digest::of(b"b");
        assert_eq!(Digest::chain(None, &a), a);
        let text = format!("{a} {b}");
        assert_eq!(Digest::chain(Some(&a), &b), Digest::of(text.as_bytes()));
    }

    #[test]
    fn only_the_canonical_text_is_a_digest() {
        let good = Digest::of(b"").to_string();
        assert_eq!(good.parse::<Digest>().unwrap().to_string(), good);
        for bad in [&good[7..], &good[..70], &good.to_uppercase(), "sha512:00", ""] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
