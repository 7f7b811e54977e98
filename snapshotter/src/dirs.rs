//! The directories under the root, and nothing about who they belong to.
//!
//! ```text
//! <root>/s/<n>/fs      a snapshot's own files, or the place where a layer is mounted
//! <root>/s/<n>/work    overlayfs' work directory beside a snapshot's files
//! <root>/removed/<n>   what was s/<n> and waits to be deleted
//! ```
//!
//! Names are short and all under one directory, because a mount takes one page of options: with siblings containerd
//! shortens `lowerdir=` to names like `17/fs`, and 128 of them fit. Modes do not depend on the process's umask.

use crate::error::{Context, Error, Result};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use std::fs;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directories of one root.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    root: PathBuf,
}

impl Dirs {
    /// Makes what is missing of the frame. The root is named without links from now on: laminad finds what it mounted by
    /// the kernel's names.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        if let Some(above) = root.parent() {
            fs::create_dir_all(above).context(|| format!("cannot make {}", above.display()))?;
        }
        make(root, 0o700, true)?;
        let root = root.canonicalize().context(|| format!("cannot find {}", root.display()))?;
        for name in ["s", "removed"] {
            make(&root.join(name), 0o700, true)?;
        }
        Ok(Self { root })
    }

    /// The root, absolute and without links.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn fs(&self, dir: u64) -> PathBuf {
        self.numbered(dir).join("fs")
    }

    pub(crate) fn work(&self, dir: u64) -> PathBuf {
        self.numbered(dir).join("work")
    }

    /// Makes the directories of a snapshot. The root of its files is 0755 and root's, or like the directory `like`.
    pub(crate) fn make_snapshot(&self, dir: u64, like: Option<&Path>) -> Result<()> {
        make(&self.numbered(dir), 0o700, false)?;
        make(&self.work(dir), 0o711, false)?;
        let fs = self.fs(dir);
        make(&fs, 0o755, false)?;
        let what = |like: &Path| format!("cannot give {} the attributes of {}", fs.display(), like.display());
        like.map_or(Ok(()), |like| overlay::copy_root(like, &fs).context(|| what(like)))
    }

    /// Makes the place for a layer, if it is not there.
    pub(crate) fn make_layer(&self, dir: u64) -> Result<()> {
        make(&self.numbered(dir), 0o700, true)?;
        if is_mount(&self.fs(dir)) == Some(true) {
            return Ok(());
        }
        make(&self.fs(dir), 0o755, true)
    }

    /// Whether something is mounted at the `fs` of `dir`; false where that cannot be told.
    pub(crate) fn is_mounted(&self, dir: u64) -> bool {
        is_mount(&self.fs(dir)) == Some(true)
    }

    /// Removes the place of a layer. Fails, and touches nothing, where something is mounted or lies in it.
    pub(crate) fn remove_layer(&self, dir: u64) -> Result<()> {
        for path in [self.fs(dir), self.numbered(dir)] {
            match fs::remove_dir(&path) {
                Err(error) if error.kind() != NotFound => {
                    return Err(Error::caused(format!("cannot remove {}", path.display()), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts a snapshot's directories among the removed: one rename.
    pub(crate) fn set_aside(&self, dir: u64) -> Result<()> {
        rename(&self.numbered(dir), &self.root.join("removed").join(dir.to_string()))
    }

    /// Takes a snapshot's directories back from the removed.
    pub(crate) fn restore(&self, dir: u64) -> Result<()> {
        rename(&self.root.join("removed").join(dir.to_string()), &self.numbered(dir))
    }

    /// The numbers in `s`, and those in `removed`.
    pub(crate) fn present(&self) -> Result<(Vec<u64>, Vec<u64>)> {
        Ok((numbers(&self.root.join("s"))?, numbers(&self.root.join("removed"))?))
    }

    /// Deletes these of the removed. What cannot be deleted is logged and stays.
    pub(crate) fn delete_removed(&self, removed: &[u64]) {
        for dir in removed {
            let path = self.root.join("removed").join(dir.to_string());
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != NotFound => tracing::warn!("cannot delete {}: {error}", path.display()),
                _ => {}
            }
        }
    }

    fn numbered(&self, dir: u64) -> PathBuf {
        self.root.join("s").join(dir.to_string())
    }
}

/// Whether `path` is the root of a mount: one statx, which asks nobody but the kernel's mount tree. (The alternative,
/// /proc/self/mountinfo, is as long as the node has mounts.) None: it is missing, or the kernel (< 5.8) cannot tell.
fn is_mount(path: &Path) -> Option<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    found
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT)
        .then(|| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes one directory with exactly this mode. One that exists is left as it is, if `may_exist`.
fn make(path: &Path, mode: u32, may_exist: bool) -> Result<()> {
    let what = || format!("cannot make {}", path.display());
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).context(what),
        Err(error) if may_exist && error.kind() == AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error).context(what),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).context(|| format!("cannot rename {} to {}", from.display(), to.display()))
}

/// The entries of `path` whose names are numbers as we write them. Others are not ours.
fn numbers(path: &Path) -> Result<Vec<u64>> {
    let what = || format!("cannot list {}", path.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(path).context(what)? {
        let name = entry.context(what)?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok().filter(|n| n.to_string() == name));
        found.extend(number);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_snapshot_set_aside_can_be_restored_until_it_is_deleted() {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs::open(&root.path().join("deep/root")).unwrap();
        dirs.make_snapshot(7, None).unwrap();
        fs::write(dirs.fs(7).join("file"), "x").unwrap();
        dirs.set_aside(7).unwrap();
        assert_eq!(dirs.present().unwrap(), (vec![], vec![7]));
        dirs.restore(7).unwrap();
        assert_eq!(fs::read(dirs.fs(7).join("file")).unwrap(), b"x");
        dirs.set_aside(7).unwrap();
        dirs.delete_removed(&[7, 8]);
        assert_eq!(dirs.present().unwrap(), (vec![], vec![]));
    }

    #[test]
    fn an_upper_root_copies_mode_times_and_attributes() {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs::open(root.path()).unwrap();
        dirs.make_snapshot(1, None).unwrap();
        fs::set_permissions(dirs.fs(1), fs::Permissions::from_mode(0o1751)).unwrap();
        let with_xattr = rustix::fs::setxattr(dirs.fs(1), "user.x", b"y", rustix::fs::XattrFlags::empty()).is_ok();
        dirs.make_snapshot(2, Some(&dirs.fs(1))).unwrap();
        let (from, to) = (fs::metadata(dirs.fs(1)).unwrap(), fs::metadata(dirs.fs(2)).unwrap());
        assert_eq!(to.mode(), from.mode());
        assert_eq!((to.mtime(), to.mtime_nsec()), (from.mtime(), from.mtime_nsec()));
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(dirs.fs(2), "user.x", &mut value);
        assert!(!with_xattr || length == Ok(1));
    }

    #[test]
    fn a_layer_place_that_holds_something_is_not_removed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs::open(root.path()).unwrap();
        dirs.make_layer(3).unwrap();
        dirs.make_layer(3).unwrap();
        fs::write(dirs.fs(3).join("file"), "x").unwrap();
        assert!(dirs.remove_layer(3).is_err());
        assert!(dirs.fs(3).join("file").exists());
        fs::remove_file(dirs.fs(3).join("file")).unwrap();
        dirs.remove_layer(3).unwrap();
        dirs.remove_layer(3).unwrap();
    }
}
