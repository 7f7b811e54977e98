//! What removing a snapshot leaves to do: deleting its files, unmounting the layers that nothing names any more.
//!
//! Remove only forgets the record and renames a directory, because containerd holds up every Prepare while it removes.
//! The rest happens here, in containerd's Cleanup call and in the background. Nothing is destroyed before the removal
//! is durable: a power cut may still undo a removal, and the start then finds the directory among the removed.
//!
//! After a crash [`recover`] makes the directories fit the database, which is the truth.

use crate::daemon::Daemon;
use crate::dirs::Dirs;
use crate::error::{Error, Result};
use crate::state::{Durability, State};
use crate::transitions;
use crate::usage::off_thread;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Unmounting waits for laminad no longer than this; what is left is tried again with the next cleanup.
const DETACH_DEADLINE: Duration = Duration::from_secs(10);

/// Removals often come in rows: the background waits so long for the next.
const SETTLE: Duration = Duration::from_secs(1);

/// Cleans up.
pub(crate) struct Janitor {
    state: Arc<State>,
    dirs: Dirs,
    daemon: Daemon,
    one_at_a_time: tokio::sync::Mutex<()>,
    wanted: tokio::sync::Notify,
}

impl Janitor {
    pub(crate) fn new(state: Arc<State>, dirs: Dirs, daemon: Daemon) -> Self {
        Self { state, dirs, daemon, one_at_a_time: Default::default(), wanted: Default::default() }
    }

    /// There is something to do.
    pub(crate) fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Cleans up whenever there is something to do, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.wanted.notified().await;
            tokio::time::sleep(SETTLE).await;
            if let Err(error) = self.clean().await {
                tracing::warn!("cleaning up: {error}");
            }
        }
    }

    /// Does all that is left to do. What fails is logged and stays for the next time.
    pub(crate) async fn clean(&self) -> Result<()> {
        let _cleaning = self.one_at_a_time.lock().await;
        // In this order: what was set aside before the durable change below was removed before it, and stays so.
        let (_, removed) = self.dirs.present()?;
        self.state.write(Durability::Now, transitions::retire_layers).await?;
        // A database that failed and was opened again has forgotten what was not durable: such a removal is undone too.
        let named = named_dirs(&self.state)?;
        let (undone, removed): (Vec<_>, Vec<_>) = removed.into_iter().partition(|dir| named.contains(dir));
        undone.into_iter().try_for_each(|dir| self.dirs.restore(dir))?;
        let dirs = self.dirs.clone();
        off_thread(move || {
            dirs.delete_removed(&removed);
            Ok(())
        })
        .await?;
        self.detach().await
    }

    async fn detach(&self) -> Result<()> {
        let retired = self.state.read()?.detached()?;
        let mounted: Vec<_> = retired.iter().filter(|dir| self.dirs.is_mounted(**dir)).collect();
        if !mounted.is_empty() {
            let targets = mounted.into_iter().map(|dir| self.dirs.fs(*dir).display().to_string()).collect();
            if let Err(failure) = self.daemon.detach(targets, DETACH_DEADLINE).await {
                tracing::warn!("layers out of use stay mounted for now: {failure}");
            }
        }
        for dir in retired {
            // Refused while something is mounted there.
            match self.dirs.remove_layer(dir) {
                Ok(()) => self.state.write(Durability::Later, move |tables| tables.forget_detached(dir)).await?,
                Err(error) => tracing::debug!("{error}"),
            }
        }
        Ok(())
    }
}

/// The directories that snapshots name.
fn named_dirs(state: &State) -> Result<HashSet<u64>> {
    let mut named = HashSet::new();
    state.read()?.scan(|_, record| {
        named.extend(record.dir);
        Ok(())
    })?;
    Ok(named)
}

/// Makes the directories fit the database, before anything is served.
///
/// * A snapshot's directory among the removed: the removal was undone by a power cut; it comes back.
/// * A directory that nothing names: its snapshot was never recorded, or its removal was not finished; it is set aside,
///   or, where a layer is mounted in it, waits to be detached.
pub(crate) async fn recover(state: &State, dirs: &Dirs) -> Result<()> {
    let (present, removed) = dirs.present()?;
    present.iter().chain(&removed).for_each(|dir| state.reserve(*dir));
    let (present, removed): (HashSet<_>, HashSet<_>) = (present.into_iter().collect(), removed.into_iter().collect());
    let reader = state.read()?;
    let mut known: HashSet<u64> = reader.layers()?.into_iter().map(|(_, dir)| dir).chain(reader.detached()?).collect();
    reader.scan(|name, record| {
        let Some(dir) = record.dir else { return Ok(()) };
        known.insert(dir);
        match (present.contains(&dir), removed.contains(&dir)) {
            (true, _) => Ok(()),
            (false, true) => dirs.restore(dir),
            (false, false) => {
                tracing::error!("the directory {dir} of snapshot {name:?} is missing: it cannot be used");
                Ok(())
            }
        }
    })?;
    drop(reader);
    for dir in present.difference(&known).copied() {
        if dirs.is_mounted(dir) {
            state.write(Durability::Now, move |tables| tables.detach(dir)).await?;
        } else {
            tracing::info!("directory {dir} belongs to no snapshot and is removed");
            dirs.set_aside(dir).map_err(|error| Error::internal(format!("recovering: {error}")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Kind, Labels};
    use crate::transitions::New;

    /// A root with the snapshot "kept" in a directory of its own, whose number is returned.
    async fn root() -> (tempfile::TempDir, Arc<State>, Dirs, u64) {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs::open(root.path()).unwrap();
        let state = Arc::new(State::open(&root.path().join("db")).unwrap());
        let dir = state.allocate();
        dirs.make_snapshot(dir, None).unwrap();
        let (key, labels) = ("kept".to_owned(), Labels::new());
        let new = New { key, parent: String::new(), kind: Kind::Active, labels, dir: Some(dir), composed: Vec::new() };
        state.write(Durability::Now, |tables| transitions::create(tables, new, &[])).await.unwrap();
        (root, state, dirs, dir)
    }

    #[tokio::test]
    async fn a_directory_without_a_record_is_swept_and_its_number_is_not_given_again() {
        let (_root, state, dirs, kept) = root().await;
        dirs.make_snapshot(99, None).unwrap();
        recover(&state, &dirs).await.unwrap();
        assert_eq!(dirs.present().unwrap(), (vec![kept], vec![99]));
        assert_eq!(state.allocate(), 100);
        let janitor = Janitor::new(Arc::clone(&state), dirs.clone(), Daemon::new("/nonexistent".as_ref()));
        janitor.clean().await.unwrap();
        assert_eq!(dirs.present().unwrap(), (vec![kept], vec![]));
    }

    #[tokio::test]
    async fn a_removal_that_a_power_cut_undid_gets_its_directory_back() {
        let (_root, state, dirs, kept) = root().await;
        std::fs::write(dirs.fs(kept).join("file"), "x").unwrap();
        dirs.set_aside(kept).unwrap();
        recover(&state, &dirs).await.unwrap();
        assert_eq!(std::fs::read(dirs.fs(kept).join("file")).unwrap(), b"x");
    }
}
