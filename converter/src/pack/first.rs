//! Files whose contents come first in a layer's data, in the order in which starts read them: so the chunks of a start lie
//! together, and hold little else.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest list, bytes.
pub const MAX_LIST: usize = 64 << 20;
/// Longest path, bytes.
const MAX_PATH: usize = 4095;

/// Paths from the root of an image, and their order. Those that a layer has not are passed over.
#[derive(Debug, Clone)]
pub struct First {
    ranks: HashMap<Vec<u8>, u32>,
    hash: blake3::Hash,
    /// Whether a layer that was made had any of them.
    found: Arc<AtomicBool>,
}

impl First {
    /// Longest list, bytes.
    pub const LONGEST: u64 = MAX_LIST as u64;

    /// A list as `lamina inspect --profile` gives it: one path a line, with or without a `/` before it. Empty lines, and lines
    /// that begin with `#`, are passed over; of a path that is there twice the first counts.
    pub fn parse(list: &[u8]) -> Result<Self> {
        if list.len() > MAX_LIST {
            return Err(Error::refused(format!("a list of {} bytes; at most {MAX_LIST}", list.len())));
        }
        let (mut ranks, mut hasher) = (HashMap::new(), blake3::Hasher::new());
        for line in list.split(|byte| *byte == b'\n') {
            let path = line.strip_prefix(b"/").unwrap_or(line);
            if path.is_empty() || line.starts_with(b"#") {
                continue;
            }
            if path.len() > MAX_PATH || path.contains(&0) {
                return Err(Error::refused("a line that is no path: longer than 4095 bytes, or with a zero byte"));
            }
            let rank = ranks.len() as u32;
            if !ranks.contains_key(path) {
                hasher.update(path).update(&[0]);
                ranks.insert(path.to_owned(), rank);
            }
        }
        Ok(Self { ranks, hash: hasher.finalize(), found: Arc::default() })
    }

    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether a layer that was made with it had anything that it names.
    pub fn was_found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }

    /// A path's place in the order.
    pub(super) fn rank(&self, path: &[u8]) -> Option<u32> {
        let rank = self.ranks.get(path).copied();
        if rank.is_some() {
            self.found.store(true, Ordering::Relaxed);
        }
        rank
    }

    /// What distinguishes it from other lists.
    pub(crate) fn mark(&self) -> [u8; 8] {
        self.hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_paths_in_order_each_once() {
        let first = First::parse(b"# a start\n/usr/bin/x\netc/y\n\nusr/bin/x\nz").unwrap();
        let ranks = ["usr/bin/x", "etc/y", "z", "#"].map(|path| first.rank(path.as_bytes()));
        assert_eq!(ranks, [Some(0), Some(1), Some(2), None]);
        assert!(first.was_found() && !first.is_empty());
        let none = First::parse(b"# nothing\n\n").unwrap();
        assert!(none.is_empty() && none.rank(b"etc/y").is_none() && !none.was_found());
        let same = First::parse(b"usr/bin/x\n/etc/y\n/z\n").unwrap();
        assert_eq!(first.mark(), same.mark());
        assert_ne!(first.mark(), First::parse(b"etc/y\nusr/bin/x\nz\n").unwrap().mark());
        assert!(First::parse(&[b'x'; 5000]).is_err() && First::parse(b"a\0b").is_err());
        assert!(First::parse(&vec![b'\n'; MAX_LIST + 1]).is_err());
    }
}
