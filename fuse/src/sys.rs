//! All unsafe code of this crate: loop-device ioctls, and putting one file descriptor in another's place.
//!
//! Everything else asks here; nothing here knows what for.

#![allow(unsafe_code)]

use rustix::ioctl::{self, NoArg, Opcode, Setter};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `struct loop_info64`, include/uapi/linux/loop.h.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`, include/uapi/linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);

const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// The flags of a loop device here: read-only (1), freed when its last user is gone (4), direct I/O (16).
const LO_FLAGS: u32 = 1 | 4 | 16;

/// The number of a loop device that is free at this moment. Another process may take it first: then
/// [`loop_configure`] says `EBUSY`.
pub(crate) fn loop_get_free(control: &File) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number; `NoArg` gives no access to the result, so the
    // call below goes through `GetFree`, whose output is the return value.
    let number = unsafe { ioctl::ioctl(control, GetFree(NoArg::<LOOP_CTL_GET_FREE>::new())) }?;
    Ok(number)
}

struct GetFree(NoArg<LOOP_CTL_GET_FREE>);

// SAFETY: forwards opcode and argument of `NoArg`; the output is the call's return value, which the kernel documents as
// the device's number.
unsafe impl ioctl::Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.0.as_ptr()
    }

    unsafe fn output_from_ptr(
        out: ioctl::IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        u32::try_from(out).map_err(|_| rustix::io::Errno::RANGE)
    }
}

/// Makes the loop device `device` show `backing`, read-only and with direct I/O, until its last user closes it.
pub(crate) fn loop_configure(device: &File, backing: &File) -> io::Result<()> {
    let fd = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
    let info = LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config` (size asserted above) and writes nothing back; `backing` is
    // open for the whole call.
    unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }?;
    Ok(())
}

/// Makes the descriptor number of `place` mean the open file of `file` (dup2). Whoever owns `place` goes on owning it.
pub(crate) fn replace(file: &OwnedFd, place: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `place` is open, as its lifetime says. It is owned twice only inside this function: `ManuallyDrop` keeps
    // the second owner from closing it.
    let mut owned = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(place.as_raw_fd()) });
    rustix::io::dup2(file.as_fd(), &mut owned)?;
    Ok(())
}
