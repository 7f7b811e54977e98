//! The directories that objects lie in: made for an object, and removed by collectors once they have long been empty.
//!
//! So a directory can vanish after it was made for an object and before there is one in it. Whoever makes one makes it again
//! then ([`within`]); once a name is in it, it stays. The first two of a key stay in any case (`node/leases/`): somebody may
//! have given them to a user or a group.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Directories of a key that are never removed.
const STAY: usize = 2;

/// How often a directory is made again that another has removed.
const TRIES: usize = 64;

/// Makes the directories above `path` that are missing, and has `begin` put a name into the one it lies in: all again where that
/// directory has vanished. Gives it open.
pub(super) fn within<T>(
    root: &Path,
    path: &Path,
    mut begin: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(File, T)> {
    let parent = path.parent().unwrap_or(path);
    let mut tries = TRIES;
    loop {
        // Opened when the name is in it: it is the directory that stays.
        let begun = make(root, parent).and_then(|()| begin(parent)).and_then(|begun| Ok((File::open(parent)?, begun)));
        tries -= 1;
        match begun {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries > 0 => {}
            begun => return begun,
        }
    }
}

/// Makes a directory and those above it, each durable in its own parent.
fn make(root: &Path, directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let missing: Vec<&Path> = directory.ancestors().take_while(|above| !above.is_dir()).collect();
    for directory in missing.into_iter().rev() {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            // Also where another writer has just made it: its name must be durable before ours says so.
            _ => sync(directory.parent().unwrap_or(root))?,
        }
    }
    Ok(())
}

/// Makes the names in `directory` durable.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Removes `directory`, and those above it, as far as they are empty. Whether that succeeds is nobody's need: what the system
/// refuses stays, and what a crash brings back is empty.
fn remove_empty(root: &Path, directory: &Path) {
    for directory in directory.ancestors() {
        let depth = directory.strip_prefix(root).map_or(0, |below| below.components().count());
        if depth <= STAY || fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

/// Removes the directories below `prefix` in `root` that have been empty since before a moment, and those above that become so.
pub(super) fn remove_all_empty(root: &Path, prefix: &str, before: SystemTime) -> io::Result<()> {
    let mut folders = vec![root.join(prefix)];
    while let Some(folder) = folders.pop() {
        let Some(entries) = entries(&folder)? else { continue };
        if entries.is_empty() && folder.metadata().and_then(|found| found.modified()).is_ok_and(|at| at < before) {
            remove_empty(root, &folder);
        }
        folders.extend(entries.into_iter().filter(|(_, directory)| *directory).map(|(path, _)| path));
    }
    Ok(())
}

/// What is in a directory, and whether that is one; `None` where it has gone.
fn entries(folder: &Path) -> io::Result<Option<Vec<(PathBuf, bool)>>> {
    let found = match fs::read_dir(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // What is gone by now is no directory.
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = found.map(|entry| entry.map(|entry| (entry.path(), is_directory(&entry))));
    entries.collect::<io::Result<_>>().map(Some)
}
