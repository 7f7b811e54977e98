//! `lamina mount`: layers stacked on a directory of the caller's.
//!
//! Each stack has a directory `mounts/<n>` under the run directory: a record of what is mounted where, and one mount
//! point per layer with a short name, so that 128 of them fit the kernel's page of options.

use crate::Error;
use crate::config::Config;
use crate::layers::Layers;
use crate::mount::info;
use crate::mount::request::{Request, Upper};
use blobstore::layer::LayerId;
use blobstore::refs::{Stack, StackEntry};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const RECORD: &str = "mount.json";

/// What stands in a stack's record.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) target: PathBuf,
    pub(crate) layers: Vec<LayerId>,
    pub(crate) upper: Option<PathBuf>,
}

/// Mounts `stacks`, one on the other, bottom to top, on `target`; writable when there is an `upper` directory, whose `fs`
/// and `work` are made when they are missing. All or nothing. Returns what was mounted.
pub(crate) async fn mount(
    layers: &Layers,
    config: &Config,
    stacks: &[Stack],
    target: &Path,
    upper: Option<&Path>,
) -> Result<Stack, Error> {
    check_target(target)?;
    let whole = stacks.iter().fold(Stack::EMPTY, |below, above| below.under(above));
    if whole.is_empty() {
        return Err(Error::Invalid("a stack of no layers".into()));
    }
    let stack = whole.layers();
    let home = new_home(config)?;
    let record = Record {
        target: target.to_owned(),
        layers: stack.iter().map(|l| l.layer).collect(),
        upper: upper.map(Path::to_owned),
    };
    if let Err(error) = build(layers, &home, stack, root_of(stacks, stack), &record).await {
        take_down(layers, &home, stack.len()).await;
        return Err(error);
    }
    Ok(whole)
}

/// Which layer's root the merged root is to be like, where it is written: the topmost one of the lowest stack. What
/// workspaces and toolkits have for a root is of no account.
fn root_of(stacks: &[Stack], whole: &[StackEntry]) -> usize {
    let base = stacks.first().and_then(|stack| stack.layers().last()).map(|entry| entry.layer);
    whole.iter().position(|entry| Some(entry.layer) == base).unwrap_or(0)
}

fn check_target(target: &Path) -> Result<(), Error> {
    if !target.is_absolute() || !target.is_dir() {
        return Err(Error::Invalid(format!("{} is not an absolute path of a directory", target.display())));
    }
    let mounts = info::mounts().map_err(Error::system)?;
    match info::at(&mounts, target) {
        Some(_) => Err(Error::Invalid(format!("{} is a mount point already", target.display()))),
        None => Ok(()),
    }
}

fn new_home(config: &Config) -> Result<PathBuf, Error> {
    for n in 0u32.. {
        let home = config.stacks().join(n.to_string());
        match std::fs::create_dir(&home) {
            Ok(()) => return Ok(home),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::path(&home, e)),
        }
    }
    Err(Error::Invalid("too many stacks".into()))
}

async fn build(layers: &Layers, home: &Path, stack: &[StackEntry], root: usize, record: &Record) -> Result<(), Error> {
    write_record(home, record)?;
    if let ([only], None) = (stack, &record.upper) {
        return layers.attach(only, &record.target).await;
    }
    for (i, layer) in stack.iter().enumerate() {
        let point = home.join(i.to_string());
        std::fs::create_dir(&point).map_err(|e| Error::path(&point, e))?;
        layers.attach(layer, &point).await?;
    }
    let upper = record.upper.clone().map(|dir| Upper { dir, like: root.to_string() });
    // Overlayfs wants two lower directories or an upper one; one layer with an upper is an overlay as well.
    let lowers = (0..stack.len()).map(|i| i.to_string()).collect();
    let request = Request::Overlay { base: home.to_owned(), lowers, target: record.target.clone(), upper };
    let what = || format!("{} layers on {}", stack.len(), record.target.display());
    layers.mounter().ask(&request).await.map_err(|e| Error::Mount { what: what(), source: Box::new(e) })
}

fn write_record(home: &Path, record: &Record) -> Result<(), Error> {
    let path = home.join(RECORD);
    let text = serde_json::to_vec(record).map_err(|e| Error::path(&path, e.into()))?;
    std::fs::write(&path, text).map_err(|e| Error::path(&path, e))
}

/// Unmounts the stack at `target`. In use: refused, and nothing is changed. More than one record names a target when
/// somebody took a stack from it with umount(8) and it was used again: all of them go.
pub(crate) async fn unmount(layers: &Layers, config: &Config, target: &Path) -> Result<(), Error> {
    let not_ours = || Error::Invalid(format!("{} is not a mount of ours; see lamina status", target.display()));
    let found: Vec<_> = records(config).into_iter().filter(|(_, record)| record.target == target).collect();
    if found.is_empty() {
        return Err(not_ours());
    }
    let mounts = info::mounts().map_err(Error::system)?;
    // A stranger's mount may stand where ours stood.
    let foreign = info::at(&mounts, target).is_some_and(|m| m.fs_type != "overlay" && layers.layer_of(m).is_none());
    if !foreign {
        let request = Request::Unmount { target: target.to_owned(), detach: false };
        let failed = |e| Error::Unmount { target: target.to_owned(), source: Box::new(e) };
        layers.mounter().ask(&request).await.map_err(failed)?;
    }
    for (home, record) in found {
        take_down(layers, &home, record.layers.len()).await;
    }
    if foreign { Err(not_ours()) } else { Ok(()) }
}

async fn take_down(layers: &Layers, home: &Path, count: usize) {
    let points: Vec<PathBuf> = (0..count).map(|i| home.join(i.to_string())).collect();
    if let Err(error) = layers.detach(&points).await {
        tracing::warn!(%error, home = %home.display(), "left behind");
        return;
    }
    remove_home(home, count);
}

/// Removes the record and the (empty) mount points; never recursively, should one still be mounted.
fn remove_home(home: &Path, count: usize) {
    for i in 0..count {
        let _ = std::fs::remove_dir(home.join(i.to_string()));
    }
    let _ = std::fs::remove_file(home.join(RECORD));
    let _ = std::fs::remove_dir(home);
}

/// All stacks' directories and records. One that cannot be read is passed over: it was being made.
pub(crate) fn records(config: &Config) -> Vec<(PathBuf, Record)> {
    let Ok(entries) = std::fs::read_dir(config.stacks()) else { return Vec::new() };
    let read = |home: PathBuf| {
        let text = std::fs::read(home.join(RECORD)).ok()?;
        Some((home, serde_json::from_slice(&text).ok()?))
    };
    entries.filter_map(|e| read(e.ok()?.path())).collect()
}

/// After a daemon was killed: detaches every stack's mounts, whoever uses them, and forgets them. The holder's work, when
/// no worker runs.
pub(crate) fn forget_all(config: &Config) {
    let mounts = info::mounts().unwrap_or_default();
    for (home, record) in records(config) {
        let overlay = info::at(&mounts, &record.target).filter(|m| m.fs_type == "overlay");
        let points = (0..record.layers.len()).map(|i| home.join(i.to_string()));
        let mounted = points.filter(|p| info::at(&mounts, p).is_some());
        for target in overlay.map(|m| m.target.clone()).into_iter().chain(mounted) {
            let _ = rustix::mount::unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        remove_home(&home, record.layers.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_that_of_the_lowest_stacks_topmost_layer() {
        let entry = |n: u8| StackEntry::bare(LayerId::from_bytes([n; 32]));
        let base = Stack::EMPTY.with(entry(1)).with(entry(2));
        let toolkit = Stack::EMPTY.with(entry(3));
        let whole = base.under(&toolkit);
        assert_eq!(root_of(&[base.clone(), toolkit.clone()], whole.layers()), 1);
        // An opaque layer above it hides the base: what is left at the bottom counts.
        let opaque = Stack::EMPTY.with(StackEntry { root_opaque: true, ..entry(4) });
        let whole = base.under(&opaque).under(&toolkit);
        assert_eq!(root_of(&[base, opaque, toolkit], whole.layers()), 0);
    }
}
