//! Layers that were made and not yet published: one makes, others wait and take over.

use super::{LOCK, Work};
use crate::build::Made;
use crate::error::{Error, Result};
use blobstore::layer::{LayerId, WRITER_GENERATION, format, verify_file};
use blobstore::refs::{Digest, layer_key};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// All that a layer's bytes are made of, but for what it takes from the tree below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// Digest of the tar.
    pub(crate) diff_id: Digest,
    /// zstd's level.
    pub(crate) level: i32,
    /// The chunk size that was aimed at.
    pub(crate) chunk_size: u32,
}

/// The right to make the layer of a key: one at a time has it.
#[derive(Debug)]
pub(crate) struct Slot {
    directory: PathBuf,
    _lock: File,
}

impl Key {
    pub(super) fn name(&self) -> String {
        let Self { diff_id, level, chunk_size } = self;
        format!("{}-l{level}-c{chunk_size}-g{WRITER_GENERATION}-f{}", diff_id.hex(), format::MAJOR)
    }
}

impl Work {
    /// Takes the slot of a key; calls `wait` first where another has it, and then blocks until that one is done or dead.
    /// Who holds a slot must not ask for another: two could wait for each other.
    pub(crate) fn slot(&self, key: &Key, wait: impl Fn()) -> Result<Slot> {
        let directory = self.kept().join(key.name());
        let taken = Slot::take(&directory, || {
            wait();
            true
        });
        match taken {
            Ok(Some(slot)) => Ok(slot),
            Ok(None) => Err(Error::failed(directory.display().to_string(), io::Error::from(io::ErrorKind::WouldBlock))),
            Err(e) => Err(Error::failed(directory.display().to_string(), e)),
        }
    }

    /// Removes a layer that is in a store now.
    pub(crate) fn forget(&self, key: &Key, layer: &LayerId) {
        let directory = self.kept().join(key.name());
        remove(&directory, layer);
        // With the slot goes its directory, if nothing else is in it.
        let _ = Slot::take(&directory, || false);
    }
}

impl Slot {
    /// Takes the slot in a directory; `None` where another has it and `wait` says not to wait.
    pub(super) fn take(directory: &Path, wait: impl Fn() -> bool) -> io::Result<Option<Self>> {
        loop {
            let opened = fs::create_dir_all(directory)
                .and_then(|()| File::options().write(true).create(true).truncate(false).open(directory.join(LOCK)));
            let lock = match opened {
                // Its last holder has just removed it.
                Err(e) if e.kind() == io::ErrorKind::NotFound && directory.parent().is_some_and(Path::is_dir) => {
                    continue;
                }
                lock => lock?,
            };
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if !wait() => return Ok(None),
                Err(Errno::WOULDBLOCK) => lock_at_last(&lock)?,
                done => done?,
            }
            // A lock on a file that was removed meanwhile is none.
            let (ours, found) = (lock.metadata()?, fs::metadata(directory.join(LOCK)));
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino())) {
                return Ok(Some(Self { directory: directory.to_owned(), _lock: lock }));
            }
        }
    }

    /// What is kept here. A record that cannot be read is one that a power cut tore, or of another build.
    pub(crate) fn found(&self) -> Vec<Made> {
        let names = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let records = names.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        records.filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok()).collect()
    }

    /// Takes a layer over into a stage, unless it is not whole: then it is removed. Reads every byte.
    pub(crate) fn adopt(&self, made: &Made, stage: &Path) -> bool {
        let id = made.entry.layer;
        let to = stage.join(layer_key(&id));
        let linked = fs::create_dir_all(to.parent().unwrap_or(stage)).and_then(|()| match to.exists() {
            true => Ok(()),
            false => fs::hard_link(self.directory.join(id.to_string()), &to),
        });
        let whole =
            linked.map_err(|e| e.to_string()).and_then(|()| verify_file(&to, Some(&id)).map_err(|e| e.to_string()));
        if let Err(error) = &whole {
            tracing::warn!(layer = %id, error, "a kept layer is not whole: it is made anew");
            let _ = fs::remove_file(&to);
            remove(&self.directory, &id);
        }
        whole.is_ok()
    }

    /// Keeps a layer that is in a stage. That it cannot be kept does no harm.
    pub(crate) fn keep(&self, made: &Made, stage: &Path) {
        if let Err(error) = self.try_keep(made, stage) {
            tracing::debug!(layer = %made.entry.layer, %error, "a layer is not kept: others cannot take it over");
            remove(&self.directory, &made.entry.layer);
        }
    }

    fn try_keep(&self, made: &Made, stage: &Path) -> io::Result<()> {
        let id = made.entry.layer;
        let file = self.directory.join(id.to_string());
        match fs::hard_link(stage.join(layer_key(&id)), &file) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let part = self.directory.join("part");
        fs::write(&part, serde_json::to_vec(made)?)?;
        fs::rename(part, record(&self.directory, &id))
    }
}

impl Drop for Slot {
    /// An empty slot leaves nothing behind.
    fn drop(&mut self) {
        let mut names = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        if names.all(|entry| entry.file_name() == LOCK) {
            let _ = fs::remove_file(self.directory.join(LOCK)).and_then(|()| fs::remove_dir(&self.directory));
        }
    }
}

/// A wait for a lock that goes on after a signal.
fn lock_at_last(lock: &File) -> io::Result<()> {
    loop {
        match flock(lock, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

fn record(directory: &Path, layer: &LayerId) -> PathBuf {
    directory.join(format!("{layer}.json"))
}

/// Removes a layer, its record first.
fn remove(directory: &Path, layer: &LayerId) {
    let _ = fs::remove_file(record(directory, layer));
    let _ = fs::remove_file(directory.join(layer.to_string()));
}
