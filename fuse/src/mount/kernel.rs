//! The system calls behind the mounter's requests. Runs in the mounter only (see [`super`]), but for the probes of a
//! start, which mount files of their own.

use super::info;
use super::request::{Answer, ErofsForm, Request, Upper};
use crate::sys;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// mount(2) takes one page of options, its final NUL included.
const OPTIONS_MAX: usize = 4095;

/// Does one request.
pub(crate) fn perform(request: &Request) -> Answer {
    let done = match request {
        Request::Erofs { form, metadata, device, target } => erofs(*form, metadata, device, target),
        Request::Bind { source, mount, target } => bind(source, *mount, target),
        Request::Overlay { base, lowers, target, upper, options } => {
            stack(base, lowers, target, upper.as_ref(), options)
        }
        Request::Unmount { target, detach } => unmount(target, *detach),
    };
    match done {
        Ok(()) => Answer::Done,
        Err(e) => Answer::Failed { errno: e.raw_os_error().unwrap_or(0), what: format!("{}: {e}", title(request)) },
    }
}

fn title(request: &Request) -> String {
    match request {
        Request::Erofs { metadata, target, .. } => format!("mounting {} on {}", metadata.display(), target.display()),
        Request::Bind { source, target, .. } => format!("binding {} to {}", source.display(), target.display()),
        Request::Overlay { lowers, target, .. } => format!("stacking {} layers on {}", lowers.len(), target.display()),
        Request::Unmount { .. } => "unmounting".to_owned(),
    }
}

/// Mounts a layer: its metadata file with its data device.
pub(crate) fn erofs(form: ErofsForm, metadata: &Path, device: &Path, target: &Path) -> io::Result<()> {
    match form {
        ErofsForm::FileDirect => mount_erofs(metadata, device, ",directio", target),
        ErofsForm::File => mount_erofs(metadata, device, "", target),
        ErofsForm::Loop => {
            // The open files keep the loop devices alive until the mount has them; then they go with the mount.
            let (_metadata, metadata) = attach_loop(metadata)?;
            let (_device, device) = attach_loop(device)?;
            mount_erofs(&metadata, &device, "", target)
        }
    }
}

fn mount_erofs(source: &Path, device: &Path, more: &str, target: &Path) -> io::Result<()> {
    let mut options = b"device=".to_vec();
    options.extend_from_slice(device.as_os_str().as_bytes());
    options.extend_from_slice(more.as_bytes());
    let options = CString::new(options)?;
    rustix::mount::mount(source, target, "erofs", MountFlags::RDONLY | MountFlags::NODEV, options.as_c_str())?;
    Ok(())
}

/// Binds what an open file stands for, so that what was looked at is what is bound.
fn bind(source: &Path, mount: u64, target: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let seen = rustix::fs::open(source, flags, Mode::empty()).map_err(|_| Errno::STALE)?;
    let stat = rustix::fs::statx(&seen, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 || stat.stx_mnt_id != mount {
        return Err(Errno::STALE.into());
    }
    Ok(rustix::mount::mount_bind(format!("/proc/self/fd/{}", seen.as_raw_fd()), target)?)
}

/// A loop device that shows `file` read-only. It goes when the returned file and its mounts are gone.
fn attach_loop(file: &Path) -> io::Result<(File, PathBuf)> {
    let backing = File::open(file)?;
    let control = File::open("/dev/loop-control")?;
    // Between asking for a free device and taking it another process may be quicker: then ask again.
    for _ in 0..64 {
        let path = PathBuf::from(format!("/dev/loop{}", sys::loop_get_free(&control)?));
        let device = File::open(&path)?;
        match sys::loop_configure(&device, &backing) {
            Ok(()) => return Ok((device, path)),
            Err(e) if e.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("no loop device is free"))
}

/// Stacks `lowers` (bottom to top, relative to `base`). Short relative names keep 128 layers within one page of
/// options; the mounter has one thread, so its working directory is free to change.
fn stack(base: &Path, lowers: &[String], target: &Path, upper: Option<&Upper>, more: &[String]) -> io::Result<()> {
    let mut options = b"lowerdir=".to_vec();
    let top_first: Vec<&str> = lowers.iter().rev().map(String::as_str).collect();
    options.extend_from_slice(top_first.join(":").as_bytes());
    if let Some(upper) = upper {
        let (fs, work) = make_upper(&upper.dir, &base.join(&upper.like))?;
        if let Some(other) = info::overlay_of(&fs)? {
            let other = other.display();
            return Err(io::Error::other(format!("{} takes the writes of {other} already", upper.dir.display())));
        }
        for (name, path) in [(",upperdir=", &fs), (",workdir=", &work)] {
            options.extend_from_slice(name.as_bytes());
            options.extend_from_slice(&escape(path));
        }
    }
    for option in more {
        options.push(b',');
        options.extend_from_slice(option.as_bytes());
    }
    if options.len() > OPTIONS_MAX {
        return Err(io::Error::other(format!(
            "{} bytes of mount options, the kernel takes {OPTIONS_MAX}",
            options.len()
        )));
    }
    let options = CString::new(options)?;
    let flags = if upper.is_some() { MountFlags::empty() } else { MountFlags::RDONLY };
    let home = std::env::current_dir()?;
    rustix::process::chdir(base)?;
    let done = rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str());
    rustix::process::chdir(&home)?;
    Ok(done?)
}

/// `fs` and `work` under `dir`. The merged root shows the upper's attributes, so a new one takes those of `like`.
fn make_upper(dir: &Path, like: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let (fs, work) = (dir.join("fs"), dir.join("work"));
    let new = !fs.exists();
    for path in [&fs, &work] {
        std::fs::create_dir_all(path)?;
    }
    if new {
        // A half-made one would pass for an old one at the next try, with the wrong owner.
        overlay::copy_root(like, &fs).inspect_err(|_| drop(std::fs::remove_dir(&fs)))?;
    }
    // So they stand in the kernel's list, and are found there by whoever names them in another way.
    Ok((fs.canonicalize()?, work.canonicalize()?))
}

/// Overlayfs splits options at commas and takes a backslash for the next byte.
pub(super) fn escape(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\' | b':') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}

fn unmount(target: &Path, detach: bool) -> io::Result<()> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
        // Not a mount, or nothing there: what was wanted is so.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}
