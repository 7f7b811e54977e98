//! A read lease on a file: as long as it stands, nobody has the file open for writing.
//!
//! Who opens it for writing meanwhile waits until the lease is given back, or for `/proc/sys/fs/lease-break-time`, 45 s;
//! then the lease is broken, which [`Lease::check`] tells. Only the kernels of local file systems see all who write.
//!
//! All unsafe code of this crate is here: rustix has no calls for leases.

#![allow(unsafe_code)]

use rustix::fs::{FsWord, fstatfs};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The local file systems, by their numbers in `linux/magic.h`: ext4, XFS, Btrfs, F2FS, tmpfs and overlayfs.
const LOCAL: [FsWord; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x794c_7630];

/// include/uapi/asm-generic/fcntl.h.
const F_SETSIG: i32 = 10;

/// Given back when it is dropped, also where others have the file open by a copy of its descriptor.
#[derive(Debug)]
pub(super) struct Lease {
    file: File,
}

impl Lease {
    /// `None` where there can be none: somebody writes to the file or could, it is not ours, or it lies elsewhere.
    pub(super) fn take(file: File) -> Option<Self> {
        let local = LOCAL.contains(&fstatfs(&file).ok()?.f_type);
        // A broken lease is told by a signal: by one that means nothing, SIGIO would end us.
        let leased = local
            && fcntl(&file, F_SETSIG, libc::SIGURG).is_ok()
            && fcntl(&file, libc::F_SETLEASE, libc::F_RDLCK).is_ok();
        leased.then_some(Self { file })
    }

    /// Whether it has stood until now. One that somebody waits for stands no more.
    pub(super) fn check(&self) -> io::Result<bool> {
        Ok(fcntl(&self.file, libc::F_GETLEASE, 0)? == libc::F_RDLCK)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Where that fails it ends with the last descriptor.
        let _ = fcntl(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

/// One of fcntl's commands that take a number.
fn fcntl(file: &File, command: i32, argument: i32) -> io::Result<i32> {
    let descriptor: RawFd = file.as_raw_fd();
    // SAFETY: the descriptor is open as long as `file` is borrowed, and these commands take no address.
    match unsafe { libc::fcntl(descriptor, command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_lease_stands_until_somebody_wants_to_write() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        // The writer of `temp` itself.
        assert!(Lease::take(File::open(temp.path()).unwrap()).is_none());
        let path = temp.into_temp_path();
        let opened = File::open(&path).unwrap();
        let Some(lease) = Lease::take(opened.try_clone().unwrap()) else {
            return eprintln!("SKIPPED: needs a local file system for {}", path.display());
        };
        File::open(&path).unwrap();
        assert!(lease.check().unwrap());
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let writer = || File::options().write(true).custom_flags(nonblock).open(&path);
        assert_eq!(writer().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!lease.check().unwrap());
        // Given back, though the file is still open.
        drop(lease);
        writer().unwrap();
        drop(opened);
    }
}
