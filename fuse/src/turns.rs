//! Turns: of all who ask for one thing, one at a time has it; things of different names do not wait for each other.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedMutexGuard;

type Locks<K> = HashMap<K, Arc<tokio::sync::Mutex<()>>>;

/// Who waits for what. Takes memory only for what somebody has or waits for.
#[derive(Debug)]
pub(crate) struct Turns<K>(Mutex<Locks<K>>);

/// A turn; over when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a, K> {
    turns: &'a Turns<K>,
    lock: Option<OwnedMutexGuard<()>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits for a turn at `key`.
    pub(crate) async fn take(&self, key: K) -> Turn<'_, K> {
        let lock = Arc::clone(self.locks().entry(key).or_default());
        Turn { turns: self, lock: Some(lock.lock_owned().await) }
    }
}

impl<K> Turns<K> {
    fn locks(&self) -> MutexGuard<'_, Locks<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.lock = None;
        self.turns.locks().retain(|_, lock| Arc::strong_count(lock) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    #[tokio::test]
    async fn one_at_a_time_has_a_thing_and_nothing_is_kept_of_it() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        drop(turns.take("b").await);
        {
            let mut second = pin!(turns.take("a"));
            poll_fn(|context| {
                assert!(second.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(first);
            drop(second.await);
        }
        assert!(turns.locks().is_empty());
    }
}
