//! The database: what exists. redb under the root, one file; it is the only truth, and the directories follow it.
//!
//! * `snapshots`: key or name -> record (active keys and committed names share one space).
//! * `children`: parent -> its children; kept with the records, so that removing asks no other record.
//! * `layers`: layer id -> the number of the directory where it is, or will be, mounted; one for the whole node.
//!   Who uses a layer is not stored: it is derived from the records.
//! * `detached`: numbers of layer directories that nothing names any more, still to be unmounted and removed.
//! * `meta`: the version, and the highest number ever given to a directory.
//!
//! **Writing.** One thread writes. It takes every change that waits, applies them in one transaction, commits once, and
//! only then answers, so that a burst of changes costs one fsync. A change checks everything before it writes
//! anything: one that fails leaves no trace in the transaction that it shares. Changes are durable when they are
//! answered, except the [`Durability::Later`] ones, which are durable no later than the next durable change, in order.
//!
//! **Reading** sees the last commit and waits for nobody.
//!
//! **A disk that fails** (full, an I/O error) fails the whole transaction: everybody in it is told, and nothing of it
//! stays. redb then serves no more, so the file is opened again before the next change; its last commit is intact.

use crate::error::{Context, Error, ErrorKind, Result};
use crate::record::Record;
use redb::{
    Database, MultimapTableDefinition, ReadableDatabase, ReadableMultimapTable, ReadableTable, TableDefinition,
    WriteTransaction,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use tokio::sync::oneshot;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const SNAPSHOTS: TableDefinition<&str, &[u8]> = TableDefinition::new("snapshots");
const CHILDREN: MultimapTableDefinition<&str, &str> = MultimapTableDefinition::new("children");
const LAYERS: TableDefinition<&str, u64> = TableDefinition::new("layers");
const DETACHED: TableDefinition<u64, ()> = TableDefinition::new("detached");

/// Raised when an older build must not touch the database.
const VERSION: u64 = 1;

/// Changes in one transaction at most, so that the first of them does not wait for ever.
const BATCH: usize = 256;

/// When a change has to be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Before it is answered.
    Now,
    /// With the next durable change. A power cut may undo it.
    Later,
}

/// Reading, inside a change or outside.
pub(crate) trait Read {
    fn get(&self, name: &str) -> Result<Option<Record>>;
    fn layer_dir(&self, id: &str) -> Result<Option<u64>>;
}

/// What a change works on.
pub(crate) struct Tables<'t> {
    meta: redb::Table<'t, &'static str, u64>,
    snapshots: redb::Table<'t, &'static str, &'static [u8]>,
    children: redb::MultimapTable<'t, &'static str, &'static str>,
    layers: redb::Table<'t, &'static str, u64>,
    detached: redb::Table<'t, u64, ()>,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            meta: transaction.open_table(META).context(failed)?,
            snapshots: transaction.open_table(SNAPSHOTS).context(failed)?,
            children: transaction.open_multimap_table(CHILDREN).context(failed)?,
            layers: transaction.open_table(LAYERS).context(failed)?,
            detached: transaction.open_table(DETACHED).context(failed)?,
        })
    }

    /// Records a snapshot under a name that is free.
    pub(crate) fn insert(&mut self, name: &str, record: &Record) -> Result<()> {
        if !record.parent.is_empty() {
            self.children.insert(record.parent.as_str(), name).context(failed)?;
        }
        if let Some(dir) = record.dir {
            self.used(dir)?;
        }
        self.replace(name, record)
    }

    /// Writes a record anew, its parent and directory unchanged.
    pub(crate) fn replace(&mut self, name: &str, record: &Record) -> Result<()> {
        self.snapshots.insert(name, record.encode()?.as_slice()).context(failed)?;
        Ok(())
    }

    /// Forgets a snapshot.
    pub(crate) fn delete(&mut self, name: &str, record: &Record) -> Result<()> {
        if !record.parent.is_empty() {
            self.children.remove(record.parent.as_str(), name).context(failed)?;
        }
        self.snapshots.remove(name).context(failed)?;
        Ok(())
    }

    pub(crate) fn has_children(&self, name: &str) -> Result<bool> {
        Ok(!self.children.get(name).context(failed)?.is_empty())
    }

    /// Gives the layer `id` the directory number `dir`.
    pub(crate) fn assign_layer(&mut self, id: &str, dir: u64) -> Result<()> {
        self.layers.insert(id, dir).context(failed)?;
        self.used(dir)
    }

    /// Takes the directory away from the layers that `keep` refuses; they wait in `detached` from now on.
    pub(crate) fn retire_layers(&mut self, keep: impl Fn(&str) -> bool) -> Result<()> {
        let mut retired = Vec::new();
        for row in self.layers.iter().context(failed)? {
            let (id, dir) = row.context(failed)?;
            if !keep(id.value()) {
                retired.push((id.value().to_owned(), dir.value()));
            }
        }
        for (id, dir) in retired {
            self.layers.remove(id.as_str()).context(failed)?;
            self.detached.insert(dir, ()).context(failed)?;
        }
        Ok(())
    }

    /// A layer directory that no table knows waits for its end too.
    pub(crate) fn detach(&mut self, dir: u64) -> Result<()> {
        self.detached.insert(dir, ()).context(failed)?;
        Ok(())
    }

    /// The directory of a retired layer is gone.
    pub(crate) fn forget_detached(&mut self, dir: u64) -> Result<()> {
        self.detached.remove(dir).context(failed)?;
        Ok(())
    }

    /// Calls `each` with every snapshot, in the order of their names.
    pub(crate) fn scan(&self, each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        scan(&self.snapshots, each)
    }

    fn used(&mut self, dir: u64) -> Result<()> {
        let highest = self.meta.get("sequence").context(failed)?.map_or(0, |value| value.value());
        if dir > highest {
            self.meta.insert("sequence", dir).context(failed)?;
        }
        Ok(())
    }
}

impl Read for Tables<'_> {
    fn get(&self, name: &str) -> Result<Option<Record>> {
        get(&self.snapshots, name)
    }

    fn layer_dir(&self, id: &str) -> Result<Option<u64>> {
        Ok(self.layers.get(id).context(failed)?.map(|dir| dir.value()))
    }
}

/// The last committed state, held as long as this lives.
pub(crate) struct Reader {
    snapshots: redb::ReadOnlyTable<&'static str, &'static [u8]>,
    layers: redb::ReadOnlyTable<&'static str, u64>,
    detached: redb::ReadOnlyTable<u64, ()>,
}

impl Reader {
    /// Calls `each` with every snapshot, in the order of their names.
    pub(crate) fn scan(&self, each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        scan(&self.snapshots, each)
    }

    /// Every layer that has a directory: (id, number).
    pub(crate) fn layers(&self) -> Result<Vec<(String, u64)>> {
        let rows = self.layers.iter().context(failed)?;
        rows.map(|row| row.map(|(id, dir)| (id.value().to_owned(), dir.value())).context(failed)).collect()
    }

    /// The directories that wait for their end.
    pub(crate) fn detached(&self) -> Result<Vec<u64>> {
        let rows = self.detached.iter().context(failed)?;
        rows.map(|row| row.map(|(dir, _)| dir.value()).context(failed)).collect()
    }
}

impl Read for Reader {
    fn get(&self, name: &str) -> Result<Option<Record>> {
        get(&self.snapshots, name)
    }

    fn layer_dir(&self, id: &str) -> Result<Option<u64>> {
        Ok(self.layers.get(id).context(failed)?.map(|dir| dir.value()))
    }
}

/// Applies a change. Returned: who is told of the transaction's outcome, and why the transaction must not be
/// committed, if so.
type Job = (Durability, Box<dyn FnOnce(&mut Tables<'_>) -> (Answer, Option<Error>) + Send>);
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// The database file; None while it could not be opened again after a failure.
struct File {
    path: PathBuf,
    db: RwLock<Option<Database>>,
}

impl File {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), db: RwLock::new(Some(create(path)?)) })
    }

    fn with<T>(&self, act: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        act(db.as_ref().ok_or_else(|| Error::internal("the snapshot database failed and is not open again yet"))?)
    }

    fn reopen(&self) -> Result<()> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        *db = None; // it holds the lock of the file
        *db = Some(create(&self.path)?);
        Ok(())
    }
}

fn create(path: &Path) -> Result<Database> {
    Database::create(path).context(|| format!("cannot open the database {}", path.display()))
}

/// The database, open. One process at a time: redb locks the file.
pub(crate) struct State {
    file: Arc<File>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Option<std::thread::JoinHandle<()>>,
    next: AtomicU64,
}

impl State {
    /// Opens or makes the database at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = Arc::new(File::open(path)?);
        let sequence = file.with(|db| initialise(db, path))?;
        let (jobs, waiting) = mpsc::channel();
        let writer = std::thread::Builder::new()
            .name("state".into())
            .spawn({
                let file = Arc::clone(&file);
                move || write(&file, &waiting)
            })
            .context(|| "cannot start the thread that writes the database".into())?;
        Ok(Self { file, jobs: Mutex::new(Some(jobs)), writer: Some(writer), next: AtomicU64::new(sequence + 1) })
    }

    /// A number for a directory, never given before. It is remembered when a record or a layer uses it.
    pub(crate) fn allocate(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers up to `dir` are in use on disk.
    pub(crate) fn reserve(&self, dir: u64) {
        self.next.fetch_max(dir.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Result<Reader> {
        let transaction = self.file.with(|db| db.begin_read().context(failed))?;
        Ok(Reader {
            snapshots: transaction.open_table(SNAPSHOTS).context(failed)?,
            layers: transaction.open_table(LAYERS).context(failed)?,
            detached: transaction.open_table(DETACHED).context(failed)?,
        })
    }

    /// Makes one change. It happens even if the caller stops waiting.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut Tables<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |tables: &mut Tables<'_>| {
            let outcome = change(tables);
            let fatal = outcome.as_ref().err().filter(|error| error.kind == ErrorKind::Internal).cloned();
            let answer: Answer = Box::new(move |committed| {
                let _ = answer.send(committed.and(outcome));
            });
            (answer, fatal)
        });
        self.send((durability, job))?;
        answered.await.map_err(|_| Error::internal("the snapshot database could not take the change"))?
    }

    fn send(&self, job: Job) -> Result<()> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = jobs.as_ref().and_then(|jobs| jobs.send(job).ok());
        sent.ok_or_else(|| Error::internal("the snapshot database is closed"))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Makes the tables, checks the version; the highest number given so far.
fn initialise(db: &Database, path: &Path) -> Result<u64> {
    let transaction = db.begin_write().context(failed)?;
    let sequence = {
        let mut tables = Tables::open(&transaction)?;
        let version = tables.meta.get("version").context(failed)?.map(|value| value.value());
        match version {
            Some(VERSION) => {}
            Some(version) => {
                let path = path.display();
                return Err(Error::internal(format!("{path} has version {version}; this build knows {VERSION}")));
            }
            None => {
                tables.meta.insert("version", VERSION).context(failed)?;
            }
        }
        tables.meta.get("sequence").context(failed)?.map_or(0, |value| value.value())
    };
    transaction.commit().context(failed)?;
    Ok(sequence)
}

/// The writing thread: ends when nobody can send any more.
fn write(file: &File, waiting: &mpsc::Receiver<Job>) {
    let mut broken = false;
    while let Ok(first) = waiting.recv() {
        let mut jobs = vec![first];
        jobs.extend(waiting.try_iter().take(BATCH - 1));
        let count = jobs.len();
        let mut answers = Vec::with_capacity(count);
        let opened = if broken { file.reopen() } else { Ok(()) };
        let outcome = opened.and_then(|()| file.with(|db| apply(db, jobs, &mut answers)));
        broken = outcome.is_err();
        if let Err(error) = &outcome {
            tracing::error!("{count} changes were not written: {error}");
        }
        for answer in answers {
            answer(outcome.clone());
        }
    }
}

/// One transaction with all `jobs` in it. Jobs that are not reached drop their answers, which the callers notice.
fn apply(db: &Database, jobs: Vec<Job>, answers: &mut Vec<Answer>) -> Result<()> {
    let mut transaction = db.begin_write().context(failed)?;
    if jobs.iter().all(|(durability, _)| *durability == Durability::Later) {
        transaction.set_durability(redb::Durability::None).context(failed)?;
    }
    let mut fatal = None;
    {
        let mut tables = Tables::open(&transaction)?;
        for (_, job) in jobs {
            let (answer, error) = job(&mut tables);
            answers.push(answer);
            fatal = fatal.or(error);
        }
    }
    match fatal {
        Some(error) => Err(error), // dropped, the transaction is undone
        None => transaction.commit().context(failed),
    }
}

fn get(table: &impl ReadableTable<&'static str, &'static [u8]>, name: &str) -> Result<Option<Record>> {
    let value = table.get(name).context(failed)?;
    value.map(|bytes| Record::decode(name, bytes.value())).transpose()
}

fn scan(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    mut each: impl FnMut(&str, Record) -> Result<()>,
) -> Result<()> {
    for row in table.iter().context(failed)? {
        let (name, bytes) = row.context(failed)?;
        each(name.value(), Record::decode(name.value(), bytes.value())?)?;
    }
    Ok(())
}

fn failed() -> String {
    "the snapshot database failed".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, Labels, Time, Usage};

    fn record(parent: &str, dir: Option<u64>) -> Record {
        let now = Time::now();
        Record {
            kind: Kind::Committed,
            parent: parent.into(),
            labels: Labels::new(),
            created: now,
            updated: now,
            dir,
            remote: None,
            composed: Vec::new(),
            usage: Usage::default(),
        }
    }

    #[tokio::test]
    async fn a_change_that_fails_leaves_no_trace_and_does_not_hold_up_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(&dir.path().join("db")).unwrap();
        let (bad, good) = tokio::join!(
            state.write(Durability::Now, |_| Err::<(), _>(Error::not_found("x"))),
            state.write(Durability::Now, |tables| tables.insert("a", &record("", None))),
        );
        assert_eq!(bad.unwrap_err().kind, ErrorKind::NotFound);
        good.unwrap();
        let broken = state.write(Durability::Now, |tables| {
            tables.insert("b", &record("", None))?;
            Err::<(), _>(Error::internal("the disk failed half way"))
        });
        assert_eq!(broken.await.unwrap_err().kind, ErrorKind::Internal);
        let reader = state.read().unwrap();
        assert!(reader.get("a").unwrap().is_some() && reader.get("b").unwrap().is_none());
        drop(reader);
        state.write(Durability::Now, |tables| tables.insert("c", &record("", None))).await.unwrap();
    }

    #[tokio::test]
    async fn numbers_are_never_given_twice_even_when_what_had_them_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let state = State::open(&path).unwrap();
        let number = state.allocate();
        let inserted = record("", Some(number));
        let same = inserted.clone();
        state.write(Durability::Now, move |tables| tables.insert("a", &inserted)).await.unwrap();
        state.write(Durability::Now, move |tables| tables.delete("a", &same)).await.unwrap();
        drop(state);
        let state = State::open(&path).unwrap();
        assert!(state.allocate() > number);
        state.reserve(40);
        assert_eq!(state.allocate(), 41);
    }

    #[tokio::test]
    async fn children_follow_their_records() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(&dir.path().join("db")).unwrap();
        let (parent, child) = (record("", None), record("p", None));
        let change = move |tables: &mut Tables<'_>| {
            tables.insert("p", &parent)?;
            tables.insert("c", &child)?;
            let before = tables.has_children("p")?;
            tables.delete("c", &child)?;
            Ok((before, tables.has_children("p")?))
        };
        assert_eq!(state.write(Durability::Later, change).await.unwrap(), (true, false));
    }

    #[test]
    fn a_database_of_a_later_build_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let db = Database::create(&path).unwrap();
        let transaction = db.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("version", VERSION + 1).unwrap();
        transaction.commit().unwrap();
        drop(db);
        assert!(State::open(&path).is_err_and(|error| error.to_string().contains("version")));
    }
}
