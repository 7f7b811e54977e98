//! One collection; the module's head says why each step stands where it does.

use super::clock::{Clock, Machine};
use super::error::{Error, Result};
use super::lease::{self, Leased};
use super::reach::{Reach, held_reach, reach};
use super::report::{Fate, Report, Step, Unneeded};
use super::seen::age;
use super::sweep::Sweep;
use super::weak::Weak;
use super::{leftovers, mark, process};
use crate::pause::random;
use crate::refs::{Digest, Refs, layer_of};
use crate::store::{Listed, Store};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How long a directory must have been empty before it is removed: each conversion and each node has one for its leases. One
/// of an object that is just being written is made again (`store::file`), but not by writers of before that was so.
const EMPTY: Duration = Duration::from_secs(3600);

/// How to collect.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether anything is written. Else it is only told what would be done.
    pub delete: bool,
    /// How long nothing must have needed an object before it is deleted.
    pub grace: Duration,
    /// How long a node may take from looking a layer up to saying so in its lease.
    pub settle: Duration,
    /// Requests under way at a time.
    pub at_once: usize,
    /// Where this becomes true, the run ends as soon as nothing is under way that it answers for: with [`Error::Stopped`].
    pub stop: Option<watch::Receiver<bool>>,
    /// A name of this run that no other has.
    pub(super) run: String,
    pub(super) clock: Arc<dyn Clock>,
}

impl Options {
    /// With these, and the usual rest.
    pub fn new(delete: bool, grace: Duration, settle: Duration) -> Self {
        Self { delete, grace, settle, ..Self::default() }
    }
}

impl Default for Options {
    /// A dry run with a day of grace, 10 s to settle and 32 requests at once.
    fn default() -> Self {
        Self {
            delete: false,
            grace: Duration::from_secs(24 * 3600),
            settle: Duration::from_secs(10),
            at_once: 32,
            stop: None,
            run: format!("{}-{}-{:08x}", process::host(), std::process::id(), random() as u32),
            clock: Arc::new(Machine::default()),
        }
    }
}

/// Collects what nothing in the store needs. `progress` is told what it is at.
pub async fn collect(refs: &Refs, options: &Options, progress: &(dyn Fn(Step) + Sync)) -> Result<Report> {
    if !refs.is_there().await? {
        return Err(Error::NoStore { store: refs.store().url().to_owned() });
    }
    let run = Run { refs, store: refs.store(), options, progress };
    if !options.delete {
        let looked = run.look(SystemTime::now()).await?;
        return run.tell(looked).await;
    }
    let (mut sweep, now) = Sweep::begin(run.store.clone(), options).await?;
    let done = run.all(&mut sweep, now).await;
    // Also where it failed: nobody is to wait for this run any more.
    let ended = sweep.end().await;
    done.and_then(|report| ended.map(|()| report))
}

struct Run<'a> {
    refs: &'a Refs,
    store: &'a Arc<dyn Store>,
    options: &'a Options,
    progress: &'a (dyn Fn(Step) + Sync),
}

/// What there is, and what of it is needed.
struct Looked {
    now: SystemTime,
    /// Tombstones from before everything else was read.
    marks: BTreeMap<String, SystemTime>,
    held: Leased,
    reach: Reach,
    objects: Vec<Listed>,
}

impl Looked {
    fn report(&self) -> Report {
        let mut report =
            Report { images: self.reach.images, tags: self.reach.tags, leases: self.held.live, ..Report::default() };
        for object in self.objects.iter().filter(|object| self.reach.keys.contains(&object.key)) {
            if layer_of(&object.key).is_some() {
                report.needed.objects += 1;
                report.needed.bytes += object.stat.size;
            }
        }
        report
    }

    fn unneeded(&self) -> impl Iterator<Item = &Listed> {
        self.objects.iter().filter(|object| !self.reach.keys.contains(&object.key))
    }
}

impl Run<'_> {
    /// Tombstones, leases, names, objects: in this order.
    async fn look(&self, now: SystemTime) -> Result<Looked> {
        (self.progress)(Step::Reading);
        let marks = mark::of_listing(self.store.scan(mark::PREFIX).await?);
        let held = lease::read(&**self.store, now, &marks).await?;
        let reach = reach(self.refs, &held.keys, self.options.at_once).await?;
        let mut objects = Vec::new();
        for prefix in ["layers/", "manifests/", "blobs/"] {
            objects.extend(self.store.scan(prefix).await?);
        }
        Ok(Looked { now, marks, held, reach, objects })
    }

    /// What would be done.
    async fn tell(&self, looked: Looked) -> Result<Report> {
        let due = self.due(&looked).await?;
        let mut report = looked.report();
        report.unneeded = self.fates(&looked, &due);
        report.leftovers = leftovers::find(&**self.store, looked.now, self.options.grace, &looked.held).await?.len();
        Ok(report)
    }

    async fn all(&self, sweep: &mut Sweep, now: SystemTime) -> Result<Report> {
        let looked = sweep.during(self.look(now)).await?;
        let due = sweep.during(self.due(&looked)).await?;
        let mut report = looked.report();
        report.unneeded = self.fates(&looked, &due);
        sweep.during(self.mark(&looked)).await?;
        if !due.is_empty() {
            let deleted = self.sweep(sweep, due, &looked, &mut report.references).await?;
            for object in report.unneeded.iter_mut().filter(|object| object.fate == Fate::Deleted) {
                if !deleted.contains(&object.key) {
                    object.fate = Fate::Spared;
                }
            }
        }
        let left = leftovers::find(&**self.store, now, self.options.grace, &looked.held).await?;
        report.leftovers = left.len();
        self.delete(sweep, left, |_| {}).await?;
        let before = now.checked_sub(EMPTY).unwrap_or(SystemTime::UNIX_EPOCH);
        if let Err(error) = self.store.tidy("node/", before).await {
            tracing::warn!(%error, "directories that are empty stay");
        }
        Ok(report)
    }

    /// What has been without need for as long as the grace. What an unneeded manifest names waits until that one may go.
    async fn due(&self, looked: &Looked) -> Result<BTreeSet<String>> {
        let is_due = |key: &str| {
            let since = looked.marks.get(key).and_then(|since| looked.now.duration_since(*since).ok());
            since.is_some_and(|since| since >= self.options.grace)
        };
        let (mut due, mut waiting) = (BTreeSet::new(), Vec::new());
        for object in looked.unneeded() {
            match is_due(&object.key) {
                true => drop(due.insert(object.key.clone())),
                false => waiting.extend(object.key.strip_prefix("manifests/sha256/")),
            }
        }
        for hex in waiting {
            let Ok(digest) = format!("sha256:{hex}").parse::<Digest>() else { continue };
            let Ok(Some(manifest)) = self.refs.manifest(&digest).await else { continue };
            for document in [digest, manifest.config] {
                due.remove(&crate::refs::blob_key(&document));
            }
            for chain in &manifest.chains {
                for entry in chain.stack.layers().iter().chain(chain.collapsed.iter().flatten()) {
                    due.remove(&crate::refs::layer_key(&entry.layer));
                }
            }
        }
        Ok(due)
    }

    fn fates(&self, looked: &Looked, due: &BTreeSet<String>) -> Vec<Unneeded> {
        let fate = |object: &Listed| match (due.contains(&object.key), looked.marks.contains_key(&object.key)) {
            (true, _) => Fate::Deleted,
            (false, true) => Fate::Waiting,
            (false, false) => Fate::Marked,
        };
        let unneeded = looked.unneeded().map(|object| Unneeded {
            key: object.key.clone(),
            size: object.stat.size,
            since: looked.marks.get(&object.key).copied(),
            fate: fate(object),
        });
        unneeded.collect()
    }

    /// Gives what nothing needs a tombstone, and takes it from what is needed, or not there any more.
    async fn mark(&self, looked: &Looked) -> Result<()> {
        (self.progress)(Step::Marking);
        let unneeded: BTreeSet<&String> = looked.unneeded().map(|object| &object.key).collect();
        let wanted = unneeded.iter().copied().chain(&looked.held.doubtful);
        let fresh = wanted.filter(|key| !looked.marks.contains_key(*key));
        let done = stream::iter(fresh).map(|key| mark::put(&**self.store, key)).buffer_unordered(self.options.at_once);
        done.try_collect::<Vec<()>>().await?;
        let stays = |key: &&String| unneeded.contains(key) || looked.held.doubtful.contains(*key);
        let over = looked.marks.keys().filter(|key| !stays(key));
        let done =
            stream::iter(over).map(|key| mark::remove(&**self.store, key)).buffer_unordered(self.options.at_once);
        done.try_collect::<Vec<()>>().await?;
        // A clock was wrong when they were written: their time would come when that date does.
        let wrong = looked.marks.iter().filter(|(key, at)| age(**at, looked.now).is_none() && stays(key));
        let done =
            stream::iter(wrong).map(|(key, _)| mark::again(&**self.store, key)).buffer_unordered(self.options.at_once);
        done.try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Deletes what of `due` nobody holds or names after it was said that it will be deleted.
    async fn sweep(
        &self,
        sweep: &mut Sweep,
        due: BTreeSet<String>,
        looked: &Looked,
        references: &mut usize,
    ) -> Result<BTreeSet<String>> {
        sweep.name(due.iter().cloned().collect()).await?;
        (self.progress)(Step::Reading);
        let held = lease::read(&**self.store, looked.now, &looked.marks).await?;
        let reach = sweep.during(reach(self.refs, &held.keys, self.options.at_once)).await?;
        // A writer that held one meanwhile has taken the tombstone away.
        let marks = mark::of_listing(self.store.scan(mark::PREFIX).await?);
        let mut doomed = due;
        doomed.retain(|key| !reach.keys.contains(key) && marks.contains_key(key));

        (self.progress)(Step::References);
        let manifests: Vec<String> = doomed.iter().filter(|key| key.starts_with("manifests/")).cloned().collect();
        let mut deleted: BTreeSet<String> = manifests.iter().cloned().collect();
        self.delete(sweep, manifests, |_| {}).await?;
        let layers: BTreeSet<_> = doomed.iter().filter_map(|key| layer_of(key)).collect();
        if !layers.is_empty() {
            let weak = Weak::open(self.refs, &layers, self.options.at_once).await?;
            *references = sweep.through(weak.loosen()).await?;
            (self.progress)(Step::Waiting);
            sweep.wait(self.options.settle).await?;
            // Nodes that had looked a layer up, by a reference that was weak, have said so by now.
            let held = lease::read(&**self.store, looked.now, &looked.marks).await?;
            let kept = held_reach(self.refs, &held.keys, self.options.at_once).await?;
            doomed.retain(|key| !kept.contains(key));
        }
        let rest: Vec<String> = doomed.into_iter().filter(|key| !deleted.contains(key)).collect();
        let total = rest.len();
        deleted.extend(rest.iter().cloned());
        self.delete(sweep, rest, |done| (self.progress)(Step::Deleting(done, total))).await?;
        let done = stream::iter(&deleted).map(|key| mark::remove(&**self.store, key));
        done.buffer_unordered(self.options.at_once).try_collect::<Vec<()>>().await?;
        Ok(deleted)
    }

    /// Deletes objects, some at a time; before each lot it is made sure that writers still wait for this run.
    async fn delete(&self, sweep: &mut Sweep, mut keys: Vec<String>, told: impl Fn(usize)) -> Result<()> {
        keys.sort_unstable();
        let mut done = 0;
        for lot in keys.chunks(self.options.at_once.max(1)) {
            sweep.still().await?;
            let deletions = stream::iter(lot).map(|key| self.store.delete(key)).buffer_unordered(lot.len());
            deletions.try_collect::<Vec<()>>().await?;
            done += lot.len();
            told(done);
        }
        Ok(())
    }
}
