//! What is on this node: chunks in memory, decompressed or as they are stored, and in the local cache.
//!
//! What the cache gives is believed only if its hash matches; else it is forgotten there, and the store has it. What was
//! verified once and stayed in memory is not asked again.

use super::decoded::{Key, key};
use super::dispatch::Wish;
use super::request::Piece;
use super::watch::Cause;
use super::{Brought, Inner, Layer};
use crate::cache::Chunks;
use crate::layer::{ChunkEntry, LayerError, Located, check_stored, decode};
use crate::meter::Source;
use bytes::Bytes;
use std::sync::atomic::Ordering::Relaxed;

impl Inner {
    /// A chunk from memory, decompressed.
    fn memory(&self, key: &Key) -> Option<Bytes> {
        let (content, first) = self.decoded.get(key)?;
        if first {
            self.meter.prefetch_used();
        }
        Some(content)
    }

    /// A chunk from memory, for a reader: decompressed by this thread where it is not.
    fn in_memory(&self, entry: &ChunkEntry) -> Option<Bytes> {
        let key = key(entry);
        if let Some(content) = self.memory(&key) {
            return Some(content);
        }
        let Some(stored) = self.stored.get(&key) else {
            // It may have been decompressed since.
            return self.memory(&key);
        };
        let content = self.keep_decoded(entry, &stored, false)?;
        self.meter.prefetch_used();
        Some(content)
    }

    /// A chunk from memory, as it is there.
    pub(super) fn ready(&self, key: &Key) -> Option<Brought> {
        let content = || self.memory(key).map(Brought::Content);
        content().or_else(|| self.stored.get(key).map(Brought::Stored)).or_else(content)
    }

    /// Keeps a stored chunk decompressed, which nobody has read yet where `unread`. `None` when it is none: it was verified
    /// when it came, so that the layer says of it what is not so.
    pub(super) fn keep_decoded(&self, entry: &ChunkEntry, stored: &[u8], unread: bool) -> Option<Bytes> {
        let content = decode(stored, entry).ok().map(Bytes::from)?;
        self.decoded.put(key(entry), content.clone(), unread);
        self.stored.remove(&key(entry));
        Some(content)
    }

    /// Decompresses a chunk that is here ahead of its first reader.
    pub(super) fn decode_ahead(&self, layer: &Layer, located: &Located) {
        let entry = &located.entry;
        match self.stored.get(&key(entry)) {
            Some(stored) => drop(self.keep_decoded(entry, &stored, true)),
            None => drop(self.take_cached(layer, located, Chunks::get, true)),
        }
    }

    /// Whether a chunk is in memory.
    pub(super) fn is_in_memory(&self, key: &Key) -> bool {
        self.decoded.contains(key) || self.stored.contains(key)
    }

    /// Whether the cache knows that it has a chunk.
    pub(super) fn is_cached(&self, located: &Located) -> bool {
        self.chunks.as_ref().is_some_and(|chunks| chunks.contains(&located.entry.hash))
    }

    /// Whether the cache has to be asked for a chunk before the store is.
    pub(super) fn may_be_cached(&self, located: &Located) -> bool {
        self.chunks.as_ref().is_some_and(|chunks| chunks.may_have(&located.entry.hash))
    }

    /// A chunk from memory or the cache, which is asked as `ask` does. What it gives is believed only if its hash matches;
    /// else it is forgotten, and the store has it.
    pub(super) fn local(
        &self,
        layer: &Layer,
        located: &Located,
        ask: impl FnOnce(&Chunks, &[u8; 32], u32) -> Option<Vec<u8>>,
    ) -> Option<(Bytes, Source)> {
        let entry = &located.entry;
        if let Some(content) = self.in_memory(entry) {
            return Some((content, Source::Memory));
        }
        self.take_cached(layer, located, ask, false).map(|content| (content, Source::Cache))
    }

    /// A chunk from the cache; `unread` where it is not for a reader.
    fn take_cached(
        &self,
        layer: &Layer,
        located: &Located,
        ask: impl FnOnce(&Chunks, &[u8; 32], u32) -> Option<Vec<u8>>,
        unread: bool,
    ) -> Option<Bytes> {
        let entry = &located.entry;
        let stored = ask(self.chunks.as_ref()?, &entry.hash, entry.stored_len)?;
        let content = self.right(layer, located, decode(&stored, entry))?;
        let content = Bytes::from(content);
        self.decoded.put(key(entry), content.clone(), unread);
        Some(content)
    }

    /// A chunk from the cache, verified, as it is stored.
    fn take_stored(&self, layer: &Layer, located: &Located) -> Option<Bytes> {
        let entry = &located.entry;
        let stored = self.chunks.as_ref()?.get(&entry.hash, entry.stored_len)?;
        self.right(layer, located, check_stored(&stored, entry))?;
        Some(stored.into())
    }

    /// What was made of a chunk from the cache. One that is damaged is forgotten there.
    fn right<T>(&self, layer: &Layer, located: &Located, made: Result<T, LayerError>) -> Option<T> {
        let error = match made {
            Ok(made) => return Some(made),
            Err(error) => error,
        };
        self.chunks.as_ref()?.forget(&located.entry.hash);
        self.meter.verify_failed();
        if let Some(unsaid) = self.log.allow() {
            let (layer, chunk) = (layer.id, located.chunk);
            tracing::warn!(%layer, chunk, %error, unsaid, "a damaged chunk in the local cache is forgotten");
        }
        None
    }

    /// A chunk that is here after all. For a list that is enough, without decompressing it; what was to be in the cache must be
    /// there.
    pub(super) fn found(&self, layer: &Layer, located: &Located, wish: &Wish) -> Option<(Brought, Source)> {
        match wish.may_stay_stored() {
            true => self.take_stored(layer, located).map(|stored| (Brought::Stored(stored), Source::Cache)),
            false => {
                let (content, source) = self.local(layer, located, Chunks::get)?;
                Some((Brought::Content(content), source))
            }
        }
    }

    /// Keeps what came in memory, unless it came for the cache only and still does.
    pub(super) fn keep(&self, entry: &ChunkEntry, wish: &Wish, piece: &Piece) -> Brought {
        // Asked once: a reader may join at any moment.
        let unread = !wish.needed.load(Relaxed);
        let kept = !unread || wish.cause != Cause::Fill;
        if unread && kept {
            self.meter.prefetched(entry.stored_len.into());
        }
        match &piece.content {
            Some(content) => {
                if kept {
                    self.decoded.put(key(entry), content.clone(), unread);
                }
                Brought::Content(content.clone())
            }
            None => {
                if kept {
                    self.stored.put(key(entry), &piece.stored);
                }
                Brought::Stored(piece.stored.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Place;
    use super::super::{Fetcher, Options};
    use super::*;
    use crate::cache::{self, Cache};
    use crate::layer::{self, Flags, Front, Index, Writer};
    use crate::meter::Meter;
    use crate::store::FileStore;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    const CHUNK: usize = 16 << 10;

    /// A layer of one chunk, and the chunk as it is stored.
    fn layer() -> (Layer, Located, Bytes) {
        let file = tempfile::tempfile().unwrap();
        let front = Front { metadata: &[1; 4096], flags: Flags::empty(), sections: &[], chunks: 1 };
        let options = layer::Options { level: 1, threads: 1 };
        let mut writer = Writer::new(&options, &front, file.try_clone().unwrap()).unwrap();
        writer.push(vec![7; CHUNK]).unwrap();
        writer.finish().unwrap();
        let layer = Layer::new(Arc::new(Index::of_file(&file).unwrap()));
        let located = layer.index.chunk_at(0).unwrap();
        let mut stored = vec![0; located.entry.stored_len as usize];
        file.read_exact_at(&mut stored, located.file_offset).unwrap();
        (layer, located, stored.into())
    }

    #[test]
    fn what_a_list_finds_in_the_cache_is_verified_and_stays_as_it_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::new(dir.path().join("store")));
        let meter = Meter::new("");
        let cache = Cache::open(&dir.path().join("cache"), &cache::Options::new(64 << 20), &meter).unwrap();
        let fetcher = Fetcher::new(store, cache, Options::default(), meter);
        let (layer, located, stored) = layer();
        let put = |stored: Bytes| {
            fetcher.chunks().unwrap().put(located.entry.hash, stored);
            fetcher.chunks().unwrap().flush();
        };
        let place = Place { layer: layer.id, chunk: located.chunk };
        let found = |cause| fetcher.inner.found(&layer, &located, &Wish::new(place, cause));
        for cause in [Cause::Prefetch, Cause::Fill] {
            let mut wrong = stored.to_vec();
            wrong[9] ^= 1;
            put(wrong.into());
            assert!(found(cause).is_none() && !fetcher.inner.is_cached(&located), "{cause:?}: it is forgotten");
            put(stored.clone());
            let here = found(cause);
            assert!(matches!(&here, Some((Brought::Stored(bytes), Source::Cache)) if *bytes == stored), "{here:?}");
            assert_eq!(fetcher.decoded_bytes(), 0);
            fetcher.chunks().unwrap().evict([located.entry.hash]);
        }
        put(stored);
        assert!(matches!(found(Cause::Read), Some((Brought::Content(_), Source::Cache))));
        // What is in memory is not in the cache for that.
        fetcher.chunks().unwrap().evict([located.entry.hash]);
        assert!(found(Cause::Read).is_some() && found(Cause::Fill).is_none());
    }
}
