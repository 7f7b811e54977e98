//! The work directory: what all conversions of one user on one machine share while they are under way.
//!
//! ```text
//! <work>/lamina-work-<uid>/      of this user alone: what lies here is taken over into stores
//!     run-<random>/              of one conversion (Stage): spools, and layer files that wait to be published
//!     kept/<key>/                a layer that was made and not yet published (Slot)
//!         lock                   held by who makes the layer, whose process, host and stage it names
//!         <layer id>             its file
//!         <layer id>.json        what is known of it; written after the file
//! ```
//!
//! Finished layers are kept apart from the conversion that made them, so that another one, the same begun again or one
//! that runs beside it, takes them over. Who is alive is told by locks of open files, which end with their process,
//! and who stands still by the times of files (`lock`). What the dead left is removed by the next conversion: stages at
//! once, kept layers after a week, or after a day when they take more room than is free (`sweep`).
//!
//! Nothing here is durable, and need not be: a kept layer is taken over only after every byte of it was verified.

mod kept;
mod lock;
mod sweep;

pub(crate) use kept::{Adopted, Key, Slot};

use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Name of the file whose lock says that somebody lives.
const LOCK: &str = "lock";
/// What the names of stages begin with.
const RUN: &str = "run-";

/// The work directory.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    root: PathBuf,
}

/// The directory of one conversion, which goes with it.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: TempDir,
    _lock: File,
}

impl Work {
    /// Opens that of this user in `directory`, and removes what dead conversions left there.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let failed = |e| Error::failed(format!("the work directory {}", directory.display()), e);
        let directory = std::path::absolute(directory).map_err(failed)?;
        let root = directory.join(format!("lamina-work-{uid}"));
        make_own(&root).and_then(|()| make(&root.join("kept"))).map_err(|e| Error::failed(show(&root), e))?;
        let work = Self { root };
        sweep::sweep(&work, work.free());
        Ok(work)
    }

    /// A new directory for one conversion.
    pub(crate) fn stage(&self) -> Result<Stage> {
        let made = || {
            let directory = tempfile::Builder::new().prefix(RUN).tempdir_in(&self.root)?;
            let lock = File::create(directory.path().join(LOCK))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok(Stage { directory, _lock: lock })
        };
        made().map_err(|e: io::Error| Error::failed(format!("a stage in {}", self.root.display()), e))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// Bytes that the file system can still give this user.
    pub(crate) fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
    }

    fn kept(&self) -> PathBuf {
        self.root.join("kept")
    }
}

impl Stage {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Stage {
    /// Threads in the middle of a layer, which a signal took by surprise, may still put files there.
    fn drop(&mut self) {
        const TRIES: usize = 8;
        let _ = (0..TRIES).find(|_| fs::remove_dir_all(self.path()).is_ok());
    }
}

fn show(path: &Path) -> String {
    format!("the work directory {}", path.display())
}

fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Makes a directory that nobody else can write. In a directory for everybody, its name may have been taken by somebody.
fn make_own(directory: &Path) -> io::Result<()> {
    make(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    match ours {
        true => Ok(()),
        false => Err(io::Error::other("it is not this user's alone: remove it, or name another directory in TMPDIR")),
    }
}

#[cfg(test)]
mod tests;
