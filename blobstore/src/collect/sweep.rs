//! The collector's word that it is about to delete: `tombstones/sweeps/<run>`.
//!
//! `{"version": 1, "host": …, "process": …, "keys": […]}`, rewritten at least every [`RENEW`] while its collector is at work.
//! Writers that find a key of theirs in it wait until it is gone. One that nobody rewrote for [`DEAD`] is of a collector
//! that was killed, and counts for nothing: between its last word and its last deletion lie [`HELD_UP`] and what one
//! deletion takes, which together are less than that. So does one whose process was on this machine and has ended, as soon as
//! nothing that it asked for can still be [`ON_THE_WAY`].

use super::clock::Clock;
use super::error::{Error, Result};
use super::process::{self, Process};
use crate::store::{Listed, Store, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where they lie.
pub(super) const PREFIX: &str = "tombstones/sweeps/";

/// How often a collector rewrites its own.
const RENEW: Duration = Duration::from_secs(30);

/// Past this time since it was last written, a collector begins no deletion.
const HELD_UP: Duration = Duration::from_secs(120);

/// Past this time by the store's clock, it counts for nothing.
pub(super) const DEAD: Duration = Duration::from_secs(900);

/// Past this time since its last word, nothing that an ended process asked a server for is still done: a deletion begins at
/// most [`RENEW`] after the word.
const ON_THE_WAY: Duration = Duration::from_secs(60);

const VERSION: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Body {
    version: u32,
    /// For people.
    #[serde(default)]
    host: String,
    #[serde(default)]
    process: Process,
    #[serde(default)]
    keys: Vec<String>,
}

/// Our own.
#[derive(Debug)]
pub(super) struct Sweep {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    key: String,
    body: Body,
    /// When the last write was begun.
    written: Duration,
}

impl Sweep {
    /// Says that a collector is at work, unless one is. The store's time is in the answer.
    pub(super) async fn begin(store: Arc<dyn Store>, clock: Arc<dyn Clock>, run: &str) -> Result<(Self, SystemTime)> {
        let body = Body { version: VERSION, host: process::host(), process: Process::this(), keys: Vec::new() };
        let mut sweep = Self { store, clock, key: format!("{PREFIX}{run}"), body, written: Duration::ZERO };
        sweep.write().await?;
        match sweep.alone().await {
            Ok(now) => Ok((sweep, now)),
            Err(error) => {
                sweep.end().await?;
                Err(error)
            }
        }
    }

    /// The store's time, if nobody else is at work. Of two that begin at once, one at least sees the other.
    async fn alone(&self) -> Result<SystemTime> {
        let listed = self.store.scan(PREFIX).await?;
        // From a listing, as all times are that it is compared with: a bucket tells an object's own to the second only.
        let own = listed.iter().find(|sweep| sweep.key == self.key).map(|sweep| sweep.stat.modified);
        let Some(now) = own else { return Err(Error::HeldUp(self.clock.elapsed().saturating_sub(self.written))) };
        for other in listed.into_iter().filter(|other| other.key != self.key) {
            if is_live(&other, now) && !self.is_dead_here(&other, now).await? {
                return Err(Error::Busy { run: other.key, after: DEAD });
            }
            // What it named is marked all the same, and is looked at again by this run.
            self.store.delete(&other.key).await?;
        }
        Ok(now)
    }

    /// Whether it is of a process of this machine that has ended.
    async fn is_dead_here(&self, other: &Listed, now: SystemTime) -> Result<bool> {
        let body = match self.store.get(&other.key).await {
            Ok(body) => body,
            Err(StoreError::NotFound { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let body = serde_json::from_slice::<Body>(&body);
        Ok(body.is_ok_and(|body| has_ended(self.store.url(), &body, other, now)))
    }

    /// Says what is about to be deleted. Who holds any of it from now on will wait for the end.
    pub(super) async fn name(&mut self, keys: Vec<String>) -> Result<()> {
        self.body.keys = keys;
        self.write().await?;
        self.alone().await.map(drop)
    }

    /// Does something that can take long, and goes on saying that it is at work. Where that was not said for too long, as by a
    /// process that was stopped, the work is given up: before it goes on, for who was not waited for may have gone on.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let clock = self.clock.clone();
        loop {
            tokio::select! {
                biased;
                () = clock.watch(RENEW) => self.renew().await?,
                done = &mut work => return done,
            }
        }
    }

    async fn write(&mut self) -> Result<()> {
        let begun = self.clock.elapsed();
        let body = serde_json::to_vec(&self.body).unwrap_or_default();
        self.store.put(&self.key, Bytes::from(body)).await?;
        self.written = begun;
        Ok(())
    }

    /// Before each deletion: that writers still wait for this collector.
    pub(super) async fn still(&mut self) -> Result<()> {
        if self.clock.elapsed().saturating_sub(self.written) > RENEW {
            self.renew().await?;
        }
        self.in_time(self.written)
    }

    /// Says again that it is at work, unless that is too late: a writer may have taken it for dead since it last did, and not
    /// wait for it.
    async fn renew(&mut self) -> Result<()> {
        let before = self.written;
        self.write().await?;
        self.in_time(before)
    }

    fn in_time(&self, written: Duration) -> Result<()> {
        match self.clock.elapsed().saturating_sub(written) {
            since if since > HELD_UP => Err(Error::HeldUp(since)),
            _ => Ok(()),
        }
    }

    /// Waits, and goes on saying that it is at work.
    pub(super) async fn wait(&mut self, time: Duration) -> Result<()> {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(RENEW);
            self.clock.sleep(step).await;
            self.still().await?;
            left -= step;
        }
        Ok(())
    }

    pub(super) async fn end(&self) -> Result<()> {
        Ok(self.store.delete(&self.key).await?)
    }
}

/// One from far in the future was written while the store's clock was wrong: nobody would ever call it dead.
fn is_live(listed: &Listed, now: SystemTime) -> bool {
    let since = now.duration_since(listed.stat.modified);
    since.unwrap_or_else(|ahead| ahead.duration()) < DEAD
}

/// Whether a collector of this machine is no more, and nothing is done for it any more. What a directory was asked for is done
/// or will not be when the process is gone.
fn has_ended(url: &str, body: &Body, listed: &Listed, now: SystemTime) -> bool {
    let age = now.duration_since(listed.stat.modified).unwrap_or_default();
    body.process.is_gone_here() && (url.starts_with("file:") || age >= ON_THE_WAY)
}

/// Those of `keys` that a collector is about to delete. `listed` are the sweeps, `now` the store's time.
pub(super) async fn named(
    store: &dyn Store,
    listed: &[Listed],
    now: SystemTime,
    keys: &[String],
) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for sweep in listed.iter().filter(|sweep| is_live(sweep, now)) {
        let body = match store.get(&sweep.key).await {
            Ok(body) => body,
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        match serde_json::from_slice::<Body>(&body).ok().filter(|body| body.version == VERSION) {
            // Was killed: it deletes nothing more, whenever the next collector takes this away.
            Some(body) if has_ended(store.url(), &body, sweep, now) => {}
            Some(body) => {
                let theirs: BTreeSet<&String> = body.keys.iter().collect();
                found.extend(keys.iter().filter(|key| theirs.contains(key)).cloned());
            }
            // Of a later build: it may be any.
            None => found.extend(keys.iter().cloned()),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Stat;

    #[test]
    fn what_an_ended_collector_asked_a_server_for_is_waited_for_and_a_directory_has_done_it() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let here = serde_json::to_value(Process::this()).unwrap();
        let body = |pid: u32| -> Body {
            let process = serde_json::json!({"place": here["place"], "pid": pid});
            serde_json::from_value(serde_json::json!({"version": VERSION, "process": process})).unwrap()
        };
        child.wait().unwrap();
        let (ended, lives) = (body(child.id()), body(std::process::id()));
        let now = SystemTime::now();
        let of_age = |age| Listed { key: String::new(), stat: Stat { size: 0, modified: now - age } };
        let fresh = of_age(ON_THE_WAY - Duration::from_secs(1));
        assert!(has_ended("file:///store", &ended, &fresh, now) && !has_ended("file:///store", &lives, &fresh, now));
        for url in ["s3://bucket/store", "3fs:///mount/store"] {
            assert!(!has_ended(url, &ended, &fresh, now), "{url}");
            assert!(has_ended(url, &ended, &of_age(ON_THE_WAY), now), "{url}");
            assert!(!has_ended(url, &lives, &of_age(DEAD), now), "{url}");
        }
    }
}
