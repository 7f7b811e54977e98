//! Head files: what the kernel mounts of a layer, and its index.
//!
//! ```text
//! metadata           as the caller gives it: a multiple of 4096 bytes, from byte 0, so that it is mounted as it is
//! index frame        as in the layer file
//! trailer, 48 bytes  BLAKE3 of the metadata, u64 (little endian) metadata length, magic "LAMINAHD"
//! ```
//!
//! Written durably, opened only verified: the index by the layer's id, the metadata by the trailer. A file that does not
//! match is removed and counts as absent. Head files are never changed, only replaced: one that is mounted or mapped
//! keeps its content.

use super::{CacheError, Lock, Result, UNFINISHED, io_error, replace_file};
use crate::layer::{Index, LayerError, LayerId, map_file};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TRAILER: u64 = 48;
const MAGIC: &[u8; 8] = b"LAMINAHD";

/// The heads on this node.
#[derive(Debug, Clone)]
pub struct Heads {
    dir: PathBuf,
    _lock: Arc<Lock>,
}

/// A verified head file.
#[derive(Debug, Clone)]
pub struct HeadFile {
    /// Where it is: to be mounted.
    pub path: PathBuf,
    /// Bytes of metadata at its beginning.
    pub metadata_len: u64,
    /// The layer's index, mapped from it.
    pub index: Arc<Index>,
}

impl Heads {
    pub(super) fn open(dir: &Path, lock: Arc<Lock>) -> Result<Self> {
        fs::create_dir_all(dir).map_err(io_error(dir, "creating"))?;
        let heads = Self { dir: dir.to_owned(), _lock: lock };
        for name in heads.names()? {
            if name.starts_with(UNFINISHED) {
                // What a crash left behind; one that cannot be removed takes space and does no harm.
                let _ = fs::remove_file(dir.join(name));
            }
        }
        Ok(heads)
    }

    /// Where a layer's head is, or would be.
    pub fn path(&self, layer: &LayerId) -> PathBuf {
        self.dir.join(layer.to_string())
    }

    /// The head of a layer, verified; `None` when it is not here, or was damaged and has been removed.
    pub fn get(&self, layer: &LayerId) -> Result<Option<HeadFile>> {
        let path = self.path(layer);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error(&path, "opening")(e)),
        };
        match verify(&file, layer) {
            Ok((metadata_len, index)) => Ok(Some(HeadFile { path, metadata_len, index: Arc::new(index) })),
            // A file that cannot be read is as good as a damaged one: fetched again, it lies elsewhere on the disk.
            Err(error) => {
                tracing::warn!(%layer, %error, "a damaged head file is removed");
                self.remove(layer)?;
                Ok(None)
            }
        }
    }

    /// Keeps a layer's head, durably; one that is there is replaced. `frame` is the layer's index frame.
    pub fn put(&self, layer: &LayerId, metadata: &[u8], frame: &[u8]) -> Result<HeadFile> {
        let path = self.path(layer);
        let mut trailer = Vec::with_capacity(TRAILER as usize);
        trailer.extend_from_slice(blake3::hash(metadata).as_bytes());
        trailer.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        trailer.extend_from_slice(MAGIC);
        // Somebody may have emptied the cache while we run.
        fs::create_dir_all(&self.dir).map_err(io_error(&self.dir, "creating"))?;
        replace_file(&path, &[metadata, frame, &trailer]).map_err(io_error(&path, "writing"))?;
        let unreadable = || io::Error::other("what was just written reads back as something else");
        self.get(layer)?.ok_or_else(|| io_error(&path, "reading back")(unreadable()))
    }

    /// Forgets a layer's head.
    pub fn remove(&self, layer: &LayerId) -> Result<()> {
        let path = self.path(layer);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io_error(&path, "removing")(e)),
            _ => Ok(()),
        }
    }

    /// The layers whose heads are here, in order of their ids, with the bytes of each file.
    pub fn list(&self) -> Result<Vec<(LayerId, u64)>> {
        let mut heads: Vec<_> = self
            .names()?
            .iter()
            .filter_map(|name| {
                let size = fs::metadata(self.dir.join(name)).ok()?.len();
                Some((name.parse().ok()?, size))
            })
            .collect();
        heads.sort_unstable();
        Ok(heads)
    }

    /// Removes files that are neither heads nor being written: older than `age`. Gives how many, and their bytes.
    pub fn remove_strays(&self, age: Duration) -> Result<(u64, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for name in self.names()?.iter().filter(|name| name.parse::<LayerId>().is_err()) {
            let path = self.dir.join(name);
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_file() && is_older(&metadata, age) && fs::remove_file(&path).is_ok() {
                (files, bytes) = (files + 1, bytes + metadata.len());
            }
        }
        Ok((files, bytes))
    }

    /// Whether a layer's head was written longer ago than `age`.
    pub fn is_older(&self, layer: &LayerId, age: Duration) -> bool {
        fs::metadata(self.path(layer)).is_ok_and(|metadata| is_older(&metadata, age))
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.dir).map_err(io_error(&self.dir, "listing"))?;
        Ok(entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect())
    }
}

fn is_older(metadata: &fs::Metadata, age: Duration) -> bool {
    metadata.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|since| since > age)
}

impl CacheError {
    /// Whether the file system is full (or the quota on it).
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// The metadata's length and the index of a head file in which every byte is as it was written.
fn verify(file: &File, layer: &LayerId) -> std::result::Result<(u64, Index), LayerError> {
    let damaged = |what: &str| LayerError::Malformed(what.to_owned());
    let io = |source| LayerError::Io { what: "reading it".to_owned(), source };
    let end =
        file.metadata().map_err(io)?.len().checked_sub(TRAILER).ok_or_else(|| damaged("shorter than its trailer"))?;
    let mut trailer = [0; TRAILER as usize];
    file.read_exact_at(&mut trailer, end).map_err(io)?;
    let (hash, rest) = trailer.split_at(32);
    let (length, magic) = rest.split_at(8);
    if magic != MAGIC {
        return Err(damaged("its trailer has no magic"));
    }
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if length > end {
        return Err(damaged("its trailer names more metadata than there is"));
    }
    let index = Index::parse_as(map_file(file, length..end)?, layer)?;
    if length + index.frame_len() != end {
        return Err(damaged("there is something between its index and its trailer"));
    }
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut file.take(length), &mut hasher).map_err(io)?;
    match hasher.finalize().as_bytes() == hash {
        true => Ok((length, index)),
        false => Err(damaged("its metadata does not match its trailer")),
    }
}
