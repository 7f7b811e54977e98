//! 3FS's user-space library, loaded at run time, by the C interface that its header documents (`hf3fs_usrbio.h` of
//! deepseek-ai/3FS): the one place with unsafe code of this backend.
//!
//! A *ring* takes requests and gives their results; its *memory* is shared with 3FS's own process, which writes what it
//! reads there. So memory must outlive every request: a ring of which a request did not come back is *broken*, is not used
//! again, and is leaked. The library's own rule, one thread at a time in a ring, is `&mut`.
//!
//! The library is trusted as any that is linked: what it returns is checked, what it does to memory cannot be.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Length of a mount point's name in the library's structures, its end included.
const NAME: usize = 256;

/// `struct hf3fs_iov`
#[repr(C)]
struct Iov {
    base: *mut u8,
    handle: *mut c_void,
    id: [u8; 16],
    mount_point: [c_char; NAME],
    size: usize,
    block_size: usize,
    numa: c_int,
}

/// `struct hf3fs_ior`
#[repr(C)]
struct Ior {
    iov: Iov,
    handle: *mut c_void,
    mount_point: [c_char; NAME],
    for_read: bool,
    io_depth: c_int,
    priority: c_int,
    timeout: c_int,
    flags: u64,
}

/// `struct hf3fs_cqe`
#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    index: i32,
    reserved: i32,
    result: i64,
    userdata: *const c_void,
}

/// `struct timespec`
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

/// The functions that are used, and the library that they are in.
struct Functions {
    extract_mount_point: unsafe extern "C" fn(*mut c_char, c_int, *const c_char) -> c_int,
    iovcreate: unsafe extern "C" fn(*mut Iov, *const c_char, usize, usize, c_int) -> c_int,
    iovdestroy: unsafe extern "C" fn(*mut Iov),
    iorcreate4: unsafe extern "C" fn(*mut Ior, *const c_char, c_int, bool, c_int, c_int, c_int, u64) -> c_int,
    iordestroy: unsafe extern "C" fn(*mut Ior),
    reg_fd: unsafe extern "C" fn(c_int, u64) -> c_int,
    dereg_fd: unsafe extern "C" fn(c_int),
    prep_io: unsafe extern "C" fn(*const Ior, *const Iov, bool, *mut c_void, c_int, usize, u64, *const c_void) -> c_int,
    submit_ios: unsafe extern "C" fn(*const Ior) -> c_int,
    wait_for_ios: unsafe extern "C" fn(*const Ior, *mut Cqe, c_int, c_int, *const Timespec) -> c_int,
    /// Never unloaded: it has threads of its own, and broken rings.
    _library: ManuallyDrop<Library>,
}

/// The library. Cheap to clone.
#[derive(Clone)]
pub(super) struct Api(Arc<Functions>);

impl Api {
    /// Loads it from a path, or by a name as the system's loader looks for it.
    pub(super) fn load(library: &Path) -> Result<Self, String> {
        let told = |e: libloading::Error| e.to_string();
        // SAFETY: what a library does when it is loaded is its own business: the administrator names it.
        let library = unsafe { Library::new(library) }.map_err(told)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is the one that the header declares for this name.
                *unsafe { library.get(concat!("hf3fs_", $name, "\0").as_bytes()) }.map_err(told)?
            };
        }
        Ok(Self(Arc::new(Functions {
            extract_mount_point: function!("extract_mount_point"),
            iovcreate: function!("iovcreate"),
            iovdestroy: function!("iovdestroy"),
            iorcreate4: function!("iorcreate4"),
            iordestroy: function!("iordestroy"),
            reg_fd: function!("reg_fd"),
            dereg_fd: function!("dereg_fd"),
            prep_io: function!("prep_io"),
            submit_ios: function!("submit_ios"),
            wait_for_ios: function!("wait_for_ios"),
            _library: ManuallyDrop::new(library),
        })))
    }

    /// The 3FS mount that a path, which must exist, lies on.
    pub(super) fn mount_point(&self, path: &Path) -> Option<CString> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        let mut name: [c_char; NAME] = [0; NAME];
        // SAFETY: a buffer of the length that is told, and a string with its end.
        let length = unsafe { (self.0.extract_mount_point)(name.as_mut_ptr(), NAME as c_int, path.as_ptr()) };
        let bytes = name.map(|c| c as u8);
        // More than fits: then nothing was written.
        let fits = (1..NAME as c_int).contains(&length);
        CStr::from_bytes_until_nul(&bytes).ok().filter(|name| fits && !name.is_empty()).map(CStr::to_owned)
    }

    /// Makes a file known to the library.
    pub(super) fn register(&self, file: Arc<File>) -> io::Result<Registered> {
        // SAFETY: an open descriptor, which `Registered` keeps open until it is deregistered.
        match unsafe { (self.0.reg_fd)(file.as_raw_fd(), 0) } {
            error @ 1.. => Err(io::Error::from_raw_os_error(error)),
            _ => Ok(Registered { api: self.clone(), file }),
        }
    }
}

/// A file that requests can name.
pub(super) struct Registered {
    api: Api,
    file: Arc<File>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is open until after this.
        unsafe { (self.api.0.dereg_fd)(self.file.as_raw_fd()) }
    }
}

/// One request: so many bytes of the file from an offset on, to a place in the ring's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) offset: u64,
    pub(super) length: usize,
}

/// See the module.
pub(super) struct Ring {
    api: Api,
    // Boxed: the library may keep their addresses; and of a broken ring never freed.
    iov: ManuallyDrop<Box<Iov>>,
    ior: ManuallyDrop<Box<Ior>>,
    broken: bool,
}

// SAFETY: nothing in it is bound to a thread; the library asks that one at a time uses it, which `&mut` sees to.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for reads of a mount's files, with so many bytes of memory, for so many requests at a time.
    pub(super) fn new(api: &Api, mount: &CStr, size: usize, entries: u16) -> io::Result<Self> {
        // SAFETY: all fields are numbers and pointers, of which zeros are valid values; the library fills them in.
        let (mut iov, mut ior): (Box<Iov>, Box<Ior>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        // SAFETY: structures of the header's form, and a string with its end. -1: any NUMA node.
        checked(unsafe { (api.0.iovcreate)(&mut *iov, mount.as_ptr(), size, 0, -1) })?;
        // SAFETY: as above. Depth 0: requests are taken up as they come.
        let made = unsafe { (api.0.iorcreate4)(&mut *ior, mount.as_ptr(), entries.into(), true, 0, 0, -1, 0) };
        if let Err(error) = checked(made) {
            // SAFETY: it was made above, and no ring uses it.
            unsafe { (api.0.iovdestroy)(&mut *iov) };
            return Err(error);
        }
        let (iov, ior) = (ManuallyDrop::new(iov), ManuallyDrop::new(ior));
        let ring = Self { api: api.clone(), iov, ior, broken: false };
        match ring.iov.base.is_null() || ring.iov.size < size {
            true => Err(io::Error::other("3FS's library gave no memory")),
            false => Ok(ring),
        }
    }

    /// Whether a request did not come back: then it is not to be used.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Reads pieces into the memory, and gives the bytes that came of each. At most as many as there are entries.
    pub(super) fn read(&mut self, file: &Registered, pieces: &[Piece], limit: Duration) -> io::Result<Vec<usize>> {
        let inside = |p: &Piece| p.length > 0 && p.at.checked_add(p.length).is_some_and(|end| end <= self.iov.size);
        if self.broken || !pieces.iter().all(inside) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // From here on 3FS may write: until all have come back.
        self.broken = true;
        for (number, piece) in pieces.iter().enumerate() {
            let (fd, offset) = (file.file.as_raw_fd(), usize::try_from(piece.offset).map_err(io::Error::other)?);
            // SAFETY: inside the memory, as checked above; the number is never followed as a pointer.
            checked(unsafe {
                let to = self.iov.base.add(piece.at).cast();
                let tag = std::ptr::without_provenance(number);
                (self.api.0.prep_io)(&**self.ior, &**self.iov, true, to, fd, offset, piece.length as u64, tag)
            })?;
        }
        // SAFETY: a ring that was made.
        checked(unsafe { (self.api.0.submit_ios)(&**self.ior) })?;
        let results = self.wait(pieces.len(), limit)?;
        self.broken = false;
        let lengths = results.iter().zip(pieces).map(|(result, piece)| match usize::try_from(*result) {
            Ok(length) if length <= piece.length => Ok(length),
            Ok(_) => Err(io::Error::other("3FS's library says that more came than was asked for")),
            Err(_) => Err(io::Error::from_raw_os_error(i32::try_from(result.unsigned_abs()).unwrap_or(5))),
        });
        lengths.collect()
    }

    /// The result of each of `count` requests, by number.
    fn wait(&mut self, count: usize, limit: Duration) -> io::Result<Vec<i64>> {
        let (mut results, mut left, end) = (vec![None; count], count, Instant::now() + limit);
        let none = Cqe { index: 0, reserved: 0, result: 0, userdata: std::ptr::null() };
        let mut came = vec![none; count];
        while left > 0 {
            // Fits: there are no more than a ring has entries.
            let asked = left as c_int;
            // By the wall clock, as the library wants it, anew each time: that clock may be set.
            let until = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
                + end.saturating_duration_since(Instant::now());
            let until = Timespec { seconds: until.as_secs() as i64, nanoseconds: until.subsec_nanos().into() };
            // SAFETY: room for as many results as are told.
            let got = unsafe { (self.api.0.wait_for_ios)(&**self.ior, came.as_mut_ptr(), asked, asked, &until) };
            let got = checked(got)?;
            for result in came.iter().take(got) {
                match results.get_mut(result.userdata.addr()) {
                    Some(slot @ None) => *slot = Some(result.result),
                    _ => return Err(io::Error::other("3FS's library gave a result that nobody waits for")),
                }
                left -= 1;
            }
            if left > 0 && Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// A part of the memory.
    pub(super) fn memory(&self, range: Range<usize>) -> &[u8] {
        assert!(!self.broken && range.start <= range.end && range.end <= self.iov.size);
        // SAFETY: inside the memory, which lives as long as the ring, and to which nothing writes: no request is under
        // way (`read` takes `&mut`, and leaves the ring broken otherwise).
        unsafe { std::slice::from_raw_parts(self.iov.base.add(range.start), range.end - range.start) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.broken {
            tracing::warn!("a request to 3FS did not come back: its memory is left to it");
            return;
        }
        // SAFETY: both were made, no request is under way, and neither is used again.
        unsafe {
            (self.api.0.iordestroy)(&mut **self.ior);
            (self.api.0.iovdestroy)(&mut **self.iov);
            ManuallyDrop::drop(&mut self.ior);
            ManuallyDrop::drop(&mut self.iov);
        }
    }
}

/// A count, or the error that a negative number stands for.
fn checked(returned: c_int) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::from_raw_os_error(returned.saturating_neg()))
}
