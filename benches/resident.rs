//! Which pages of a file are in the page cache: what a program that started cold made the kernel read.

#![allow(unsafe_code)]

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::Path;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// One truth value a page.
pub fn resident(path: &Path) -> io::Result<Vec<bool>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the mapping is only asked about, never read.
    let map = unsafe { Mmap::map(&file)? };
    let mut pages = vec![0u8; map.len().div_ceil(PAGE)];
    // SAFETY: the range is that of the mapping, which lives on, and there is one byte for each page of it.
    let status = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    match status {
        0 => Ok(pages.iter().map(|page| page & 1 == 1).collect()),
        _ => Err(io::Error::last_os_error()),
    }
}
