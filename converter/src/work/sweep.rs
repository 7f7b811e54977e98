//! What conversions that are dead left in the work directory, and how long it stays.

use super::{LOCK, RUN, Slot, Work};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A stage is made first and locked then; a younger one is not judged.
const GRACE: Duration = Duration::from_secs(60);
/// How long a layer is kept that nobody publishes: long enough for somebody to come back to it after a weekend.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
/// A layer younger than this stays however full the disk is: it is what the next try of a conversion that ran out of room
/// comes back for.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A kept layer that no conversion uses.
struct Idle {
    directory: PathBuf,
    modified: SystemTime,
    bytes: u64,
}

/// Removes stages that nobody holds, once older than [`GRACE`]; kept layers older than a week; and of the others that are a
/// day old the oldest, while all take more than the `free` bytes that the file system has left. What cannot be looked at
/// or removed is left.
pub(super) fn sweep(work: &Work, free: u64) {
    for entry in fs::read_dir(work.path()).into_iter().flatten().flatten() {
        let ours = entry.file_name().as_encoded_bytes().starts_with(RUN.as_bytes());
        if ours && is_dead(&entry.path()).unwrap_or(false) {
            tracing::info!(directory = %entry.path().display(), "removing what a conversion that was killed left");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let mut idle: Vec<Idle> =
        fs::read_dir(work.kept()).into_iter().flatten().flatten().filter_map(|e| idle(&e.path())).collect();
    idle.sort_by_key(|kept| kept.modified);
    let mut taken: u64 = idle.iter().map(|kept| kept.bytes).sum();
    for kept in idle {
        let age = kept.modified.elapsed().unwrap_or_default();
        if (age >= WEEK || (age >= DAY && taken > free)) && remove(&kept.directory) {
            taken -= kept.bytes;
        }
    }
}

fn is_dead(stage: &Path) -> io::Result<bool> {
    if stage.metadata()?.modified()?.elapsed().unwrap_or_default() < GRACE {
        return Ok(false);
    }
    match File::options().write(true).open(stage.join(LOCK)) {
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()),
        Err(e) => Ok(e.kind() == io::ErrorKind::NotFound),
    }
}

/// What a slot's directory holds, if its files are nobody else's: a conversion that uses one has a link to it.
fn idle(directory: &Path) -> Option<Idle> {
    let entries = fs::read_dir(directory)
        .ok()?
        .map(|entry| Ok((entry.as_ref().map(DirEntry::file_name).ok(), entry?.metadata()?)));
    let files = entries.collect::<io::Result<Vec<_>>>().ok()?;
    // Whoever looks into the slot touches the lock: it says how old the layer is only where there is none.
    let age = |lock: bool| {
        let of = files.iter().filter(|(name, _)| (name.as_deref() == Some(LOCK.as_ref())) == lock);
        of.filter_map(|(_, file)| file.modified().ok()).max()
    };
    let modified = age(false).or_else(|| age(true))?;
    let idle = files.iter().all(|(_, file)| file.nlink() == 1);
    let bytes = files.iter().map(|(_, file)| file.len()).sum();
    idle.then(|| Idle { directory: directory.to_owned(), modified, bytes })
}

/// Removes what is in a slot's directory, and it with the slot, unless somebody makes its layer just now.
fn remove(directory: &Path) -> bool {
    let Ok(Some(_slot)) = Slot::take(directory, None) else { return false };
    tracing::info!(directory = %directory.display(), "removing a layer that was never published");
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name() != LOCK {
            let _ = fs::remove_file(entry.path());
        }
    }
    true
}
