//! Single flight: one fetch for a key, however many wait for it.
//!
//! The fetch runs in a task of its own, so that no waiter's going away ends it. Its result goes to everybody who joined
//! while it was under way. A task that dies without a result ([`Landing`] dropped) gives its waiters none, and is out
//! of the way of the next.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Flights<K, V>(Mutex<HashMap<K, watch::Receiver<Option<V>>>>);

/// What somebody who wants a value has to do.
pub(super) enum Joined<K: Hash + Eq + Clone, V: Clone> {
    /// Nothing: here it is.
    Done(V),
    /// Wait.
    Wait(watch::Receiver<Option<V>>),
    /// Get it, give it to the landing, and wait like everybody else.
    Start(Landing<K, V>, watch::Receiver<Option<V>>),
}

/// The duty to bring a value.
pub(super) struct Landing<K: Hash + Eq + Clone, V: Clone> {
    flights: Arc<Flights<K, V>>,
    key: K,
    sender: watch::Sender<Option<V>>,
}

impl<K: Hash + Eq + Clone, V: Clone> Flights<K, V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Joins the fetch of `key` or begins it. `ready` is asked while no fetch can land, so that a value that came
    /// since the caller last looked is not fetched again.
    pub(super) fn join(self: &Arc<Self>, key: &K, ready: impl FnOnce() -> Option<V>) -> Joined<K, V> {
        let mut flights = self.lock();
        if let Some(receiver) = flights.get(key) {
            return Joined::Wait(receiver.clone());
        }
        if let Some(value) = ready() {
            return Joined::Done(value);
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(key.clone(), receiver.clone());
        Joined::Start(Landing { flights: self.clone(), key: key.clone(), sender }, receiver)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, watch::Receiver<Option<V>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Landing<K, V> {
    /// Gives the value to all who wait. Where it is to be found later, it must be already.
    pub(super) fn land(self, value: V) {
        self.sender.send_replace(Some(value));
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

/// The value of a flight; `None` when it ended without one.
pub(super) async fn wait<V: Clone>(mut receiver: watch::Receiver<Option<V>>) -> Option<V> {
    let value = receiver.wait_for(Option::is_some).await.ok()?;
    value.clone()
}
