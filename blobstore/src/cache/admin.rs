//! What an administrator does with the chunk cache: pinning, dropping, verifying, asking who takes how much.
//!
//! A pin is a set of chunks under a layer's id. They are never evicted, and count against the quota. An acknowledged pin
//! survives a loss of power: its chunks are verified and synced before its record is, and wherever they are carried to,
//! they are synced before the place they came from is given up.

use super::chunks::Chunks;
use super::segment::{HEADER, Hash};
use super::write::Job;
use super::{CacheError, Result, io_error};
use crate::layer::LayerId;
use std::collections::BTreeMap;
use std::io;

/// What of some chunks is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// How many of them.
    pub chunks: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Stored bytes of those that are pinned.
    pub pinned_bytes: u64,
}

/// What verifying found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verified {
    /// Chunks whose bytes are right.
    pub chunks: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Chunks that could not be read or were wrong, and have been forgotten.
    pub wrong: u64,
}

impl Chunks {
    /// Pins chunks (hash and stored length) under a layer's id, besides those that are already pinned under it.
    ///
    /// Gives the chunks that are not here, or were wrong. Where there are none, the pin is durable. Else what was durable
    /// stays so, and the others are held, and the missing ones as they come, until this is called again (or the process
    /// ends): the caller fetches them, puts them and waits with [`Chunks::flush`]. Reads every chunk.
    ///
    /// # Errors
    /// [`CacheError::Pinned`] when all pins together would take more than 2/5 of the quota; nothing has changed then.
    /// [`CacheError::Io`] when syncing or writing fails: the pin may be durable or not, and is held.
    pub fn pin(&self, layer: &LayerId, chunks: impl IntoIterator<Item = (Hash, u32)>) -> Result<Vec<Hash>> {
        // The pins on disk must be known.
        self.flush();
        let name = self.shared.domain.name(layer.as_bytes());
        let hashes: BTreeMap<Hash, (Hash, u32)> =
            chunks.into_iter().map(|(hash, length)| (self.shared.domain.name(&hash), (hash, length))).collect();
        self.hold(&name, hashes.iter().map(|(name, (_, length))| (*name, *length)).collect())?;
        let wrong = |name: &&Hash| !self.shared.is_right(name);
        let mut missing: Vec<Hash> = hashes.keys().filter(wrong).copied().collect();
        if missing.is_empty() {
            let pinned = self.ask(|done| Job::Pin(name, done)).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
            missing = pinned.map_err(io_error(self.shared.disk.path(), "pinning chunks in"))?;
        }
        Ok(missing.iter().map(|name| hashes.get(name).map_or(*name, |(hash, _)| *hash)).collect())
    }

    /// Whether all of these could be pinned besides what is.
    ///
    /// # Errors
    /// [`CacheError::Pinned`] when they could not.
    pub fn check_pin(&self, chunks: impl IntoIterator<Item = (Hash, u32)>) -> Result<()> {
        let chunks = chunks.into_iter().map(|(hash, length)| (self.shared.domain.name(&hash), length)).collect();
        let (map, limit) = (self.shared.map(), self.shared.pin_limit());
        let wanted = map.pinned().bytes() + map.pinned().more(&chunks);
        if wanted > limit { Err(CacheError::Pinned { wanted, limit }) } else { Ok(()) }
    }

    /// Whether all of these could be in the cache together, if nothing else were.
    ///
    /// # Errors
    /// [`CacheError::TooSmall`] when they could not.
    pub fn check_room(&self, chunks: impl IntoIterator<Item = (Hash, u32)>) -> Result<()> {
        let chunks: BTreeMap<Hash, u32> = chunks.into_iter().collect();
        let wanted = chunks.values().map(|length| HEADER + u64::from(*length)).sum();
        let limit = self.shared.limit();
        if wanted > limit { Err(CacheError::TooSmall { wanted, limit }) } else { Ok(()) }
    }

    /// Keeps chunks from being evicted, in memory only.
    fn hold(&self, name: &Hash, chunks: BTreeMap<Hash, u32>) -> Result<()> {
        let limit = self.shared.pin_limit();
        let mut map = self.shared.map_mut();
        let wanted = map.pinned().bytes() + map.pinned().more(&chunks);
        if wanted > limit {
            return Err(CacheError::Pinned { wanted, limit });
        }
        let mut pin = map.pinned().get(name).cloned().unwrap_or_default();
        pin.held.extend(chunks);
        map.set_pin(name, Some(pin));
        Ok(())
    }

    /// Takes a layer's pin away, durably; `false` when there was none.
    pub fn unpin(&self, layer: &LayerId) -> Result<bool> {
        self.flush();
        let name = self.shared.domain.name(layer.as_bytes());
        let there = self.shared.map().pinned().get(&name).is_some();
        let unpinned = self.ask(|done| Job::Unpin(name, done)).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        unpinned.map_err(io_error(self.shared.disk.path(), "unpinning chunks in"))?;
        Ok(there)
    }

    /// Whether a layer has a durable pin: of what was acknowledged last, not of what is only held.
    pub fn is_pinned(&self, layer: &LayerId) -> bool {
        let name = self.shared.domain.name(layer.as_bytes());
        self.shared.map().pinned().get(&name).is_some_and(|pin| pin.durable.is_some())
    }

    /// Drops those of these chunks that are not pinned; gives how many. Space is free again when a segment has no other
    /// chunk, else when it is dropped; until then, they may be found again after a restart.
    pub fn evict(&self, hashes: impl IntoIterator<Item = Hash>) -> u64 {
        let let_go = |hash: &Hash| self.shared.map_mut().let_go(&self.shared.domain.name(hash));
        let dropped = hashes.into_iter().filter(let_go).count();
        self.ask(Job::Tidy);
        dropped as u64
    }

    /// Reads every chunk and forgets those that are not right. `go_on` is given the bytes read so far, and ends it by
    /// `false`.
    pub fn verify(&self, mut go_on: impl FnMut(u64) -> bool) -> Verified {
        self.flush();
        let segments: Vec<u64> = self.shared.map().segments.keys().copied().collect();
        let (mut found, mut read) = (Verified::default(), 0);
        for number in segments {
            let (file, records) = {
                let map = self.shared.map();
                let Some(entry) = map.segments.get(&number) else { continue };
                (entry.file.clone(), map.live(number))
            };
            for record in records {
                read += u64::from(record.length);
                match self.shared.verified(&file, &record) {
                    Some(bytes) => {
                        found.chunks += 1;
                        found.bytes += bytes.len() as u64;
                    }
                    None => found.wrong += 1,
                }
                if !go_on(read) {
                    return found;
                }
            }
        }
        found
    }

    /// Applies quota and reserve now, as before a chunk is written, and removes what belongs to nothing. Gives the bytes
    /// that became free, and why not all that should.
    pub fn collect(&self) -> (u64, Option<io::Error>) {
        let before = self.shared.map().bytes;
        let done = self.ask(Job::Collect).unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        (before.saturating_sub(self.shared.map().bytes), done.err())
    }

    /// What of these chunks (hash and stored length) is here.
    pub fn usage(&self, chunks: impl IntoIterator<Item = (Hash, u32)>) -> Usage {
        let mut usage = Usage::default();
        for (hash, length) in chunks {
            let name = self.shared.domain.name(&hash);
            let map = self.shared.map();
            if map.contains(&name) {
                usage.chunks += 1;
                usage.bytes += u64::from(length);
                usage.pinned_bytes += if map.pinned().has(&name) { u64::from(length) } else { 0 };
            }
        }
        usage
    }
}
