//! How much disk a directory tree takes.
//!
//! containerd asks for every active snapshot each ten seconds, and the only way to know is to walk its tree. So a walk
//! is kept, and repeated only after [`REST`] times as long as it took: a small tree's figure is always fresh, a big
//! one's is old by a few seconds, and each snapshot costs at most 1/20 of one core. One tree is walked at a time.

use crate::error::{Context, Result};
use crate::record::Usage;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A figure is good for this many times the duration of the walk that made it.
const REST: u32 = 20;

/// Walks a tree, without crossing into other file systems: allocated bytes, and inodes (hard links count once).
pub(crate) fn walk(root: &Path) -> Result<Usage> {
    let what = || format!("cannot measure {}", root.display());
    let top = fs::symlink_metadata(root).context(what)?;
    let mut usage = Usage { size: top.blocks() * 512, inodes: 1 };
    let mut linked = HashSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        // Files come and go under the walk while a container runs: what is gone does not count.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            let again = found.nlink() > 1 && !found.is_dir() && !linked.insert(found.ino());
            if again || found.dev() != top.dev() {
                continue;
            }
            usage.size += found.blocks() * 512;
            usage.inodes += 1;
            if found.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(usage)
}

/// The last walk of each active snapshot, by its directory number.
#[derive(Default)]
pub(crate) struct Walks {
    last: Mutex<HashMap<u64, (Usage, Instant)>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Walks {
    /// The usage of `path`, which is the directory `dir`.
    pub(crate) async fn usage(&self, dir: u64, path: std::path::PathBuf) -> Result<Usage> {
        if let Some(usage) = self.fresh(dir) {
            return Ok(usage);
        }
        let _walking = self.one_at_a_time.lock().await;
        if let Some(usage) = self.fresh(dir) {
            return Ok(usage);
        }
        let start = Instant::now();
        let usage = off_thread(move || walk(&path)).await?;
        let good_until = Instant::now() + REST * start.elapsed().min(Duration::from_secs(60));
        self.last.lock().unwrap_or_else(PoisonError::into_inner).insert(dir, (usage, good_until));
        Ok(usage)
    }

    /// The snapshot is committed or gone.
    pub(crate) fn forget(&self, dir: u64) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).remove(&dir);
    }

    fn fresh(&self, dir: u64) -> Option<Usage> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&dir).filter(|(_, good_until)| Instant::now() < *good_until).map(|(usage, _)| *usage)
    }
}

/// Runs what works on the disk where it does not hold up other calls.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context(|| "a worker thread failed".into())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_count_once_and_directories_count() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        fs::write(root.path().join("d/a"), vec![1; 10_000]).unwrap();
        let before = walk(root.path()).unwrap();
        fs::hard_link(root.path().join("d/a"), root.path().join("b")).unwrap();
        assert_eq!(walk(root.path()).unwrap(), before);
        assert_eq!(before.inodes, 3);
        assert!(before.size >= 10_000);
    }
}
