//! Whole objects written durably: temporary name, sync, link or rename, sync of the directory.

use super::directories;
use crate::store::TEMPORARY;
use rustix::fs::{Access, AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, accessat, futimens, lgetxattr};
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

/// Bytes that are copied between two looks at whether anybody waits for them.
const PIECE: u64 = 8 << 20;

/// Whether anybody waits for a write: a command that a signal ends goes away from what it began, and half a layer is not to
/// stay under a temporary name.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    no_more: Arc<AtomicBool>,
}

/// Who waits.
pub(super) struct Waiting(Arc<AtomicBool>);

impl Wanted {
    /// Until that is dropped.
    pub(super) fn until_dropped(&self) -> Waiting {
        Waiting(self.no_more.clone())
    }

    fn check(&self) -> io::Result<()> {
        match self.no_more.load(Ordering::Relaxed) {
            true => Err(io::Error::other("nobody waits for it any more")),
            false => Ok(()),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes `body` to `path` below `root`; `AlreadyExists` where there is something, which is then untouched.
pub(super) fn create<R: Read>(root: &Path, path: &Path, body: &mut R, wanted: &Wanted) -> io::Result<()> {
    // Told before a large body is copied; the link below decides.
    is_free(path)?;
    let (directory, file) = directories::within(root, path, temporary)?;
    fill(file, body, wanted)?.persist_noclobber(path)?;
    directory.sync_all()
}

/// Gives `file`, which is open as `source`, the name `path` below `root` too, as if it had been written now, or copies it
/// where that cannot be or would leave it with other permissions than a copy; else as [`create`].
pub(super) fn adopt(root: &Path, path: &Path, file: &Path, source: &File, wanted: &Wanted) -> io::Result<()> {
    is_free(path)?;
    match directories::within(root, path, |parent| link(parent, path, file, source)) {
        Ok((directory, true)) => directory.sync_all(),
        Ok((_, false)) => create(root, path, &mut &*source, wanted),
        Err(error) => Err(error),
    }
}

/// Whether `file` has the name `path` in `parent` now; not where a copy is to have it.
fn link(parent: &Path, path: &Path, file: &Path, source: &File) -> io::Result<bool> {
    // A link to a link would be one to what others can change.
    let regular = file.symlink_metadata()?.is_file() && source.metadata()?.dev() == parent.metadata()?.dev();
    if !regular || gives_permissions(parent, source)? {
        return Ok(false);
    }
    // What a collector goes by is when the object came into the store.
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(source, &Timestamps { last_access: now, last_modification: now })?;
    source.sync_all()?;
    match fs::hard_link(file, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // Another mount of the device, a file system without links, a rule against them: whatever it is, a copy will tell.
        Err(_) => Ok(false),
    }
}

/// An error where something has the name. What is no file, and leads to none, is no object for readers: who would be told that
/// there is one would look for it in vain.
fn is_free(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) if path.is_file() => Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => Err(io::Error::other("what is there is no file, nor a link to one: remove it")),
    }
}

/// Whether a new file in `directory` gets a group or a list of permissions from it that `file` does not have.
fn gives_permissions(directory: &Path, file: &File) -> io::Result<bool> {
    const SET_GROUP: u32 = 0o2000;
    let found = directory.metadata()?;
    let group = found.mode() & SET_GROUP != 0 && found.gid() != file.metadata()?.gid();
    Ok(group || lgetxattr(directory, "system.posix_acl_default", &mut [0; 0][..]).is_ok_and(|length| length > 0))
}

/// Writes `body` to `path` below `root`, in place of what is there.
pub(super) fn replace<R: Read>(root: &Path, path: &Path, body: &mut R, wanted: &Wanted) -> io::Result<()> {
    let (directory, file) = directories::within(root, path, temporary)?;
    fill(file, body, wanted)?.persist(path)?;
    directory.sync_all()
}

/// That a new name could be made in `root`, or in what `root` would be made in. Nothing is made: what the system would say is
/// asked for.
pub(super) fn check_writable(root: &Path) -> io::Result<()> {
    let there = root.ancestors().find(|above| above.exists()).unwrap_or(root);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", there.display()));
    if !there.is_dir() {
        return Err(named(io::ErrorKind::NotADirectory.into()));
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, there, wanted, AtFlags::EACCESS).map_err(|error| named(error.into()))
}

fn temporary(directory: &Path) -> io::Result<NamedTempFile> {
    // 0666 less the umask, like any new file: a store is read by other users than its writer.
    tempfile::Builder::new().prefix(TEMPORARY).permissions(Permissions::from_mode(0o666)).tempfile_in(directory)
}

fn fill<R: Read>(mut file: NamedTempFile, body: &mut R, wanted: &Wanted) -> io::Result<NamedTempFile> {
    while io::copy(&mut body.by_ref().take(PIECE), file.as_file_mut())? > 0 {
        wanted.check()?;
    }
    file.as_file().sync_all()?;
    wanted.check()?;
    Ok(file)
}
