//! The collector's word that it is about to delete: `tombstones/sweeps/<run>`.
//!
//! `{"version": 1, "host": …, "process": …, "keys": […]}`, rewritten at least every [`RENEW`] while its collector is at work.
//! Writers that find a key of theirs in it wait until it is gone. One that nobody rewrote for [`DEAD`] is of a collector
//! that was killed, and counts for nothing: between its last word and its last deletion lie [`HELD_UP`] and what one
//! deletion takes, which together are less than that. Where times are of one clock, its date tells; elsewhere only who has
//! watched it for so long knows. So does one count for nothing whose process was on this machine and has ended, as soon as
//! nothing that it asked for can still be [`ON_THE_WAY`].

use super::clock::Clock;
use super::error::{Error, Result};
use super::process::{self, Process};
use super::run::Options;
use super::seen::{Seen, Sight, age, has_one_clock};
use crate::store::{Listed, Store, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Where they lie.
pub(super) const PREFIX: &str = "tombstones/sweeps/";

/// How often a collector rewrites its own.
const RENEW: Duration = Duration::from_secs(30);

/// Past this time since it was last written, a collector begins no deletion.
const HELD_UP: Duration = Duration::from_secs(120);

/// Past this time without a change, it counts for nothing.
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
    /// Others'.
    seen: Seen,
    stop: Option<watch::Receiver<bool>>,
}

impl Sweep {
    /// Says that a collector is at work, unless one is. The store's time is in the answer.
    pub(super) async fn begin(store: Arc<dyn Store>, options: &Options) -> Result<(Self, SystemTime)> {
        let mut sweep = Self {
            store,
            clock: options.clock.clone(),
            key: format!("{PREFIX}{}", options.run),
            body: Body { version: VERSION, host: process::host(), process: Process::this(), keys: Vec::new() },
            written: Duration::ZERO,
            seen: Seen::default(),
            stop: options.stop.clone(),
        };
        sweep.write().await?;
        match sweep.alone().await {
            Ok(now) => Ok((sweep, now)),
            Err(error) => {
                sweep.end().await?;
                Err(error)
            }
        }
    }

    /// The store's time, if nobody else is at work. Of two that begin at once, one at least sees the other. One whose date tells
    /// nothing is watched for as long as it takes to know.
    async fn alone(&mut self) -> Result<SystemTime> {
        loop {
            let listed = self.store.scan(PREFIX).await?;
            // From a listing, as all times are that it is compared with: a bucket tells an object's own to the second only.
            let own = listed.iter().find(|sweep| sweep.key == self.key).map(|sweep| sweep.stat.modified);
            let Some(now) = own else { return Err(Error::HeldUp(self.clock.elapsed().saturating_sub(self.written))) };
            let mut watched = 0;
            for other in listed.into_iter().filter(|other| other.key != self.key) {
                let sight = self.seen.look(&other, self.clock.elapsed());
                if is_over(self.store.url(), &other, now, sight) || self.is_dead_here(&other, now, sight).await? {
                    // What it named is marked all the same, and is looked at again by this run.
                    self.store.delete(&other.key).await?;
                } else if sight == Sight::Changed || age(other.stat.modified, now).is_some_and(|age| age < DEAD) {
                    return Err(Error::Busy { run: other.key, after: DEAD });
                } else {
                    watched += 1;
                }
            }
            if watched == 0 {
                return Ok(now);
            }
            tracing::info!(
                records = watched,
                "an earlier collector's record, of a date that tells nothing, is watched"
            );
            self.sleep(RENEW).await?;
            self.still().await?;
        }
    }

    /// Whether it is of a process of this machine that has ended.
    async fn is_dead_here(&self, other: &Listed, now: SystemTime, sight: Sight) -> Result<bool> {
        let body = match self.store.get(&other.key).await {
            Ok(body) => body,
            Err(StoreError::NotFound { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let body = serde_json::from_slice::<Body>(&body);
        Ok(body.is_ok_and(|body| has_ended(self.store.url(), &body, unchanged(self.store.url(), other, now, sight))))
    }

    /// Says what is about to be deleted. Who holds any of it from now on will wait for the end.
    pub(super) async fn name(&mut self, keys: Vec<String>) -> Result<()> {
        self.body.keys = keys;
        self.write().await?;
        self.alone().await.map(drop)
    }

    /// Does something that can take long, and goes on saying that it is at work. Where that was not said for too long, as by a
    /// process that was stopped, the work is given up: before it goes on, for who was not waited for may have gone on. It is given up
    /// too where the collector is to end.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let stop = self.stop.clone();
        let done = self.through(async {
            tokio::select! {
                biased;
                () = told(stop) => Err(Error::Stopped),
                done = work => done,
            }
        });
        done.await
    }

    /// As [`Self::during`], of what must not be given up half done because the collector is to end.
    pub(super) async fn through<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
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

    /// Before each deletion: that writers still wait for this collector, and that it is to go on.
    pub(super) async fn still(&mut self) -> Result<()> {
        if self.stop.as_ref().is_some_and(|stop| *stop.borrow()) {
            return Err(Error::Stopped);
        }
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
            self.sleep(step).await?;
            self.still().await?;
            left -= step;
        }
        Ok(())
    }

    async fn sleep(&self, time: Duration) -> Result<()> {
        tokio::select! {
            biased;
            () = told(self.stop.clone()) => Err(Error::Stopped),
            () = self.clock.sleep(time) => Ok(()),
        }
    }

    pub(super) async fn end(&self) -> Result<()> {
        Ok(self.store.delete(&self.key).await?)
    }
}

/// Waits until the collector is told to end: for ever, where nobody can.
async fn told(stop: Option<watch::Receiver<bool>>) {
    if let Some(mut stop) = stop
        && stop.wait_for(|stop| *stop).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// How long a collector has said nothing, as far as anybody knows who sees this of its record.
fn unchanged(url: &str, listed: &Listed, now: SystemTime, sight: Sight) -> Duration {
    let watched = if let Sight::Same(time) = sight { time } else { Duration::ZERO };
    let dated = age(listed.stat.modified, now).filter(|_| has_one_clock(url)).unwrap_or_default();
    watched.max(dated)
}

/// Whether it is certain that its collector deletes nothing more.
fn is_over(url: &str, listed: &Listed, now: SystemTime, sight: Sight) -> bool {
    unchanged(url, listed, now, sight) >= DEAD
}

/// Whether a collector of this machine is no more, and nothing is done for it any more. What a directory was asked for is done
/// or will not be when the process is gone.
fn has_ended(url: &str, body: &Body, unchanged: Duration) -> bool {
    body.process.is_gone_here() && (url.starts_with("file:") || unchanged >= ON_THE_WAY)
}

/// What a writer sees of the collectors: all sweeps, and what it has seen of them before, at this moment of its own time.
pub(super) struct View<'a> {
    pub(super) listed: &'a [Listed],
    /// The store's time.
    pub(super) now: SystemTime,
    pub(super) seen: &'a mut Seen,
    pub(super) elapsed: Duration,
}

/// Those of `keys` that a collector is about to delete.
pub(super) async fn named(store: &dyn Store, view: View<'_>, keys: &[String]) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let View { listed, now, seen, elapsed } = view;
    for sweep in listed {
        let sight = seen.look(sweep, elapsed);
        if is_over(store.url(), sweep, now, sight) {
            continue;
        }
        let body = match store.get(&sweep.key).await {
            Ok(body) => body,
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        match serde_json::from_slice::<Body>(&body).ok().filter(|body| body.version == VERSION) {
            // Was killed: it deletes nothing more, whenever the next collector takes this away.
            Some(body) if has_ended(store.url(), &body, unchanged(store.url(), sweep, now, sight)) => {}
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
        let fresh = ON_THE_WAY - Duration::from_secs(1);
        assert!(has_ended("file:///store", &ended, fresh) && !has_ended("file:///store", &lives, fresh));
        for url in ["s3://bucket/store", "3fs:///mount/store"] {
            assert!(!has_ended(url, &ended, fresh), "{url}");
            assert!(has_ended(url, &ended, ON_THE_WAY), "{url}");
            assert!(!has_ended(url, &lives, DEAD), "{url}");
        }
    }

    #[test]
    fn by_its_date_only_a_buckets_record_is_dead_and_whatever_was_watched_for_long_is() {
        let now = SystemTime::now();
        let dated = |modified| Listed { key: String::new(), stat: Stat { size: 0, modified } };
        let (new, watched) = (Sight::New, Sight::Same(DEAD));
        for (written, by_date) in [(now - DEAD, true), (now - DEAD / 2, false), (now + 100 * DEAD, false)] {
            assert_eq!(is_over("s3://bucket/store", &dated(written), now, new), by_date);
            assert!(!is_over("file:///store", &dated(written), now, new));
            for url in ["s3://bucket/store", "file:///store"] {
                assert!(is_over(url, &dated(written), now, watched));
                assert!(!is_over("file:///store", &dated(written), now, Sight::Changed));
            }
        }
    }
}
