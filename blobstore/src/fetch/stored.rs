//! Chunks that came for a list and that nobody has read: verified, as they are stored, least recently put first out.
//!
//! They are a third of their content, so that a whole start's fit; the local cache, which gets them too, writes them when it
//! comes to it, and may lose them. Whoever reads one decompresses it.

use super::decoded::Key;
use bytes::Bytes;
use lru::LruCache;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Stored {
    budget: usize,
    /// Bytes kept, for those who share the memory.
    used: Arc<AtomicU64>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    chunks: LruCache<Key, Bytes>,
    bytes: usize,
}

impl Stored {
    pub(super) fn new(budget: u64, used: Arc<AtomicU64>) -> Self {
        let inner = Mutex::new(Inner { chunks: LruCache::unbounded(), bytes: 0 });
        Self { budget: usize::try_from(budget).unwrap_or(usize::MAX), used, inner }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Bytes> {
        self.lock().chunks.peek(key).cloned()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.lock().chunks.contains(key)
    }

    /// Keeps a copy: what came with others in one answer must not keep all of that.
    pub(super) fn put(&self, key: Key, stored: &[u8]) {
        if stored.len() > self.budget {
            return;
        }
        let copy = Bytes::copy_from_slice(stored);
        let mut inner = self.lock();
        inner.bytes += copy.len();
        if let Some(before) = inner.chunks.put(key, copy) {
            inner.bytes -= before.len();
        }
        while inner.bytes > self.budget {
            let Some((_, oldest)) = inner.chunks.pop_lru() else { break };
            inner.bytes -= oldest.len();
        }
        self.used.store(inner.bytes as u64, Relaxed);
    }

    /// Forgets a chunk: it is kept decompressed now, or is not to be kept.
    pub(super) fn remove(&self, key: &Key) {
        let mut inner = self.lock();
        if let Some(stored) = inner.chunks.pop(key) {
            inner.bytes -= stored.len();
        }
        self.used.store(inner.bytes as u64, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decoded::key;
    use super::*;
    use crate::layer::ChunkEntry;

    #[test]
    fn the_budget_holds_and_what_was_put_first_goes() {
        let stored = Stored::new(10, Arc::default());
        let numbered = |n| key(&ChunkEntry { data_len: 1, stored_len: 1, hash: [n; 32] });
        (1..=3).for_each(|n| stored.put(numbered(n), &[n; 4]));
        assert_eq!([1, 2, 3].map(|n| stored.contains(&numbered(n))), [false, true, true]);
        assert_eq!(stored.get(&numbered(3)).unwrap()[..], [3; 4]);
        stored.put(numbered(4), &[0; 11]);
        stored.remove(&numbered(2));
        stored.remove(&numbered(4));
        assert_eq!((stored.contains(&numbered(4)), stored.used.load(Relaxed)), (false, 4));
    }
}
