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
use crate::tables::{Reader, Tables, failed};
use redb::{Database, ReadableDatabase};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use tokio::sync::oneshot;

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
    Database::create(path).map_err(|cause| {
        let in_use = matches!(cause, redb::DatabaseError::DatabaseAlreadyOpen);
        let who = if in_use { " (another lamina-snapshotter uses it)" } else { "" };
        Error::caused(format!("cannot open the database {}{who}", path.display()), cause)
    })
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
        Reader::open(&self.file.with(|db| db.begin_read().context(failed))?)
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
        let version = tables.version(VERSION)?;
        if version != VERSION {
            let path = path.display();
            return Err(Error::internal(format!("{path} has version {version}; this build knows {VERSION}")));
        }
        tables.sequence()?
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, Labels, Record, Time, Usage};
    use crate::tables::Read;

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
        Tables::open(&transaction).unwrap().version(VERSION + 1).unwrap();
        transaction.commit().unwrap();
        drop(db);
        assert!(State::open(&path).is_err_and(|error| error.to_string().contains("version")));
    }
}
