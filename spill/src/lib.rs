//! An allocator that keeps large arrays in files once they are too many, so that a machine or a control group with little
//! memory has enough for millions of entries.
//!
//! What knows an entry in memory are arrays: of nodes, names, paths, contents. A program that makes [`Spill`] its global
//! allocator and names a directory by [`to`] has up to [`MEMORY`] bytes of arrays of [`LARGE`] bytes and more in memory as
//! always; those beyond are mapped from nameless files in that directory. They count as memory while there is enough; when
//! there is not, the kernel writes them out and takes it back, as it does with swap, which a container in a cluster has not.
//! Nothing else changes: where no file can be made or has no room on its disk, the array is in memory.
//!
//! Room on the disk is reserved before an array is mapped, so a full disk is never met at an access. Where the disk itself
//! fails the process ends: by SIGBUS at an access, or, where something was lost on its way to the disk, with a word on the
//! standard error, at the latest when the array is given back. So who frees what a result was made of before it is
//! published has no wrong one.

mod files;

use files::Files;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of an array that may be kept in a file. Buffers and chunks, which come and go, have 8 MiB at most.
pub const LARGE: usize = 12 << 20;

/// Bytes that such arrays may take in memory, together.
pub const MEMORY: usize = 64 << 20;

static FILES: Mutex<Files> = Mutex::new(Files::new());

/// Bytes of large arrays in memory.
static IN_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// From now on large arrays beyond [`MEMORY`] go to nameless files in this directory.
///
/// # Errors
/// The directory cannot be opened, or its file system is not one that keeps room for nameless files: ext4, XFS, or an overlay of
/// them. Nothing changes then.
pub fn to(directory: &Path) -> io::Result<()> {
    let directory = files::open(directory)?;
    files().set_directory(directory);
    Ok(())
}

/// An error where something that was written to a file did not reach its disk, as far as the kernel knows by now, and says: what
/// is read of it again may be wrong. Waits for what is on its way; writes nothing, so that it costs nothing.
///
/// # Errors
/// The kernel's, from the time of writing.
pub fn written(file: impl AsFd) -> io::Result<()> {
    files::written(file.as_fd(), 0)
}

/// Bytes of arrays that lie in files now: for tests.
pub fn stored() -> usize {
    files().stored()
}

fn files() -> MutexGuard<'static, Files> {
    // Nothing panics while it is held.
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator: the system's, but for large arrays.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spill;

fn is_large(size: usize) -> bool {
    size >= LARGE
}

/// Whether an array more of this size belongs into a file, where `given` bytes are given back for it.
fn is_too_much(size: usize, given: usize) -> bool {
    IN_MEMORY.load(Ordering::Relaxed).saturating_sub(given).saturating_add(size) > MEMORY
}

impl Spill {
    /// Memory that `allocate` gives, or a file, which is zeros.
    fn large(layout: Layout, allocate: impl FnOnce(Layout) -> *mut u8) -> *mut u8 {
        if is_too_much(layout.size(), 0)
            && let Some(start) = files().map(layout)
        {
            return start;
        }
        let start = allocate(layout);
        if !start.is_null() {
            IN_MEMORY.fetch_add(layout.size(), Ordering::Relaxed);
        }
        start
    }

    /// An array of which the old or the new size is large. The caller's promises are those of [`GlobalAlloc::realloc`].
    #[allow(unsafe_code)]
    unsafe fn resize(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let in_file = is_large(layout.size()) && files().has(old);
        let large = |size| if is_large(size) { size } else { 0 };
        // Memory is the system's to resize, which may need no copy; only where there is a file for it, it moves there.
        let file = match (in_file, is_large(size)) {
            (true, true) => match files().resize(old, size) {
                Some(start) => return start,
                None => None,
            },
            (false, true) if is_too_much(size, large(layout.size())) => {
                // SAFETY: the caller promised that the size is possible with this alignment.
                files().map(unsafe { Layout::from_size_align_unchecked(size, layout.align()) })
            }
            _ => None,
        };
        if let (false, None) = (in_file, file) {
            // SAFETY: it is the system's, and all else is as the caller promised.
            let start = unsafe { System.realloc(old, layout, size) };
            if !start.is_null() {
                IN_MEMORY.fetch_add(large(size), Ordering::Relaxed);
                IN_MEMORY.fetch_sub(large(layout.size()), Ordering::Relaxed);
            }
            return start;
        }
        // SAFETY: the caller promised that the size is possible with this alignment, and that `old` is an array of `layout`,
        // which is given back only after what both have was copied.
        unsafe {
            let memory = || self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            let start = file.unwrap_or_else(memory);
            if !start.is_null() {
                copy_nonoverlapping(old, start, layout.size().min(size));
                self.dealloc(old, layout);
            }
            start
        }
    }
}

// SAFETY: arrays are the system's, or maps of their own of at least their size, which begin at a page. Whose one is, is
// known by its size and, if that is large, by the table of files.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Spill {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        let allocate = |layout| unsafe { System.alloc(layout) };
        if is_large(layout.size()) { Self::large(layout, allocate) } else { allocate(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        let allocate = |layout| unsafe { System.alloc_zeroed(layout) };
        if is_large(layout.size()) { Self::large(layout, allocate) } else { allocate(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_large(layout.size()) {
            if files().unmap(start) {
                return;
            }
            IN_MEMORY.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: it is the system's, and the caller's promises are the same.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match is_large(layout.size()) || is_large(size) {
            // SAFETY: the caller's promises are the same.
            true => unsafe { self.resize(start, layout, size) },
            // SAFETY: it is the system's, and the caller's promises are the same.
            false => unsafe { System.realloc(start, layout, size) },
        }
    }
}
