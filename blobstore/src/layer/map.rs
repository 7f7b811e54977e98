//! Files as memory: the one place of this crate where memory is mapped.

use super::error::{LayerError, Result};
use bytes::Bytes;
use std::fs::File;
use std::ops::Range;

/// The bytes `range` of `file`, mapped read-only; they stay valid after the file is closed or unlinked.
///
/// The file must be one that nobody truncates or rewrites while it is mapped: reading past a new end kills the process
/// (SIGBUS). Lamina's own files are written under another name, renamed, and never changed. Bytes that change anyway
/// are read as they come: an [`Index`](super::Index) over them gives wrong answers, which the hashes catch, never
/// wrong memory.
pub fn map_file(file: &File, range: Range<u64>) -> Result<Bytes> {
    check_range(file, &range)?;
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let length = usize::try_from(range.end - range.start)
        .map_err(|_| LayerError::Malformed(format!("{range:?} does not fit this machine's memory")))?;
    let mut options = memmap2::MmapOptions::new();
    options.offset(range.start).len(length);
    // SAFETY: the mapping is private to this process and read-only, and lies inside the file as its length was just
    // read. What the caller promises above keeps it there; a change of the bytes is harmless, because nothing in this
    // crate relies on two reads of a mapped byte agreeing (all accesses after validation are bounds-checked).
    #[allow(unsafe_code)]
    let map = unsafe { options.map(file) }.map_err(LayerError::io("mapping a layer's bytes"))?;
    Ok(Bytes::from_owner(map))
}

fn check_range(file: &File, range: &Range<u64>) -> Result<()> {
    let length = file.metadata().map_err(LayerError::io("stat of a layer's file"))?.len();
    if range.start > range.end || range.end > length {
        return Err(LayerError::Malformed(format!("bytes {range:?} of a file of {length}")));
    }
    Ok(())
}
