//! The names of chunks in the cache.
//!
//! Without a domain a chunk's name is its BLAKE3. With one it is the BLAKE3 of that, keyed by the domain: what was put
//! under one domain is not found under another, although the bytes are the same. So a tenant cannot learn from the time
//! that a read takes whether a tenant of another domain has read the same chunk on this node. It does not keep chunks
//! secret from who can read the directory.

use super::segment::Hash;

/// Turns hashes into names.
#[derive(Debug, Clone)]
pub(super) struct Domain(Option<Hash>);

impl Domain {
    /// The domain of this name; "" is none.
    pub(super) fn new(name: &str) -> Self {
        let key = || blake3::derive_key("Lamina 2026 names of chunks in a node's cache", name.as_bytes());
        Self((!name.is_empty()).then(key))
    }

    /// The name of a chunk (or of anything else that has a hash).
    pub(super) fn name(&self, hash: &Hash) -> Hash {
        match &self.0 {
            None => *hash,
            Some(key) => *blake3::keyed_hash(key, hash).as_bytes(),
        }
    }

    /// The name of a chunk with these bytes.
    pub(super) fn name_of(&self, bytes: &[u8]) -> Hash {
        self.name(blake3::hash(bytes).as_bytes())
    }
}
