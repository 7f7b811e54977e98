//! What readers could not get a moment ago, so that asking again is no new wait.
//!
//! The kernel asks for a page again when reading it ahead has failed, once for each reader who waits for it. For the
//! reader that is one wait. So who asks for what has just failed goes on where that wait was: with what is left of its
//! deadline, and where nothing is left, with its error at once. A [`MOMENT`] after the last attempt it is forgotten, and who asks
//! then has the whole deadline again.

use lru::LruCache;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The kernel asks again within microseconds, a busy machine within some more.
const MOMENT: Duration = Duration::from_secs(1);

/// Failures that are remembered: more than there are reads at a time.
const MOST: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// See the module.
#[derive(Debug)]
pub struct Failures<K: Hash + Eq, E>(Mutex<LruCache<K, Failure<E>>>);

#[derive(Debug)]
struct Failure<E> {
    /// When the wait began.
    since: Instant,
    at: Instant,
    error: E,
}

impl<K: Hash + Eq, E: Clone> Default for Failures<K, E> {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MOST)))
    }
}

impl<K: Hash + Eq, E: Clone> Failures<K, E> {
    /// Since when the reader has been waiting who asks for this now: of one that went on from a failure, since then.
    ///
    /// # Errors
    /// That failure's, where no wait that began then has anything left of its deadline.
    pub fn since(&self, key: &K, deadline: Duration) -> Result<Instant, E> {
        let now = Instant::now();
        let mut failures = self.lock();
        let Some(failure) = failures.peek(key) else { return Ok(now) };
        if now.duration_since(failure.at) >= MOMENT {
            failures.pop(key);
            return Ok(now);
        }
        match now.duration_since(failure.since) < deadline {
            true => Ok(failure.since),
            false => Err(failure.error.clone()),
        }
    }

    /// Remembers that a wait that began then has ended in a failure now.
    pub fn note(&self, key: K, since: Instant, error: E) {
        self.lock().put(key, Failure { since, at: Instant::now(), error });
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<K, Failure<E>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);
    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_at_once_has_what_is_left_of_the_deadline_and_who_asks_later_all_of_it() {
        let failures = Failures::<u32, &str>::default();
        let began = failures.since(&1, DEADLINE).unwrap();
        tokio::time::advance(10 * MS).await;
        failures.note(1, began, "quick");
        assert_eq!(failures.since(&1, DEADLINE), Ok(began));
        assert_eq!(failures.since(&2, DEADLINE), Ok(Instant::now()));
        tokio::time::advance(DEADLINE).await;
        assert_eq!(failures.since(&1, DEADLINE), Ok(Instant::now()), "that was long ago");
        failures.note(1, began, "late");
        // However many readers ask, none of them makes it last longer.
        for _ in 0..9 {
            assert_eq!(failures.since(&1, DEADLINE), Err("late"));
            tokio::time::advance(MOMENT / 10).await;
        }
        tokio::time::advance(MOMENT / 10).await;
        assert_eq!(failures.since(&1, DEADLINE), Ok(Instant::now()));
    }
}
