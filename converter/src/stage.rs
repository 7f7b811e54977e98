//! Where a conversion's layer files wait for its end: a directory that goes with it.
//!
//! A conversion that was killed leaves its directory behind, which may be as large as an image. So each is locked as long
//! as its conversion lives, and the next conversion removes those that nobody locks.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const PREFIX: &str = "lamina-convert-";

/// A directory is made first and locked then; a younger one is not judged.
const GRACE: Duration = Duration::from_secs(60);

/// A directory of one conversion.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: TempDir,
    _lock: File,
}

impl Stage {
    /// A new one in `work`.
    pub(crate) fn new(work: &Path) -> io::Result<Self> {
        sweep(work, GRACE);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(work)?;
        let lock = File::open(directory.path())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { directory, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes what dead conversions left. What cannot be looked at or removed is somebody else's.
fn sweep(work: &Path, grace: Duration) {
    for entry in fs::read_dir(work).into_iter().flatten().flatten() {
        let ours = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        // Not through a link: only what is a directory here.
        if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_dead(&entry.path(), grace).unwrap_or(false) {
            tracing::info!(directory = %entry.path().display(), "removing what a conversion that was killed left");
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_dead(directory: &Path, grace: Duration) -> io::Result<bool> {
    let file = File::open(directory)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    Ok(age >= grace && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_conversion_left_is_removed_and_what_lives_is_not() {
        let work = tempfile::tempdir().unwrap();
        let living = Stage::new(work.path()).unwrap();
        let dead = work.path().join("lamina-convert-dead");
        fs::create_dir_all(dead.join("layers")).unwrap();
        let other = work.path().join("other");
        fs::create_dir(&other).unwrap();
        sweep(work.path(), GRACE);
        assert!(dead.exists(), "too young to be judged");
        sweep(work.path(), Duration::ZERO);
        assert!(living.path().exists() && other.exists() && !dead.exists());
    }
}
