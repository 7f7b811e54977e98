//! `lamina mount`: layers stacked on a directory of the caller's.
//!
//! Each stack has a directory `mounts/<n>` under the run directory: a record of what is mounted where, and one mount
//! point per layer with a short name, so that 128 of them fit the kernel's page of options.

use crate::Error;
use crate::config::Config;
use crate::layers::Layers;
use crate::mount::info;
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
    check_target(target)?;
    if stack.is_empty() {
        return Err(Error::Invalid("a stack of no layers".into()));
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
        take_down(layers, &home, stack.len()).await;
    }
    done
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

/// Unmounts the stack at `target`. In use: refused, and nothing is changed. More than one record names a target when
/// somebody took a stack from it with umount(8) and it was used again: all of them go.
pub(crate) async fn unmount(layers: &Layers, config: &Config, target: &Path) -> Result<(), Error> {
    let not_ours = || Error::Invalid(format!("{} is not a mount of ours; see lamina status", target.display()));
    let found: Vec<_> = records(config).into_iter().filter(|(_, record)| record.target == target).collect();
    if found.is_empty() {
        return Err(not_ours());
    }
    let mounts = info::mounts().map_err(Error::start)?;
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
