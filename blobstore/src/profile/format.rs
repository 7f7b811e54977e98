//! The bytes of a profile, little endian:
//!
//! ```text
//!  0  8 bytes   magic "LAMINAPR"
//!  8  u16       major version, 1; another one is refused
//! 10  u16       minor version, 0; a higher one is accepted
//! 12  u32       runs, 1 to 65535
//! 16  32 bytes  layer id
//! 48  u32       number of chunks, at most 16384
//! 52  u32       0
//! 56  28 bytes for each chunk, ascending: u32 number, u32 runs that read it, u32 milliseconds, 16 bytes parts
//!     32 bytes  BLAKE3 of all before it
//! ```
//!
//! Read as what a stranger wrote. What is accepted names chunks that the layer has, once each, and nothing that overflows.

use super::{MAX_CHUNKS, Profile, Seen};
use crate::layer::{Index, LayerId};
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"LAMINAPR";
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
const HEADER: usize = 56;
const CHUNK: usize = 28;
const HASH: usize = 32;
/// Latest first read of a chunk, milliseconds: no start takes longer.
pub(super) const MAX_AFTER: u32 = 3_600_000;
const MAX_RUNS: u32 = u16::MAX as u32;
/// Longest profile, bytes.
pub(super) const MAX_LEN: usize = HEADER + MAX_CHUNKS * CHUNK + HASH;

/// What is wrong with the bytes of a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no profile of this layer: {0}")]
pub struct Malformed(pub &'static str);

impl Profile {
    /// The profile's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.chunks.len() * CHUNK + HASH);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&MAJOR.to_le_bytes());
        out.extend_from_slice(&MINOR.to_le_bytes());
        out.extend_from_slice(&self.runs.to_le_bytes());
        out.extend_from_slice(self.layer.as_bytes());
        out.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for (chunk, seen) in &self.chunks {
            for number in [*chunk, seen.runs, seen.after] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&seen.parts.to_le_bytes());
        }
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    /// The profile in `bytes`, of the layer of this index only.
    pub fn decode(bytes: &[u8], index: &Index) -> Result<Self, Malformed> {
        let runs = check_header(bytes, index)?;
        let body = bytes.get(HEADER..bytes.len() - HASH).unwrap_or_default();
        let mut chunks = BTreeMap::new();
        for entry in body.chunks_exact(CHUNK) {
            let (number, seen) = chunk(entry);
            let last = chunks.last_key_value().map(|(last, _)| *last);
            if number >= index.chunk_count() || last.is_some_and(|last| last >= number) {
                return Err(Malformed("a chunk that the layer has not, or not in order"));
            }
            if !(1..=runs).contains(&seen.runs) || seen.after > MAX_AFTER {
                return Err(Malformed("a chunk that more runs read than there were, or too late"));
            }
            chunks.insert(number, seen);
        }
        Ok(Self { layer: index.id(), runs, chunks })
    }
}

/// Everything but the chunks; gives the number of runs.
fn check_header(bytes: &[u8], index: &Index) -> Result<u32, Malformed> {
    if !(HEADER + HASH..=MAX_LEN).contains(&bytes.len()) {
        return Err(Malformed("its length"));
    }
    let (content, hash) = bytes.split_at(bytes.len() - HASH);
    if !content.starts_with(MAGIC) || u16::from_le_bytes(array(content, 8)) != MAJOR {
        return Err(Malformed("another format, or another version"));
    }
    if blake3::hash(content).as_bytes() != hash {
        return Err(Malformed("its checksum"));
    }
    if LayerId::from_bytes(array(content, 16)) != index.id() {
        return Err(Malformed("it is another layer's"));
    }
    let runs = u32::from_le_bytes(array(content, 12));
    if !(1..=MAX_RUNS).contains(&runs) {
        return Err(Malformed("its number of runs"));
    }
    // At most 2^32 times 28: no overflow.
    let chunks = u32::from_le_bytes(array(content, 48)) as u64 * CHUNK as u64;
    if (content.len() - HEADER) as u64 != chunks {
        return Err(Malformed("its number of chunks"));
    }
    Ok(runs)
}

/// One chunk of 28 bytes.
fn chunk(entry: &[u8]) -> (u32, Seen) {
    let [number, runs, after] = [0, 4, 8].map(|at| u32::from_le_bytes(array(entry, at)));
    (number, Seen { runs, after, parts: u128::from_le_bytes(array(entry, 12)) })
}

/// Bytes from `at` on; zeroes where they end, which nobody asks for.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
