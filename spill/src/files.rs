//! Arrays that are maps of nameless files. Nothing here allocates: the allocator calls it.

#![allow(unsafe_code)]

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open as open_at, openat};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mremap, munmap};
use std::alloc::Layout;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::null_mut;

/// Arrays that can be in files at a time: there are some dozens of large ones.
const MOST: usize = 128;

const PAGE: usize = 4096;

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

/// A directory for [`Files::set_directory`].
pub(crate) fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(open_at(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

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
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(directory, c".", flags, Mode::RUSR | Mode::WUSR).ok()?;
        fallocate(&file, FallocateFlags::empty(), 0, length as u64).ok()?;
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
        if let Some(more) = length.checked_sub(map.length).filter(|more| *more > 0) {
            fallocate(&map.file, FallocateFlags::empty(), map.length as u64, more as u64).ok()?;
        }
        // SAFETY: it is a map of this length, and whoever has the array asks for this.
        let moved = unsafe { mremap(start.cast(), map.length, length, MremapFlags::MAYMOVE) };
        let start = moved.ok()?.cast::<u8>();
        (map.start, map.length) = (start as usize, length);
        Some(start)
    }

    /// Gives an array back; whether it was in a file.
    pub(crate) fn unmap(&mut self, start: *mut u8) -> bool {
        let is_it = |map: &&mut Option<Map>| map.as_ref().is_some_and(|map| map.start == start as usize);
        let Some(map) = self.maps.iter_mut().find(is_it).and_then(Option::take) else { return false };
        // SAFETY: it is a map of this length, and nobody has the array any more. Of a whole map it does not fail.
        let _ = unsafe { munmap(start.cast(), map.length) };
        true
    }

    pub(crate) fn stored(&self) -> usize {
        self.maps.iter().flatten().map(|map| map.length).sum()
    }
}
