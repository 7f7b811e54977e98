//! Single flight: one fetch for a key, however many wait for it.
//!
//! The fetch runs in a task of its own, so that no waiter's going away ends it. Its result goes to everybody who joined
//! while it was under way. A task that dies without a result ([`Landing`] dropped) gives its waiters none, and is out
//! of the way of the next. Whoever begins a fetch leaves a tag with it, by which those who join later can speak of it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Flights<K, V, T = ()>(Mutex<Map<K, V, T>>);

type Map<K, V, T> = HashMap<K, (watch::Receiver<Option<V>>, T)>;

/// What somebody who wants a value has to do.
pub(super) enum Joined<K: Hash + Eq + Clone, V: Clone, T> {
    /// Nothing: here it is.
    Done(V),
    /// Wait.
    Wait(watch::Receiver<Option<V>>, T),
    /// Get it, give it to the landing, and wait like everybody else.
    Start(Landing<K, V, T>, watch::Receiver<Option<V>>),
}

/// The duty to bring a value.
pub(super) struct Landing<K: Hash + Eq + Clone, V: Clone, T = ()> {
    flights: Arc<Flights<K, V, T>>,
    key: K,
    sender: watch::Sender<Option<V>>,
    landed: bool,
}

impl<K: Hash + Eq + Clone, V: Clone, T: Clone> Flights<K, V, T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Joins the fetch of `key` or begins it. `ready` is asked while no fetch can land, so that a value that came
    /// since the caller last looked is not fetched again. `tag` is left with a fetch that begins.
    pub(super) fn join(self: &Arc<Self>, key: &K, tag: &T, ready: impl FnOnce() -> Option<V>) -> Joined<K, V, T> {
        let mut flights = self.lock();
        if let Some((receiver, tag)) = flights.get(key) {
            return Joined::Wait(receiver.clone(), tag.clone());
        }
        if let Some(value) = ready() {
            return Joined::Done(value);
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), (receiver.clone(), tag.clone()));
        Joined::Start(Landing { flights: self.clone(), key: key.clone(), sender, landed: false }, receiver)
    }
}

impl<K: Hash + Eq, V, T> Flights<K, V, T> {
    /// Whether a fetch of `key` is under way.
    pub(super) fn is_under_way(&self, key: &K) -> bool {
        self.lock().contains_key(key)
    }
}

impl<K, V, T> Flights<K, V, T> {
    fn lock(&self) -> MutexGuard<'_, Map<K, V, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, V: Clone, T> Landing<K, V, T> {
    /// Gives the value to all who wait. Where it is to be found later, it must be already. Nobody joins any more then: who was
    /// given an error and asks again begins anew.
    pub(super) fn land(mut self, value: V) {
        let mut flights = self.flights.lock();
        self.sender.send_replace(Some(value));
        flights.remove(&self.key);
        drop(flights);
        self.landed = true;
    }
}

impl<K: Hash + Eq + Clone, V: Clone, T> Drop for Landing<K, V, T> {
    fn drop(&mut self) {
        // After it has landed, another one may be under way.
        if !self.landed {
            self.flights.lock().remove(&self.key);
        }
    }
}

/// The value of a flight; `None` when it ended without one.
pub(super) async fn wait<V: Clone>(mut receiver: watch::Receiver<Option<V>>) -> Option<V> {
    let value = receiver.wait_for(Option::is_some).await.ok()?;
    value.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_was_given_a_value_does_not_get_it_again_from_the_same_flight() {
        let flights = Flights::<u8, u32>::new();
        for n in 0..2000 {
            let Joined::Start(landing, receiver) = flights.join(&1, &(), || None) else { panic!("one lands: {n}") };
            let lands = tokio::spawn(async move { landing.land(n) });
            assert_eq!(wait(receiver).await, Some(n));
            // Begun while the first may still be about to end, and not ended with it.
            let Joined::Start(second, receiver) = flights.join(&1, &(), || None) else { panic!("an old value: {n}") };
            lands.await.unwrap();
            assert!(flights.is_under_way(&1));
            drop(second);
            assert_eq!(wait(receiver).await, None);
            assert!(!flights.is_under_way(&1));
        }
    }
}
