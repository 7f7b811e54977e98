//! Owner, mode, extended attributes and time of something that was just made, and whether the file system keeps them.
//!
//! Everything goes through a descriptor (one of `O_PATH` for what cannot be opened), so that nothing that was put in its
//! place meanwhile is touched. In this order: a change of owner clears set-id bits and capabilities.

use crate::error::{Error, Result, show};
use erofs::{Attributes, Kind};
use rustix::fs::{self, AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// Gives what `file` is open on its attributes; the names of those that Linux allows on files and directories only and
/// that were left out. `path` is for messages.
pub(super) fn apply(file: impl AsFd, attributes: &Attributes, kind: &Kind, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let file = file.as_fd();
    let failed = |what: &str, e: Errno| failed(path, &format!("setting its {what}"), e);
    // What the kernel's own table of descriptors leads to is never followed further.
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(|e| failed("owner", e))?;
    if !matches!(kind, Kind::Symlink(_)) {
        let mode = Mode::from_raw_mode(u32::from(attributes.mode));
        fs::chmod(&*own, mode).map_err(|e| failed("mode", e))?;
    }
    let mut left_out = Vec::new();
    for (name, value) in &attributes.xattrs {
        if name.starts_with(b"user.") && !matches!(kind, Kind::File(_) | Kind::Directory) {
            left_out.push(name.clone());
            continue;
        }
        fs::setxattr(&*own, &name[..], value, XattrFlags::empty())
            .map_err(|e| failed(&format!("attribute {} of {} bytes", show(name), value.len()), e))?;
    }
    let mtime = Timespec { tv_sec: attributes.mtime, tv_nsec: attributes.mtime_nsec.into() };
    let times = Timestamps { last_access: mtime, last_modification: mtime };
    fs::utimensat(file, "", &times, AtFlags::EMPTY_PATH).map_err(|e| failed("time", e))?;
    check(fs::fstat(file).map_err(|e| failed("attributes", e))?, attributes, kind, path)?;
    Ok(left_out)
}

/// A file system cuts times that it cannot hold, and an access list changes the mode, without an error.
fn check(stat: fs::Stat, want: &Attributes, kind: &Kind, path: &[u8]) -> Result<()> {
    let kept = |what: String| Error::failed(named(path), format!("the file system does not keep {what}"));
    let (mode, wanted) = (stat.st_mode & 0o7777, u32::from(want.mode));
    if mode != wanted && !matches!(kind, Kind::Symlink(_)) {
        return Err(kept(format!("the mode {wanted:o}, it makes {mode:o} of it")));
    }
    if (stat.st_uid, stat.st_gid) != (want.uid, want.gid) {
        return Err(kept(format!("the owner {}:{}", want.uid, want.gid)));
    }
    let (seconds, nanos) = (stat.st_mtime, stat.st_mtime_nsec as u32);
    if (seconds, nanos) != (want.mtime, want.mtime_nsec) {
        let (s, n) = (want.mtime, want.mtime_nsec);
        return Err(kept(format!("the time {s} s and {n} ns, it makes {seconds} s and {nanos} ns of it")));
    }
    Ok(())
}

/// A path in messages.
pub(super) fn named(path: &[u8]) -> String {
    if path.is_empty() { "the root directory".to_owned() } else { format!("'{}'", show(path)) }
}

pub(super) fn failed(path: &[u8], what: &str, error: Errno) -> Error {
    Error::failed(format!("{}: {what}", named(path)), std::io::Error::from(error))
}
