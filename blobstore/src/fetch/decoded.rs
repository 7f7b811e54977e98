//! Decoded chunks in memory, least recently used first out, within a budget of bytes.

use crate::layer::ChunkEntry;
use bytes::Bytes;
use lru::LruCache;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    chunks: LruCache<Key, Kept>,
    bytes: usize,
    /// Bytes of chunks that were fetched ahead and that nobody has read.
    unread: usize,
}

#[derive(Debug)]
struct Kept {
    content: Bytes,
    unread: bool,
}

impl Decoded {
    pub(super) fn new(budget: u64) -> Self {
        let inner = Mutex::new(Inner { chunks: LruCache::unbounded(), bytes: 0, unread: 0 });
        Self { budget: usize::try_from(budget).unwrap_or(usize::MAX), inner }
    }

    /// A chunk for a reader, and whether it is the first to read what was fetched ahead.
    pub(super) fn get(&self, key: &Key) -> Option<(Bytes, bool)> {
        let mut inner = self.lock();
        let kept = inner.chunks.get_mut(key)?;
        let (content, first) = (kept.content.clone(), std::mem::take(&mut kept.unread));
        inner.unread -= if first { content.len() } else { 0 };
        Some((content, first))
    }

    /// Whether a chunk is here.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.lock().chunks.contains(key)
    }

    /// Keeps a chunk, which nobody has read yet where `unread`; one larger than the budget is not kept.
    pub(super) fn put(&self, key: Key, content: Bytes, unread: bool) {
        if content.len() > self.budget {
            return;
        }
        let mut inner = self.lock();
        inner.bytes += content.len();
        inner.unread += if unread { content.len() } else { 0 };
        if let Some(before) = inner.chunks.put(key, Kept { content, unread }) {
            inner.gone(&before);
        }
        while inner.bytes > self.budget {
            let Some((_, oldest)) = inner.chunks.pop_lru() else { break };
            inner.gone(&oldest);
        }
    }

    /// Bytes that may still be fetched ahead: what was must not push itself out before it is read.
    pub(super) fn room_ahead(&self) -> u64 {
        (self.budget / 2).saturating_sub(self.lock().unread) as u64
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes as u64
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn gone(&mut self, kept: &Kept) {
        self.bytes -= kept.content.len();
        self.unread -= if kept.unread { kept.content.len() } else { 0 };
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
        let chunk = |n| Bytes::from(vec![n; 4]);
        decoded.put(numbered(1), chunk(1), false);
        decoded.put(numbered(2), chunk(2), false);
        decoded.put(numbered(2), chunk(2), false);
        assert_eq!(decoded.bytes(), 8);
        assert!(decoded.get(&numbered(1)).is_some());
        decoded.put(numbered(3), chunk(3), false);
        assert!(decoded.get(&numbered(2)).is_none() && decoded.get(&numbered(1)).is_some());
        decoded.put(numbered(4), Bytes::from(vec![4; 11]), true);
        assert!(decoded.get(&numbered(4)).is_none());
        assert_eq!(decoded.bytes(), 8);
    }

    #[test]
    fn what_was_fetched_ahead_has_half_of_it_until_it_is_read() {
        let decoded = Decoded::new(16);
        decoded.put(numbered(1), Bytes::from(vec![1; 6]), true);
        assert_eq!(decoded.room_ahead(), 2);
        assert_eq!(decoded.get(&numbered(1)).map(|(_, first)| first), Some(true));
        assert_eq!(decoded.get(&numbered(1)).map(|(_, first)| first), Some(false));
        assert_eq!(decoded.room_ahead(), 8);
        decoded.put(numbered(2), Bytes::from(vec![2; 9]), true);
        assert_eq!(decoded.room_ahead(), 0);
        decoded.put(numbered(3), Bytes::from(vec![3; 16]), false);
        assert_eq!((decoded.room_ahead(), decoded.bytes()), (8, 16));
    }
}
