//! Layers that were made and not yet published: one makes, others wait and take over.

use super::lock::{Holder, Lock, STILL, Signing};
use super::{LOCK, Work};
use crate::build::Made;
use crate::error::{Error, Result};
use blobstore::layer::{LayerError, LayerId, WRITER_GENERATION, format, verify_file};
use blobstore::refs::{Digest, layer_key};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All that a layer's bytes are made of, but for what it takes from the tree below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// Digest of the tar.
    pub(crate) diff_id: Digest,
    /// zstd's level.
    pub(crate) level: i32,
    /// The chunk size that was aimed at.
    pub(crate) chunk_size: u32,
    /// Which files were to come first.
    pub(crate) first: Option<[u8; 8]>,
}

/// The right to make the layer of a key: one at a time has it.
#[derive(Debug)]
pub(crate) struct Slot {
    directory: PathBuf,
    lock: Arc<Lock>,
}

/// What came of taking a kept layer over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// It is in the stage.
    Yes,
    /// Who made it has published it since it was found, and has taken it away.
    Gone,
    /// It was not what it should be, and is removed.
    Damaged,
    /// The system did not let it be taken or read: it stays for others.
    Not,
}

/// A waiter looks this often.
const LOOK: Duration = Duration::from_millis(50);

/// A waiter says whom it waits for after this time.
const PATIENCE: Duration = Duration::from_secs(10);

impl Key {
    pub(super) fn name(&self) -> String {
        let Self { diff_id, level, chunk_size, first } = self;
        let first = first.map_or(String::new(), |mark| format!("-p{:016x}", u64::from_be_bytes(mark)));
        format!("{}-l{level}-c{chunk_size}{first}-g{WRITER_GENERATION}-f{}", diff_id.hex(), format::MAJOR)
    }
}

impl Work {
    /// Takes the slot of a key, to make its layer in `stage`. Where another has it, calls `wait` and blocks until that one
    /// is done or dead; `None` where it makes no progress any more. Who holds a slot must not ask for another: two could
    /// wait for each other.
    pub(crate) fn slot(&self, key: &Key, stage: &Path, wait: impl Fn()) -> Result<Option<Slot>> {
        let directory = self.kept().join(key.name());
        let (mut since, mut named) = (None, false);
        loop {
            let taken = Slot::take(&directory, Some(stage));
            if let Some(slot) = taken.map_err(|e| Error::failed(directory.display().to_string(), e))? {
                return Ok(Some(slot));
            }
            let since = *since.get_or_insert_with(|| {
                wait();
                Instant::now()
            });
            let holder = Holder::of(&directory);
            // Not at first sight: who has just taken the lock of a dead one has not yet written its name.
            if since.elapsed() >= LOOK && holder.still() >= STILL {
                tracing::warn!(diff_id = %key.diff_id, "{holder} makes this layer and has stood still for {} s: it is made \
                    here too, and not waited for", STILL.as_secs());
                return Ok(None);
            }
            if !named && since.elapsed() >= PATIENCE {
                named = true;
                tracing::warn!(diff_id = %key.diff_id, "waiting for {holder}, which makes this layer; should it hang, end it, \
                    or it is waited for until it has stood still for {} s", STILL.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes a layer that is in a store now.
    pub(crate) fn forget(&self, key: &Key, layer: &LayerId) {
        let directory = self.kept().join(key.name());
        remove(&directory, layer);
        // With the slot goes its directory, if nothing else is in it.
        let _ = Slot::take(&directory, None);
    }
}

impl Slot {
    /// Takes the slot in a directory; `None` where another has it.
    pub(super) fn take(directory: &Path, stage: Option<&Path>) -> io::Result<Option<Self>> {
        let lock = Lock::take(directory, stage)?;
        Ok(lock.map(|lock| Self { directory: directory.to_owned(), lock: Arc::new(lock) }))
    }

    /// Has what is read through it be seen as progress by those who wait for the slot.
    pub(crate) fn signing<R: Read>(&self, inner: R) -> Signing<R> {
        Signing::new(inner, &self.lock)
    }

    /// What is kept here. A record that cannot be read is one that a power cut tore, or of another build.
    pub(crate) fn found(&self) -> Vec<Made> {
        let names = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let records = names.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        records.filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok()).collect()
    }

    /// Takes a layer over into a stage, after reading every byte.
    pub(crate) fn adopt(&self, made: &Made, stage: &Path) -> Adopted {
        let id = made.entry.layer;
        let to = stage.join(layer_key(&id));
        let linked = fs::create_dir_all(to.parent().unwrap_or(stage)).and_then(|()| match to.exists() {
            true => Ok(()),
            false => fs::hard_link(self.directory.join(id.to_string()), &to),
        });
        let adopted = match linked {
            Ok(()) => match verify_file(&to, Some(&id)) {
                Ok(_) => return Adopted::Yes,
                Err(error @ LayerError::Io { .. }) => {
                    tracing::warn!(layer = %id, %error, "a kept layer cannot be read: it is made anew");
                    Adopted::Not
                }
                Err(error) => {
                    tracing::warn!(layer = %id, %error, "a kept layer is not whole: it is made anew");
                    Adopted::Damaged
                }
            },
            // Taking away what was published needs no slot, so it can happen at any time; the record went first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Adopted::Gone,
            Err(error) => {
                tracing::warn!(layer = %id, %error, "a kept layer cannot be taken over: it is made anew");
                Adopted::Not
            }
        };
        let _ = fs::remove_file(&to);
        if adopted != Adopted::Not {
            remove(&self.directory, &id);
        }
        adopted
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

fn record(directory: &Path, layer: &LayerId) -> PathBuf {
    directory.join(format!("{layer}.json"))
}

/// Removes a layer, its record first.
fn remove(directory: &Path, layer: &LayerId) {
    let _ = fs::remove_file(record(directory, layer));
    let _ = fs::remove_file(directory.join(layer.to_string()));
}
