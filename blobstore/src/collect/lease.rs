//! Holding: what a lease names is not deleted while it lasts.
//!
//! A lease is `node/leases/<who>/<part>`: `{"version": 1, "ttl": SECONDS, "keys": […]}`, and ends `ttl` after the store's
//! time of its last writing. It names layers, and for writers manifests and blobs besides, by their keys.
//!
//! *First* the key is in the lease, *then* it is looked whether a collector is about to delete it. The collector says what it
//! is about to delete first, and reads the leases then. So at least one of the two sees the other: what [`Lease::hold`]
//! does not call condemned will be there as long as it is held, if it is there now. What it calls condemned may or may not
//! be there when the collector is done: [`Lease::settle`] waits for that.
//!
//! A writer also takes the tombstone from what it holds: its grace would else have begun before it was used again.
//!
//! A lease that seems to have ended may be of a machine whose clock is wrong, and so may one be from the future. Such a lease gets
//! a tombstone, under its own time, and goes on holding. Whoever is alive writes it again before half of its time is
//! over, and it has another time then; one that is still the same after that has ended.

use super::clock::{Clock, Machine};
use super::error::{Error, Result};
use super::seen::{Seen, age, has_one_clock};
use super::{mark, process, sweep};
use crate::pause::random;
use crate::store::{Listed, Store, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// Where leases lie.
pub(super) const PREFIX: &str = "node/leases/";

/// The longest time that a lease can ask for: one of a node that is gone must end some day.
pub const TTL_MAX: Duration = Duration::from_secs(60 * 24 * 3600);

/// How long a writer's lease lasts that is not renewed: it was killed then.
pub const WRITER_TTL: Duration = Duration::from_secs(24 * 3600);

/// Between two looks at a collector that is waited for.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes of all leases together. Any node can write any there, and a collector reads them all: those of a hundred thousand
/// nodes with a hundred layers each have less.
const LEASES: u64 = 1 << 30;

pub(super) const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) version: u32,
    /// Seconds.
    pub(super) ttl: u64,
    pub(super) keys: BTreeSet<String>,
}

/// A lease of this process.
#[derive(Debug)]
pub struct Lease {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    place: String,
    ttl: Duration,
    /// May it write outside `node/`?
    writer: bool,
    state: Mutex<State>,
}

/// What a lease is good for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) ttl: Duration,
    /// May its holder write outside `node/`?
    pub(super) writer: bool,
}

impl Terms {
    pub(super) const WRITER: Self = Self { ttl: WRITER_TTL, writer: true };
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeSet<String>,
    condemned: BTreeSet<String>,
    /// Of collectors.
    seen: Seen,
    /// When its last writing began; `None`: it is not there.
    written: Option<Duration>,
    /// The store was asked to write it: it may be there, whatever became of that.
    asked: bool,
    /// Of several objects after another, which.
    number: u32,
    /// For how long it was not renewed, where that was too long.
    lost: Option<Duration>,
}

impl Lease {
    /// A writer's, with a name that no other process has.
    pub fn of_writer(store: Arc<dyn Store>) -> Self {
        let who = format!("convert-{}-{}-{:08x}", process::host(), std::process::id(), random() as u32);
        Self::new(store, Arc::new(Machine::default()), &format!("{who}/work"), Terms::WRITER)
    }

    /// A node's: `who` is the node, by a name that no other has, `part` what of it holds something.
    pub fn of_node(store: Arc<dyn Store>, who: &str, part: &str, ttl: Duration) -> Self {
        Self::new(store, Arc::new(Machine::default()), &format!("{who}/{part}"), Terms { ttl, writer: false })
    }

    /// `place` is who holds it, and which part of that.
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, place: &str, terms: Terms) -> Self {
        let Terms { ttl, writer } = terms;
        Self { store, clock, place: format!("{PREFIX}{place}"), ttl: ttl.min(TTL_MAX), writer, state: Mutex::default() }
    }

    /// Holds these keys, beside those that it holds. Gives those that a collector is about to delete: of them nothing is
    /// known until [`Self::settle`] has ended.
    pub async fn hold(&self, keys: impl IntoIterator<Item = String>) -> Result<BTreeSet<String>> {
        let keys: Vec<String> = keys.into_iter().collect();
        let mut state = self.state.lock().await;
        let before = state.keys.len();
        let fresh: Vec<String> = keys.iter().filter(|key| !state.keys.contains(*key)).cloned().collect();
        state.keys.extend(fresh.iter().cloned());
        if state.keys.len() > before || state.written.is_none() {
            self.write(&mut state).await?;
            let condemned = self.condemned(&mut state, &fresh).await?;
            state.condemned.extend(condemned);
        }
        Ok(keys.into_iter().filter(|key| state.condemned.contains(key)).collect())
    }

    /// Waits until no collector is about to delete anything of what is held. What is there then, stays.
    pub async fn settle(&self) -> Result<()> {
        loop {
            let mut state = self.state.lock().await;
            if state.condemned.is_empty() {
                return Ok(());
            }
            let keys: Vec<String> = state.condemned.iter().cloned().collect();
            // So that it can be told for how long the other has said nothing.
            self.write(&mut state).await?;
            state.condemned = self.condemned(&mut state, &keys).await?;
            if !state.condemned.is_empty() {
                drop(state);
                self.clock.sleep(LOOK).await;
            }
        }
    }

    /// Holds exactly these keys from now on; those that are condemned are in the answer.
    pub async fn replace(&self, keys: impl IntoIterator<Item = String>) -> Result<BTreeSet<String>> {
        let mut state = self.state.lock().await;
        let keys: BTreeSet<String> = keys.into_iter().collect();
        let fresh: Vec<String> = keys.difference(&state.keys).cloned().collect();
        state.keys = keys;
        self.write(&mut state).await?;
        let mut condemned = self.condemned(&mut state, &fresh).await?;
        condemned.extend(state.condemned.iter().filter(|key| state.keys.contains(*key)).cloned());
        state.condemned.clone_from(&condemned);
        Ok(condemned)
    }

    /// Makes it last for its whole time again. To be called several times in that; [`Self::kept`] does.
    pub async fn renew(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        match state.written {
            Some(_) => self.write(&mut state).await,
            None => Ok(()),
        }
    }

    /// That it has not ended: before anything is written that relies on it. A process that was stopped can find that it has.
    pub async fn check(&self) -> Result<()> {
        let state = self.state.lock().await;
        match state.lost.is_some() || self.overdue(&state).is_some() {
            true => Err(self.lost(&state)),
            false => Ok(()),
        }
    }

    fn lost(&self, state: &State) -> Error {
        let since = state.written.map(|written| self.clock.elapsed().saturating_sub(written)).unwrap_or_default();
        Error::Expired { key: self.key(state), since: state.lost.unwrap_or(since) }
    }

    /// Renews it for as long as it is there, which is as long as somebody else has it.
    pub fn kept(self: &Arc<Self>) {
        let (lease, pause) = (Arc::downgrade(self), self.ttl / 4);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(lease) = lease.upgrade() else { return };
                if let Err(error) = lease.renew().await {
                    tracing::warn!(lease = lease.place, %error, "cannot renew a lease");
                }
            }
        });
    }

    /// Holds nothing any more. Who went away from writing what it names ([`Store::settle`]) waits for that first.
    pub async fn release(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        let gone = match (state.written, state.asked) {
            (Some(_), _) => self.store.delete(&self.key(&state)).await,
            // Somebody went away from it, or it failed: what could not be written cannot be deleted either, as a rule.
            (None, true) => self.store.delete(&self.key(&state)).await.or(Ok(())),
            (None, false) => Ok(()),
        };
        gone?;
        *state = State { number: state.number, ..State::default() };
        Ok(())
    }

    fn key(&self, state: &State) -> String {
        match state.number {
            0 => self.place.clone(),
            n => format!("{}-{n}", self.place),
        }
    }

    /// For how long it was not renewed, where it can have ended. The last tenth of its time is not relied on: the clocks
    /// of two machines do not run alike.
    fn overdue(&self, state: &State) -> Option<Duration> {
        let since = self.clock.elapsed().saturating_sub(state.written?);
        (since > self.ttl - self.ttl / 10).then_some(since)
    }

    async fn write(&self, state: &mut State) -> Result<()> {
        let begun = self.clock.elapsed();
        // One that has ended may be deleted at this very moment: it gets another name.
        if let Some(since) = self.overdue(state) {
            state.number += 1;
            state.lost = Some(since);
        }
        let body = Body { version: VERSION, ttl: self.ttl.as_secs(), keys: state.keys.clone() };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        state.asked = true;
        self.store.put(&self.key(state), Bytes::from(body)).await?;
        state.written = Some(begun);
        Ok(())
    }

    /// Those of `keys` that a collector is about to delete; the tombstones of all others are taken away.
    async fn condemned(&self, state: &mut State, keys: &[String]) -> Result<BTreeSet<String>> {
        let listed = self.store.scan(mark::PREFIX).await?;
        let (sweeps, marks): (Vec<Listed>, _) = listed.into_iter().partition(|o| o.key.starts_with(sweep::PREFIX));
        let mut condemned = BTreeSet::new();
        if !sweeps.is_empty() {
            let now = match self.store.stat(&self.key(state)).await {
                Ok(stat) => stat.modified,
                // It has ended already, and somebody has cleaned up.
                Err(StoreError::NotFound { .. }) => return Err(self.lost(state)),
                Err(error) => return Err(error.into()),
            };
            let (seen, elapsed) = (&mut state.seen, self.clock.elapsed());
            let view = sweep::View { listed: &sweeps, now, seen, elapsed };
            condemned = sweep::named(&*self.store, view, keys).await?;
        }
        if self.writer {
            let marked: BTreeSet<String> = marks.into_iter().map(|mark| mark.key).collect();
            for key in keys.iter().filter(|key| !condemned.contains(*key)) {
                let mark = mark::key(key);
                if marked.contains(&mark) {
                    self.store.delete(&mark).await?;
                }
            }
        }
        Ok(condemned)
    }
}

/// What all leases hold that have not ended, and the keys of those that have.
#[derive(Debug, Default)]
pub(super) struct Leased {
    pub(super) keys: BTreeSet<String>,
    pub(super) live: usize,
    pub(super) ended: Vec<String>,
    /// What tombstones of those are called that hold, and by their dates should not.
    pub(super) doubtful: BTreeSet<String>,
}

/// Reads all leases; `now` is the store's time, `marks` what has a tombstone since when.
pub(super) async fn read(store: &dyn Store, now: SystemTime, marks: &BTreeMap<String, SystemTime>) -> Result<Leased> {
    let mut held = Leased::default();
    let mut bytes: u64 = 0;
    for lease in store.scan(PREFIX).await? {
        bytes = bytes.saturating_add(lease.stat.size);
        if bytes > LEASES {
            let what = format!("{bytes} bytes with those before it, {LEASES} are possible");
            return Err(Error::Lease { key: lease.key, what });
        }
        let body = match store.get(&lease.key).await {
            Ok(body) => body,
            // Released since it was listed: what it held has a name by now, or no use.
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let age = age(lease.stat.modified, now);
        let body = match parse(&body) {
            Ok(body) => body,
            // Nobody's, whatever it is.
            Err(_) if age.is_some_and(|age| age > TTL_MAX) => {
                held.ended.push(lease.key);
                continue;
            }
            Err(what) => return Err(Error::Lease { key: lease.key, what }),
        };
        let ttl = Duration::from_secs(body.ttl).min(TTL_MAX);
        if has_one_clock(store.url()) && age.is_some_and(|age| age > ttl) {
            held.ended.push(lease.key);
            continue;
        }
        if age.is_none_or(|age| age > ttl) {
            let mark = mark::of_lease(&lease);
            let since = marks.get(&mark).and_then(|since| now.duration_since(*since).ok());
            // One from the future: as if it had been written when that was found out.
            let enough = if age.is_some() { ttl / 2 } else { ttl };
            if since.is_some_and(|since| since > enough) {
                held.ended.push(lease.key);
                continue;
            }
            held.doubtful.insert(mark);
        }
        held.live += 1;
        held.keys.extend(body.keys);
    }
    Ok(held)
}

fn parse(body: &[u8]) -> std::result::Result<Body, String> {
    let body: Body = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    match body.version {
        VERSION => Ok(body),
        other => Err(format!("version {other}")),
    }
}
