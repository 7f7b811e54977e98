//! The FUSE connection: opened and mounted by the holder, served by one worker after the other.
//!
//! A worker's life with it is either a *first* one (the kernel sends INIT, the session answers) or an *adoption*: the
//! connection was negotiated by a predecessor. fuser has no call for that, so the session is built on one end of a socket
//! pair, is given an INIT to answer there, and then finds the real descriptor in its place. FUSE_NOTIFY_RESEND
//! (Linux 6.9) has the kernel send again what the predecessor had read and not answered.

use crate::sys;
use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Threads that read requests. Hits are answered on them; misses go elsewhere, so a few are enough.
const THREADS: usize = 4;

/// Opens a connection and mounts it at `target`. The kernel's INIT waits in it for the first worker.
pub(crate) fn open(target: &Path) -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| io::Error::other(format!("/dev/fuse: {e}; is the fuse module loaded?")))?;
    // Without allow_other only processes with exactly our credentials may open a device: the loop driver's and the
    // kernel's own opens have ours. So nobody else can.
    let options = CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0", fd.as_raw_fd()))?;
    rustix::mount::mount("lamina", target, "fuse.lamina", flags(), options.as_c_str())?;
    Ok(fd)
}

fn flags() -> MountFlags {
    MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC
}

/// Ends the connection with device number `minor`: every waiting reader gets an error.
pub(crate) fn abort(minor: u32) -> io::Result<()> {
    std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
}

/// Whether this kernel can send requests again to a successor.
pub(crate) fn can_resend() -> bool {
    kernel_version() >= (6, 9)
}

/// The running kernel's version.
pub(crate) fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn session_config() -> Config {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config
}

/// A session on a connection whose INIT nobody has answered yet; answers it.
pub(crate) fn first<F: Filesystem>(filesystem: F, connection: OwnedFd) -> io::Result<Session<F>> {
    Session::from_fd(filesystem, connection, SessionACL::All, session_config())
}

/// A session on a connection that a predecessor negotiated. The kernel is asked to send its unanswered requests again.
pub(crate) fn adopt<F: Filesystem>(filesystem: F, connection: OwnedFd) -> io::Result<Session<F>> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::write(&ours, &init_request())?;
    let session = Session::from_fd(filesystem, theirs, SessionACL::All, session_config())?;
    sys::replace(&connection, session.as_fd())?;
    rustix::io::write(&connection, &resend())?;
    Ok(session)
}

/// `fuse_in_header` and `fuse_init_in` of an INIT request (include/uapi/linux/fuse.h). Only its form matters: what the
/// session answers is thrown away, the predecessor's answer stands.
fn init_request() -> Vec<u8> {
    const INIT: u32 = 26;
    const LENGTH: u32 = 40 + 64;
    let mut out = Vec::with_capacity(LENGTH as usize);
    for word in [LENGTH, INIT] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    out.extend_from_slice(&1u64.to_ne_bytes()); // unique
    out.extend_from_slice(&0u64.to_ne_bytes()); // node
    for word in [0u32, 0, 0, 0] {
        out.extend_from_slice(&word.to_ne_bytes()); // uid, gid, pid, padding
    }
    // major, minor, max_readahead, flags (all offered: fuser takes what it wants)
    for word in [7u32, 40, 128 << 10, u32::MAX] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    out.resize(LENGTH as usize, 0);
    out
}

/// `fuse_out_header` of FUSE_NOTIFY_RESEND (code 7).
fn resend() -> Vec<u8> {
    const CODE: i32 = 7;
    let mut out = 16u32.to_ne_bytes().to_vec();
    out.extend_from_slice(&CODE.to_ne_bytes());
    out.extend_from_slice(&0u64.to_ne_bytes());
    out
}
