//! Decoded chunks in memory, least recently used first out, within a budget of bytes.

use crate::layer::ChunkEntry;
use lru::LruCache;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A chunk by all that its index entry says of it: two layers whose entries differ never share content.
pub(super) type Key = [u8; crate::layer::format::ENTRY];

pub(super) fn key(entry: &ChunkEntry) -> Key {
    entry.encode()
}

#[derive(Debug)]
pub(super) struct Decoded {
    budget: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    chunks: LruCache<Key, Arc<[u8]>>,
    bytes: usize,
}

impl Decoded {
    pub(super) fn new(budget: u64) -> Self {
        let inner = Mutex::new(Inner { chunks: LruCache::unbounded(), bytes: 0 });
        Self { budget: usize::try_from(budget).unwrap_or(usize::MAX), inner }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<[u8]>> {
        self.lock().chunks.get(key).cloned()
    }

    /// Keeps a chunk; one larger than the budget is not kept.
    pub(super) fn put(&self, key: Key, content: Arc<[u8]>) {
        if content.len() > self.budget {
            return;
        }
        let mut inner = self.lock();
        inner.bytes += content.len();
        if let Some(before) = inner.chunks.put(key, content) {
            inner.bytes -= before.len();
        }
        while inner.bytes > self.budget {
            let Some((_, oldest)) = inner.chunks.pop_lru() else { break };
            inner.bytes -= oldest.len();
        }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(n: u8) -> Key {
        key(&ChunkEntry { data_len: 1, stored_len: 1, hash: [n; 32] })
    }

    #[test]
    fn the_budget_holds_and_the_least_recently_used_goes() {
        let decoded = Decoded::new(10);
        let chunk = |n| Arc::<[u8]>::from(vec![n; 4]);
        decoded.put(numbered(1), chunk(1));
        decoded.put(numbered(2), chunk(2));
        decoded.put(numbered(2), chunk(2));
        assert_eq!(decoded.bytes(), 8);
        assert!(decoded.get(&numbered(1)).is_some());
        decoded.put(numbered(3), chunk(3));
        assert!(decoded.get(&numbered(2)).is_none() && decoded.get(&numbered(1)).is_some());
        decoded.put(numbered(4), Arc::from(vec![4; 11]));
        assert!(decoded.get(&numbered(4)).is_none());
        assert_eq!(decoded.bytes(), 8);
    }
}
