//! What every overlay of layers has in common, whoever mounts it: the options, and the root of a new upper directory.
//!
//! laminad mounts overlays itself (`lamina mount`), the snapshotter has containerd mount them; both must do it in the same
//! way. Which directories are stacked is left to them.

use rustix::fs::{AtFlags, CWD};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::{fs, io};

/// Each line one wish: the first option of it that the kernel takes.
///
/// * `xino=on`: without it `du -x` and the like take directories of a stack for mount points, because each layer is a
///   file system of its own.
/// * `redirect_dir=nofollow`: a redirect written into a layer would otherwise be followed to a place of its choice.
/// * `metacopy=off`: so would a file's data.
/// * `index=off`: upper directories are used again over lower ones that were mounted anew.
const WISHES: &[&[&str]] =
    &[&["xino=on"], &["redirect_dir=nofollow", "redirect_dir=off"], &["metacopy=off"], &["index=off"]];

/// The first choice of every wish: for who must mount without having been able to try.
pub fn wished() -> Vec<String> {
    WISHES.iter().filter_map(|wish| wish.first()).map(|option| (*option).to_owned()).collect()
}

/// Finds the options that this kernel takes for an overlay whose upper directory lies under `root`, by mounting some in a
/// directory `probe` there. None where no overlay can be mounted at all (no privileges, say): who mounts may know better.
///
/// # Errors
/// When the directories for trying cannot be made.
pub fn probe(root: &Path) -> io::Result<Option<Vec<String>>> {
    let scratch = root.join("probe");
    discard(&scratch);
    for part in ["lower", "upper", "work", "merged"] {
        fs::create_dir_all(scratch.join(part))?;
    }
    let mut chosen: Vec<String> = Vec::new();
    let possible = try_overlay(&scratch, &chosen);
    for wish in WISHES.iter().filter(|_| possible) {
        let taken = wish.iter().find(|option| {
            let with: Vec<_> = chosen.iter().cloned().chain([(**option).to_owned()]).collect();
            try_overlay(&scratch, &with)
        });
        match taken {
            Some(option) => chosen.push((*option).to_owned()),
            None => tracing::warn!("this kernel's overlayfs takes none of {wish:?}"),
        }
    }
    discard(&scratch);
    match possible {
        true => tracing::info!("overlays are mounted with {}", chosen.join(",")),
        false => tracing::warn!("no overlay can be mounted under {}", root.display()),
    }
    Ok(possible.then_some(chosen))
}

fn try_overlay(scratch: &Path, options: &[String]) -> bool {
    let at = |part: &str| scratch.join(part).display().to_string();
    let mut data = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    for option in options {
        data.push(',');
        data.push_str(option);
    }
    let Ok(data) = CString::new(data) else { return false };
    let merged = scratch.join("merged");
    let mounted = mount("overlay", &merged, "overlay", MountFlags::empty(), Some(data.as_c_str())).is_ok();
    mounted && unmount(&merged, UnmountFlags::DETACH).is_ok()
}

/// Removes the scratch directory, also one that a crash left with a mount in it.
fn discard(scratch: &Path) {
    let _ = unmount(scratch.join("merged"), UnmountFlags::DETACH);
    let _ = fs::remove_dir_all(scratch);
}

/// Gives the new upper directory `to` the owner, mode, extended attributes and times of `from`: the merged root shows the
/// upper's. Marks of overlayfs speak of layers and are left out, and so is a security label, which the kernel's policy gives
/// to new files.
///
/// # Errors
/// What the system said of either directory.
pub fn copy_root(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    std::os::unix::fs::lchown(to, Some(found.uid()), Some(found.gid()))?;
    // After the owner: chown clears the set-id bits.
    fs::set_permissions(to, fs::Permissions::from_mode(found.mode() & 0o7777))?;
    copy_xattrs(from, to)?;
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: found.atime(), tv_nsec: found.atime_nsec() },
        last_modification: rustix::fs::Timespec { tv_sec: found.mtime(), tv_nsec: found.mtime_nsec() },
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn copy_xattrs(from: &Path, to: &Path) -> io::Result<()> {
    let mut names = vec![0; 64 << 10]; // XATTR_LIST_MAX
    let length = match rustix::fs::llistxattr(from, names.as_mut_slice()) {
        Err(rustix::io::Errno::NOTSUP) => 0,
        other => other?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.overlay.") || name == b"security.selinux" {
            continue;
        }
        let mut value = vec![0; 64 << 10]; // XATTR_SIZE_MAX
        let length = rustix::fs::lgetxattr(from, name, value.as_mut_slice())?;
        rustix::fs::lsetxattr(to, name, &value[..length], rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_upper_looks_like_the_root_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o1750)).unwrap();
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 6 },
            last_modification: rustix::fs::Timespec { tv_sec: -7, tv_nsec: 8 },
        };
        rustix::fs::utimensat(CWD, &from, &times, AtFlags::empty()).unwrap();
        copy_root(&from, &to).unwrap();
        let found = fs::metadata(&to).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime(), found.mtime_nsec()), (0o1750, -7, 8));
    }

    #[test]
    fn a_redirect_is_never_followed_whatever_could_be_tried() {
        assert!(wished().iter().any(|o| o == "redirect_dir=nofollow"));
        let dir = tempfile::tempdir().unwrap();
        if let Some(options) = probe(dir.path()).unwrap() {
            assert!(options.iter().any(|o| o.starts_with("redirect_dir=")), "{options:?}");
        }
        assert!(!dir.path().join("probe").exists());
    }
}
