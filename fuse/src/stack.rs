//! `lamina mount`: layers stacked on a directory of the caller's.
//!
//! Each stack has a directory `mounts/<n>` under the run directory: a record of what is mounted where, and one mount
//! point per layer with a short name, so that 128 of them fit the kernel's page of options.

use crate::Error;
use crate::config::Config;
use crate::layers::Layers;
use crate::mount::info::{self, MountLine};
use crate::mount::kernel::set_owner_mode;
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

/// Mounts `layers` (bottom to top) on `target`; writable when there is an `upper` directory, whose `fs` and `work` are
/// made when they are missing. All or nothing.
pub(crate) async fn mount(
    layers: &Layers,
    config: &Config,
    stack: &Stack,
    target: &Path,
    upper: Option<&Path>,
) -> Result<(), Error> {
    let _turn = layers.targets().take(target.to_owned()).await;
    check_target(target)?;
    if stack.is_empty() {
        return Err(Error::Invalid("a stack of no layers".into()));
    }
    // What was here before and was unmounted by somebody else.
    for (home, _) in records(config).into_iter().filter(|(_, record)| record.target == target) {
        take_down(layers, &home).await;
    }
    let stack = stack.layers();
    let home = new_home(config)?;
    let record = Record {
        target: target.to_owned(),
        layers: stack.iter().map(|l| l.layer).collect(),
        upper: upper.map(Path::to_owned),
    };
    let done = build(layers, &home, stack, &record).await;
    if done.is_err() {
        // There was nothing at the target before: the mounter may have died between a mount and its answer.
        let half = Request::Unmount { target: target.to_owned(), detach: true };
        if shows_a_stack(layers, target)
            && let Err(error) = layers.mounter().ask(&half).await
        {
            tracing::warn!(%error, target = %target.display(), "left behind");
        }
        take_down(layers, &home).await;
    }
    done
}

/// Whether what is mounted at `target` can be a stack's.
fn shows_a_stack(layers: &Layers, target: &Path) -> bool {
    let mounts = info::mounts().unwrap_or_default();
    info::at(&mounts, target).is_some_and(|m| m.fs_type == "overlay" || layers.layer_of(m).is_some())
}

fn check_target(target: &Path) -> Result<(), Error> {
    if !target.is_absolute() || !target.is_dir() {
        return Err(Error::Invalid(format!("{} is not an absolute path of a directory", target.display())));
    }
    let mounts = info::mounts().map_err(Error::start)?;
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

async fn build(layers: &Layers, home: &Path, stack: &[StackEntry], record: &Record) -> Result<(), Error> {
    write_record(home, record)?;
    if let ([only], None) = (stack, &record.upper) {
        return layers.attach(only, &record.target).await;
    }
    for (i, layer) in stack.iter().enumerate() {
        let point = home.join(i.to_string());
        std::fs::create_dir(&point).map_err(|e| Error::path(&point, e))?;
        layers.attach(layer, &point).await?;
    }
    let upper = record.upper.as_deref().map(|dir| make_upper(dir, &home.join("0"))).transpose()?;
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

/// `fs` and `work` under `dir`. The merged root shows the upper's attributes, so a new one takes those of the base.
fn make_upper(dir: &Path, base: &Path) -> Result<Upper, Error> {
    use std::os::unix::fs::MetadataExt;
    let upper = Upper { fs: dir.join("fs"), work: dir.join("work") };
    let new = !upper.fs.exists();
    for path in [&upper.fs, &upper.work] {
        std::fs::create_dir_all(path).map_err(|e| Error::path(path, e))?;
    }
    if new {
        // The root of an EROFS mount: its metadata lies in a local file, this never waits for ourselves.
        let root = std::fs::metadata(base).map_err(|e| Error::path(base, e))?;
        set_owner_mode(&upper.fs, root.uid(), root.gid(), root.mode() & 0o7777)
            .map_err(|e| Error::path(&upper.fs, e))?;
    }
    Ok(upper)
}

/// Unmounts the stack at `target`. In use: refused, and nothing is changed.
pub(crate) async fn unmount(layers: &Layers, config: &Config, target: &Path) -> Result<(), Error> {
    let _turn = layers.targets().take(target.to_owned()).await;
    let homes: Vec<PathBuf> =
        records(config).into_iter().filter(|(_, record)| record.target == target).map(|(home, _)| home).collect();
    if homes.is_empty() {
        return Err(Error::Invalid(format!("{} is not a mount of ours; see lamina status", target.display())));
    }
    // Somebody else may have unmounted it, and mounted something of his own.
    if shows_a_stack(layers, target) {
        let request = Request::Unmount { target: target.to_owned(), detach: false };
        layers.mounter().ask(&request).await.map_err(|e| Error::unmount(target, e))?;
    }
    for home in homes {
        take_down(layers, &home).await;
    }
    Ok(())
}

/// Unmounts the layers of a stack and forgets it. What is still in use below an overlay lives on there.
async fn take_down(layers: &Layers, home: &Path) {
    let mounts = info::mounts().unwrap_or_default();
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
    for home in homes(config) {
        if !read_record(&home).is_some_and(|record| shows_a_stack(layers, &record.target)) {
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
pub(crate) fn forget_all(config: &Config) {
    let mounts = info::mounts().unwrap_or_default();
    for home in homes(config) {
        let shown = read_record(&home)
            .and_then(|record| info::at(&mounts, &record.target).filter(|m| m.fs_type == "overlay"))
            .map(|m| m.target.clone());
        for target in shown.into_iter().chain(below(&mounts, &home)) {
            let _ = rustix::mount::unmount(&target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        remove_home(&home);
    }
}
