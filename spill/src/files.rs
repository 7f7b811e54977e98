//! Arrays that are maps of nameless files. Nothing here allocates: the allocator calls it.

#![allow(unsafe_code)]

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatfs, fstatvfs, ftruncate, open as open_at, openat};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap, munmap};
use std::alloc::Layout;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;

/// Arrays that can be in files at a time: there are some dozens of large ones.
const MOST: usize = 128;

const PAGE: usize = 4096;

/// File systems, by `f_type`, that have room for every page of a file once `fallocate` has said so: ext4 and its elders, XFS,
/// and overlayfs, which hands it down. On a tmpfs it would be memory all the same; Btrfs and ZFS write elsewhere each time,
/// and where there is no room then the access fails.
const RESERVING: [u32; 3] = [0xef53, 0x5846_5342, 0x794c_7630];

#[derive(Debug)]
pub(crate) struct Files {
    directory: Option<OwnedFd>,
    maps: [Option<Map>; MOST],
}

#[derive(Debug)]
struct Map {
    start: usize,
    /// Bytes, whole pages.
    length: usize,
    file: OwnedFd,
}

/// A directory for [`Files::set_directory`], where arrays can be in files.
pub(crate) fn open(directory: &Path) -> io::Result<OwnedFd> {
    let directory = open_at(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    if !RESERVING.contains(&(fstatfs(&directory)?.f_type as u32)) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a file system that does not reserve room for files"));
    }
    let file = new_file(&directory)?;
    reserve(&file, 0, PAGE)?;
    // Where the kernel may not be asked whether anything was lost, nothing is left to a file.
    ask(file.as_fd(), 0)?;
    Ok(directory)
}

fn new_file(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(openat(directory, c".", flags, Mode::RUSR | Mode::WUSR)?)
}

/// Makes a file longer, where half of what is free is enough: a disk that is nearly full is left to others.
fn reserve(file: &OwnedFd, length: usize, more: usize) -> io::Result<()> {
    let disk = fstatvfs(file)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) / 2 < more as u64 {
        return Err(io::ErrorKind::StorageFull.into());
    }
    fallocate(file, FallocateFlags::empty(), length as u64, more as u64).map_err(|error| {
        // Of a part that was not enough nothing is kept.
        let _ = ftruncate(file, length as u64);
        error.into()
    })
}

/// An error where something that was written to a file, or to a map of it, did not reach its disk, and may be gone from
/// memory. Waits for what is on its way there in `length` bytes, 0 for all; writes nothing.
pub(crate) fn written(file: BorrowedFd<'_>, length: u64) -> io::Result<()> {
    match ask(file, length) {
        // It says nothing of the file: a sandbox forbids the question, or nobody can answer it.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE)) =>
        {
            Ok(())
        }
        answer => answer,
    }
}

fn ask(file: BorrowedFd<'_>, length: u64) -> io::Result<()> {
    // SAFETY: a call about an open file, without pointers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, length as i64, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Map {
    /// Ends the process where any of it is lost: what it has instead are zeros. `length` is that of [`written`].
    fn check(&self, length: u64) {
        if written(self.file.as_fd(), length).is_err() {
            let _ = rustix::io::write(rustix::stdio::stderr(), LOST);
            std::process::abort();
        }
    }
}

const LOST: &[u8] =
    b"lamina: the disk of the work directory (TMPDIR, /var/tmp) has lost what was written to it: see its log\n";

impl Files {
    pub(crate) const fn new() -> Self {
        Self { directory: None, maps: [const { None }; MOST] }
    }

    pub(crate) fn set_directory(&mut self, directory: OwnedFd) {
        self.directory = Some(directory);
    }

    /// A new array of zeros; `None` where it cannot be.
    pub(crate) fn map(&mut self, layout: Layout) -> Option<*mut u8> {
        let directory = self.directory.as_ref().filter(|_| layout.align() <= PAGE)?;
        let free = self.maps.iter_mut().find(|map| map.is_none())?;
        let length = layout.size().checked_next_multiple_of(PAGE)?;
        let file = new_file(directory).ok()?;
        reserve(&file, 0, length).ok()?;
        // SAFETY: a new map where the kernel likes it. Nobody else has the file.
        let mapped =
            unsafe { mmap(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) };
        let start = mapped.ok()?.cast::<u8>();
        // Where memory is short, one page is read at a time: with more, what was read ahead would drive out what is needed.
        // SAFETY: it is advice, of a map of ours.
        let _ = unsafe { madvise(start.cast(), length, Advice::Random) };
        *free = Some(Map { start: start as usize, length, file });
        Some(start)
    }

    /// Whether an array is in a file.
    pub(crate) fn has(&self, start: *mut u8) -> bool {
        self.maps.iter().flatten().any(|map| map.start == start as usize)
    }

    /// Makes an array that is in a file larger or smaller; where it is then. `None` where it cannot be, and nothing changed.
    pub(crate) fn resize(&mut self, start: *mut u8, size: usize) -> Option<*mut u8> {
        let map = self.maps.iter_mut().flatten().find(|map| map.start == start as usize)?;
        let length = size.checked_next_multiple_of(PAGE)?;
        if length > map.length {
            reserve(&map.file, map.length, length - map.length).ok()?;
        }
        // SAFETY: it is a map of this length, and whoever has the array asks for this.
        let moved = unsafe { mremap(start.cast(), map.length, length, MremapFlags::MAYMOVE) };
        let start = moved.ok()?.cast::<u8>();
        (map.start, map.length) = (start as usize, length);
        // What is behind it now is nobody's, and its room is given back. Where that fails it is so at the end.
        let _ = ftruncate(&map.file, length as u64);
        Some(start)
    }

    /// Gives an array back; whether it was in a file. It is the last look at what became of it, and a look at the others.
    pub(crate) fn unmap(&mut self, start: *mut u8) -> bool {
        let is_it = |map: &&mut Option<Map>| map.as_ref().is_some_and(|map| map.start == start as usize);
        let Some(map) = self.maps.iter_mut().find(is_it).and_then(Option::take) else { return false };
        map.check(0);
        self.maps.iter().flatten().for_each(|other| other.check(1));
        // SAFETY: it is a map of this length, and nobody has the array any more. Of a whole map it does not fail.
        let _ = unsafe { munmap(start.cast(), map.length) };
        true
    }

    pub(crate) fn stored(&self) -> usize {
        self.maps.iter().flatten().map(|map| map.length).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_raw_parts_mut;

    /// `None`, and a word, where the directory of temporary files has a file system on which arrays stay in memory.
    fn files() -> Option<Files> {
        match open(&std::env::temp_dir()) {
            Ok(directory) => Some(Files { directory: Some(directory), ..Files::new() }),
            Err(error) => {
                eprintln!("SKIPPED: needs a TMPDIR on ext4, XFS or an overlay of them: {error}");
                None
            }
        }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    #[test]
    fn what_cannot_be_in_a_file_is_not() {
        assert!(open(Path::new("/proc")).is_err() && open(Path::new("/dev/shm")).is_err());
        assert!(Files::new().map(layout(PAGE)).is_none(), "no directory");
        let Some(mut files) = files() else { return };
        assert!(files.map(Layout::from_size_align(PAGE, 2 * PAGE).unwrap()).is_none());
        assert!(files.map(layout(1 << 50)).is_none(), "no disk has room for it");
        let all: Vec<_> = (0..MOST).map(|_| files.map(layout(1)).unwrap()).collect();
        assert!(files.map(layout(1)).is_none());
        assert_eq!(files.stored(), MOST * PAGE);
        assert!(all.iter().all(|start| files.unmap(*start)) && !files.unmap(all[0]));
    }

    #[test]
    fn what_an_array_had_is_in_it_whatever_its_size_becomes_and_its_room_goes_back() {
        let Some(mut files) = files() else { return };
        let blocks = |files: &Files| rustix::fs::fstat(&files.maps[0].as_ref().unwrap().file).unwrap().st_blocks;
        let mut start = files.map(layout(10 * PAGE)).unwrap();
        // SAFETY: it is an array of this size.
        unsafe { from_raw_parts_mut(start, 10 * PAGE) }.fill(7);
        for size in [1000 * PAGE, 3 * PAGE, 2000 * PAGE] {
            start = files.resize(start, size).unwrap();
            // SAFETY: it is an array of at least this size.
            let array = unsafe { from_raw_parts_mut(start, 3 * PAGE) };
            assert!(array.iter().all(|byte| *byte == 7));
            let reserved = blocks(&files) as usize * 512;
            assert!((size..size + 64 * PAGE).contains(&reserved), "{size}: {reserved}");
        }
        assert!(files.resize(start, 1 << 50).is_none());
        assert!(files.has(start) && files.stored() == 2000 * PAGE);
        written(files.maps[0].as_ref().unwrap().file.as_fd(), 0).unwrap();
        assert!(files.unmap(start));
    }

    #[test]
    fn what_cannot_be_asked_for_is_not_lost() {
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(ask(pipe.as_fd(), 0).is_err());
        written(pipe.as_fd(), 0).unwrap();
    }
}
