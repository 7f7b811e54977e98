//! `lamina mount`: layers stacked on a directory of the caller's.
//!
//! Each stack has a directory `mounts/<n>` under the run directory: a record of what is mounted where, and one mount
//! point per layer with a short name, so that 128 of them fit the kernel's page of options.

use crate::Error;
use crate::config::Config;
use crate::layers::Layers;
use crate::mount::info::{self, MountLine};
use crate::mount::request::{Request, Upper};
use blobstore::layer::LayerId;
use blobstore::refs::{Stack, StackEntry};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

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
    let _turn = layers.targets().take(target.to_owned()).await;
    check_target(target)?;
    let whole = stacks.iter().fold(Stack::EMPTY, |below, above| below.under(above));
    if whole.is_empty() {
        return Err(Error::Invalid("a stack of no layers".into()));
    }
    // What was here before and was unmounted by somebody else.
    for (home, _) in records(config).into_iter().filter(|(_, record)| record.target == target) {
        take_down(layers, &home).await;
    }
    let stack = whole.layers();
    let home = new_home(config)?;
    let record = Record {
        target: target.to_owned(),
        layers: stack.iter().map(|l| l.layer).collect(),
        upper: upper.map(Path::to_owned),
    };
    if let Err(error) = build(layers, &home, stack, root_of(stacks, stack), &record).await {
        // There was nothing at the target before: the mounter may have died between a mount and its answer.
        let half = Request::Unmount { target: target.to_owned(), detach: true };
        if info::mounts().is_ok_and(|mounts| shows_a_stack(layers, &mounts, target))
            && let Err(error) = layers.mounter().ask(&half).await
        {
            tracing::warn!(%error, target = %target.display(), "left behind");
        }
        take_down(layers, &home).await;
        return Err(error);
    }
    Ok(whole)
}

/// Whether what is mounted at `target` can be a stack's.
fn shows_a_stack(layers: &Layers, mounts: &[MountLine], target: &Path) -> bool {
    info::at(mounts, target).is_some_and(|m| m.fs_type == "overlay" || layers.layer_of(m).is_some())
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
    // Not the target alone: another stack can be mounted there a moment later.
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let start = format!("{} {}", STARTS.fetch_add(1, Ordering::Relaxed), record.target.display());
    if let ([only], None) = (stack, &record.upper) {
        return layers.attach(only, &record.target, &start).await;
    }
    layers.open_all(stack).await?;
    for (i, layer) in stack.iter().enumerate() {
        let point = home.join(i.to_string());
        std::fs::create_dir(&point).map_err(|e| Error::path(&point, e))?;
        layers.attach(layer, &point, &start).await?;
    }
    let upper = record.upper.clone().map(|dir| Upper { dir, like: root.to_string() });
    // Overlayfs wants two lower directories or an upper one; one layer with an upper is an overlay as well.
    let lowers = (0..stack.len()).map(|i| i.to_string()).collect();
    let request = Request::Overlay {
        base: home.to_owned(),
        lowers,
        target: record.target.clone(),
        upper,
        options: layers.overlay_options().to_vec(),
    };
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
    let _turn = layers.targets().take(target.to_owned()).await;
    let not_ours = || Error::Invalid(format!("{} is not a mount of ours; see lamina status", target.display()));
    let found: Vec<_> = records(config).into_iter().filter(|(_, record)| record.target == target).collect();
    if found.is_empty() {
        return Err(not_ours());
    }
    // A stranger's mount may stand where ours stood.
    let mounts = info::mounts().map_err(Error::system)?;
    let foreign = info::at(&mounts, target).is_some() && !shows_a_stack(layers, &mounts, target);
    if !foreign {
        let request = Request::Unmount { target: target.to_owned(), detach: false };
        layers.mounter().ask(&request).await.map_err(|e| Error::unmount(target, e))?;
    }
    for (home, _) in found {
        take_down(layers, &home).await;
    }
    if foreign { Err(not_ours()) } else { Ok(()) }
}

/// Unmounts the layers of a stack and forgets it. What is still in use below an overlay lives on there.
async fn take_down(layers: &Layers, home: &Path) {
    let mounts = match info::mounts() {
        Ok(mounts) => mounts,
        Err(error) => return tracing::warn!(%error, home = %home.display(), "left behind"),
    };
    for target in below(&mounts, home) {
        if let Err(error) = layers.mounter().ask(&Request::Unmount { target, detach: true }).await {
            tracing::warn!(%error, home = %home.display(), "left behind");
            return;
        }
    }
    remove_home(home);
}

/// The mount points in a stack's directory, the last mounted first.
fn below(mounts: &[MountLine], home: &Path) -> Vec<PathBuf> {
    mounts.iter().rev().filter(|m| m.target.parent() == Some(home)).map(|m| m.target.clone()).collect()
}

/// Removes the record and the (empty) mount points; never recursively, should one still be mounted.
fn remove_home(home: &Path) {
    let _ = std::fs::remove_file(home.join(RECORD));
    for point in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir(point.path());
    }
    let _ = std::fs::remove_dir(home);
}

/// Takes down what a worker that died left half made or half unmade: directories of stacks that nothing shows. Only for
/// a worker's start, when no stack is being made.
pub(crate) async fn take_down_halves(layers: &Layers, config: &Config) {
    // Without the list of mounts, whole ones would pass for halves.
    let mounts = match info::mounts() {
        Ok(mounts) => mounts,
        Err(error) => return tracing::warn!(%error, "what a worker that died left of stacks is not looked for"),
    };
    for home in homes(config) {
        if !read_record(&home).is_some_and(|record| shows_a_stack(layers, &mounts, &record.target)) {
            tracing::info!(home = %home.display(), "taking down what a worker that died left of a stack");
            take_down(layers, &home).await;
        }
    }
}

fn homes(config: &Config) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(config.stacks()) else { return Vec::new() };
    entries.filter_map(|e| Some(e.ok()?.path())).collect()
}

fn read_record(home: &Path) -> Option<Record> {
    serde_json::from_slice(&std::fs::read(home.join(RECORD)).ok()?).ok()
}

/// All stacks' directories and records. One that cannot be read is passed over: it was being made.
pub(crate) fn records(config: &Config) -> Vec<(PathBuf, Record)> {
    homes(config).into_iter().filter_map(|home| Some((read_record(&home)?, home))).map(|(r, home)| (home, r)).collect()
}

/// After a daemon was killed: detaches every stack's mounts, whoever uses them, and forgets them. The holder's work, when
/// no worker runs.
pub(crate) fn forget_all(config: &Config) -> Result<(), Error> {
    let mounts = info::mounts().map_err(Error::system)?;
    for home in homes(config) {
        let shown = read_record(&home)
            .and_then(|record| info::at(&mounts, &record.target).filter(|m| m.fs_type == "overlay"))
            .map(|m| m.target.clone());
        for target in shown.into_iter().chain(below(&mounts, &home)) {
            let _ = rustix::mount::unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        remove_home(&home);
    }
    Ok(())
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
