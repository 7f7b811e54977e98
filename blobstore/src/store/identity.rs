//! Which object a key stood for when it was last read: its entity tag, sent along with the next range of it, so that two
//! pieces of one object never come from two objects.

use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

/// Keys remembered: some times what a node mounts.
const KEPT: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

#[derive(Debug)]
pub(super) struct Identities(Mutex<LruCache<String, String>>);

impl Identities {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(KEPT)))
    }

    /// What the object was, if it is known.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        self.with(|known| known.get(key).cloned())
    }

    /// Takes note of a tag. Weak ones do not say that bytes are equal, and `If-Match` never matches them.
    pub(super) fn learn(&self, key: &str, tag: Option<&str>) {
        if let Some(tag) = tag.filter(|tag| !tag.starts_with("W/")) {
            self.with(|known| known.put(key.to_owned(), tag.to_owned()));
        }
    }

    pub(super) fn forget(&self, key: &str) {
        self.with(|known| known.pop(key));
    }

    fn with<T>(&self, work: impl FnOnce(&mut LruCache<String, String>) -> T) -> T {
        // Every state of the table is a good one, also that left by a panic.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
