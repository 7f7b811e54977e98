//! A store and a clock that several actors share, each of which does one operation when it is its turn.

use super::super::clock::Clock;
use crate::store::{Listed, Result, Stat, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

/// Seconds since 1970 when the model's clock stands at zero.
const BEGIN: u64 = 100_000_000;

/// What an actor is about to do, or waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Wish {
    Operation,
    /// Until the clock shows this.
    Time(Duration),
    /// Until the collectors' words change, or the clock shows this.
    Sweeps(u64, Duration),
}

#[derive(Debug, Default)]
pub(super) struct Actor {
    /// Of all that it did and was answered: its state, since it is deterministic.
    pub(super) history: DefaultHasher,
    pub(super) wish: Option<Wish>,
    pub(super) turn: bool,
    /// Who is told when it is its turn.
    pub(super) waker: Option<Waker>,
    /// It has looked something up that it does not hold yet: time does not pass meanwhile.
    pub(super) urgent: bool,
    /// Requests that were answered.
    pub(super) requests: u32,
    /// It has looked at the clock, and does next what it found time for: time does not pass meanwhile.
    pub(super) in_time: bool,
    /// Keys that it holds and that were there: they have to stay.
    pub(super) relies_on: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) clock: Duration,
    pub(super) actors: Vec<Actor>,
    /// By how many seconds each actor's clock is wrong, which dates what it writes.
    pub(super) skews: [i64; ACTORS],
    /// Nobody waits for a turn; sleeping moves the clock.
    pub(super) free: bool,
    /// The last operation can have broken something.
    pub(super) suspicious: bool,
    operations: u64,
    /// What was done, for people.
    pub(super) story: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Object {
    body: Bytes,
    at: Duration,
    /// Of what does not depend on when it was written.
    hash: u64,
}

/// Objects and the time.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    objects: BTreeMap<String, Object>,
    clock: Duration,
    operations: u64,
}

/// How many actors there can be.
pub(super) const ACTORS: usize = 4;

/// Shared by all.
#[derive(Debug, Clone)]
pub(super) struct World(Arc<Mutex<Inner>>);

impl World {
    /// An empty store, and nobody about.
    pub(super) fn empty() -> Self {
        Self::begin(&Setting { objects: BTreeMap::new(), clock: Duration::ZERO, operations: 0 })
    }

    pub(super) fn begin(setting: &Setting) -> Self {
        let Setting { objects, clock, operations } = setting.clone();
        let actors = (0..ACTORS).map(|_| Actor::default()).collect();
        Self(Arc::new(Mutex::new(Inner { objects, clock, operations, actors, ..Inner::default() })))
    }

    /// What it is like now.
    pub(super) fn setting(&self) -> Setting {
        let Inner { objects, clock, operations, .. } = &*self.lock();
        Setting { objects: objects.clone(), clock: *clock, operations: *operations }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Has an actor's clock be wrong by so many seconds.
    pub(super) fn skew(&self, actor: usize, seconds: i64) {
        self.lock().skews[actor] = seconds;
    }

    /// The store and the clock as this actor has them.
    pub(super) fn hands(&self, actor: usize) -> Hands {
        Hands { world: self.clone(), actor }
    }
}

impl Inner {
    /// What the collectors say.
    fn sweeps(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.objects.range("tombstones/sweeps/".to_owned()..).for_each(|(key, object)| {
            if key.starts_with("tombstones/sweeps/") {
                (key, object.hash).hash(&mut hash);
            }
        });
        hash.finish()
    }

    /// Whether an actor can go on.
    pub(super) fn can(&self, actor: usize) -> bool {
        match &self.actors[actor].wish {
            None => false,
            Some(Wish::Operation) => true,
            Some(Wish::Time(at)) => self.clock >= *at,
            Some(Wish::Sweeps(before, at)) => self.clock >= *at || self.sweeps() != *before,
        }
    }

    /// What an actor's clock shows, from a time long ago.
    fn dated(&self, actor: usize) -> Duration {
        let right = Duration::from_secs(BEGIN) + self.clock;
        let wrong = Duration::from_secs(self.skews[actor].unsigned_abs());
        if self.skews[actor] < 0 { right.saturating_sub(wrong) } else { right + wrong }
    }

    /// Everything that decides what can happen from here on.
    pub(super) fn state(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.clock.hash(&mut hash);
        for (key, object) in &self.objects {
            (key, object.hash, object.at).hash(&mut hash);
        }
        for actor in &self.actors {
            (actor.history.finish(), &actor.wish, actor.urgent, actor.in_time, &actor.relies_on).hash(&mut hash);
        }
        hash.finish()
    }
}

impl Object {
    fn new(body: Bytes, at: Duration) -> Self {
        let mut hash = DefaultHasher::new();
        normal(&body).hash(&mut hash);
        Self { body, at, hash: hash.finish() }
    }

    fn stat(&self) -> Stat {
        let modified = SystemTime::UNIX_EPOCH + self.at;
        Stat { size: self.body.len() as u64, modified }
    }
}

/// A body without what depends on when it was written.
fn normal(body: &Bytes) -> Vec<u8> {
    let Ok(payload) = crate::refs::envelope::payload("", body) else { return body.to_vec() };
    let mut value: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.remove("time");
    fields.remove("sequence");
    value.to_string().into_bytes()
}

#[derive(Debug, Clone)]
pub(super) struct Hands {
    world: World,
    actor: usize,
}

impl Hands {
    /// Waits for this actor's turn.
    async fn turn(&self, wish: impl Fn(&Inner) -> Wish) {
        let mut wished = false;
        std::future::poll_fn(|context| {
            let mut world = self.world.lock();
            if world.free || wished && std::mem::take(&mut world.actors[self.actor].turn) {
                return Poll::Ready(());
            }
            wished = true;
            // Also once more: what its actor did beside this was another wish, and is done.
            if world.actors[self.actor].wish.is_none() {
                let wish = wish(&world);
                world.actors[self.actor].wish = Some(wish);
                world.actors[self.actor].waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        let mut world = self.world.lock();
        world.actors[self.actor].wish = None;
        world.operations += 1;
        crate::refs::objects::NOW.set(Some(BEGIN + world.operations));
    }

    /// One operation, whole, and what its actor learns by it.
    async fn operate<T, F>(&self, what: &str, key: &str, act: F) -> Result<T>
    where
        T: Learned,
        F: FnOnce(&mut Inner) -> Result<T>,
    {
        self.turn(|_| Wish::Operation).await;
        let mut world = self.world.lock();
        // Who only looks, with everybody standing still, changes nothing.
        world.actors[self.actor].in_time &= world.free;
        let answer = act(&mut world);
        if !world.free {
            let done = if answer.is_ok() { "" } else { ": no" };
            let line = format!("{:>7} s  actor {}: {what} {key}{done}", world.clock.as_secs() % 100_000, self.actor);
            world.story.push(line);
        }
        world.actors[self.actor].requests += 1;
        let history = &mut world.actors[self.actor].history;
        (what, key).hash(history);
        match &answer {
            Ok(answer) => answer.learn(history),
            Err(StoreError::NotFound { .. }) => "not found".hash(history),
            Err(error) => error.to_string().hash(history),
        }
        answer
    }

    /// Does `work` until so many requests of it were answered; then it goes away from it: `None`.
    pub(super) async fn until<T>(&self, requests: u32, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let mut world = self.world.lock();
            let actor = &mut world.actors[self.actor];
            if actor.requests < requests {
                return Poll::Pending;
            }
            // What it was about to do it does not do.
            (actor.wish, actor.turn, actor.urgent, actor.in_time) = (None, false, false, false);
            "interrupted".hash(&mut actor.history);
            Poll::Ready(None)
        })
        .await
    }

    /// From now on until it says that it does not hurry, or what it relies on, it is quick.
    pub(super) fn hurries(&self, so: bool) {
        self.world.lock().actors[self.actor].urgent = so;
    }

    pub(super) fn relies_on(&self, keys: Vec<String>) {
        let mut world = self.world.lock();
        world.actors[self.actor].urgent = false;
        world.actors[self.actor].relies_on = keys;
        world.suspicious = true;
    }
}

trait Learned {
    fn learn(&self, history: &mut DefaultHasher);
}

impl Learned for Object {
    fn learn(&self, history: &mut DefaultHasher) {
        self.hash.hash(history);
    }
}

impl Learned for () {
    fn learn(&self, _: &mut DefaultHasher) {}
}

impl Learned for Stat {
    fn learn(&self, history: &mut DefaultHasher) {
        (self.size, self.modified).hash(history);
    }
}

impl Learned for Vec<Listed> {
    fn learn(&self, history: &mut DefaultHasher) {
        self.iter().for_each(|o| (&o.key, o.stat.modified).hash(history));
    }
}

impl Learned for Vec<String> {
    fn learn(&self, history: &mut DefaultHasher) {
        self.hash(history);
    }
}

fn not_found(key: &str) -> StoreError {
    StoreError::NotFound { store: "model:".to_owned(), key: key.to_owned() }
}

#[async_trait]
impl Store for Hands {
    fn url(&self) -> &str {
        "model:"
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        let found = self.operate("get", key, |w| w.objects.get(key).cloned().ok_or_else(|| not_found(key))).await;
        found.map(|object| object.body)
    }

    async fn get_range(&self, _: &str, _: Range<u64>) -> Result<Bytes> {
        unreachable!("nothing here reads layers")
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.operate("stat", key, |w| w.objects.get(key).map(Object::stat).ok_or_else(|| not_found(key))).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.operate("create", key, |w| {
            if w.objects.contains_key(key) {
                return Err(StoreError::AlreadyExists { store: "model:".to_owned(), key: key.to_owned() });
            }
            let at = w.dated(self.actor);
            w.objects.insert(key.to_owned(), Object::new(body, at));
            w.suspicious = true;
            Ok(())
        })
        .await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.operate("put", key, |w| {
            let at = w.dated(self.actor);
            w.objects.insert(key.to_owned(), Object::new(body, at));
            w.suspicious = true;
            Ok(())
        })
        .await
    }

    async fn upload(&self, _: &str, _: &Path) -> Result<()> {
        unreachable!("layers are created here")
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.operate("list", prefix, |w| Ok(w.objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()))
            .await
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.operate("scan", prefix, |w| {
            let found = w.objects.iter().filter(|(key, _)| key.starts_with(prefix));
            // Who watches a collector knows when it was seen.
            if found.clone().any(|(key, _)| key.starts_with("tombstones/sweeps/")) {
                w.clock.hash(&mut w.actors[self.actor].history);
            }
            Ok(found.map(|(key, object)| Listed { key: key.clone(), stat: object.stat() }).collect::<Vec<_>>())
        })
        .await
    }

    async fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.operate("delete", key, |w| {
            w.objects.remove(key);
            w.suspicious = true;
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Clock for Hands {
    fn elapsed(&self) -> Duration {
        let mut world = self.world.lock();
        world.actors[self.actor].in_time |= !world.free;
        world.clock
    }

    async fn sleep(&self, time: Duration) {
        if self.world.lock().free {
            self.world.lock().clock += time;
            return;
        }
        let short = time <= Duration::from_secs(1);
        self.turn(|world| match short {
            // Who looks again and again would look for ever: it looks again when there is something to be seen.
            true => Wish::Sweeps(world.sweeps(), world.clock + super::super::sweep::DEAD),
            false => Wish::Time(world.clock + time),
        })
        .await;
        let mut world = self.world.lock();
        let clock = world.clock;
        ("slept", clock).hash(&mut world.actors[self.actor].history);
    }

    /// Nothing takes long here, but for who was stopped meanwhile.
    async fn watch(&self, time: Duration) {
        let begun = self.world.lock().clock;
        std::future::poll_fn(|_| match self.world.lock().clock >= begun + time {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        let mut world = self.world.lock();
        let clock = world.clock;
        ("watched", begun, clock).hash(&mut world.actors[self.actor].history);
    }
}
