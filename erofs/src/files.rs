//! Which file a byte of the data space belongs to: for those who see reads of it and want to name them.

use std::collections::HashSet;
use std::ops::Range;

use crate::format::Dirent;
use crate::inode::Inode;
use crate::read::Image;
use crate::{BLOCK_U64, FileType, ReadError};

/// The data space of an image, file by file. Of names that have the same blocks (hard links, files of equal contents) it knows
/// the first, in the order of [`crate::dump()`].
#[derive(Debug, Default)]
pub struct Files {
    paths: Vec<Box<[u8]>>,
    /// Bytes of the data space, in whole blocks, and whose they are; in order, no two of them share any.
    extents: Vec<(Range<u64>, usize)>,
}

impl Files {
    /// The files of an image.
    ///
    /// # Errors
    /// Broken metadata.
    pub fn of(image: &Image<'_>) -> Result<Self, ReadError> {
        let (mut files, mut seen) = (Self::default(), HashSet::new());
        // No two entries of an honest image share their bytes.
        let mut left = image.bytes().len() / Dirent::SIZE;
        let mut waiting = vec![(image.root()?, Vec::new())];
        while let Some((inode, path)) = waiting.pop() {
            if !seen.insert(inode.nid) {
                continue;
            }
            if inode.file_type == FileType::File {
                files.add(image, &inode, path)?;
                continue;
            }
            let first = waiting.len();
            for entry in image.entries(&inode)? {
                let entry = entry?;
                left = left.checked_sub(1).ok_or(ReadError::Corrupt("directories that share blocks"))?;
                let wanted = matches!(entry.file_type, FileType::File | FileType::Directory);
                if wanted && entry.name != b"." && entry.name != b".." {
                    waiting.push((image.inode(entry.nid)?, [&path, &b"/"[..], entry.name].concat()));
                }
            }
            waiting[first..].reverse();
        }
        files.settle();
        Ok(files)
    }

    fn add(&mut self, image: &Image<'_>, inode: &Inode, path: Vec<u8>) -> Result<(), ReadError> {
        let (file, first) = (self.paths.len(), self.extents.len());
        let mut offset = 0;
        while let Some(extent) = image.extent(inode, offset)? {
            offset += extent.len;
            let Some(start) = extent.data else { continue };
            let end = start.saturating_add(extent.len).next_multiple_of(BLOCK_U64);
            match self.extents[first..].last_mut() {
                Some((before, _)) if before.end == start => before.end = end,
                _ => self.extents.push((start..end, file)),
            }
        }
        if self.extents.len() > first {
            self.paths.push(path.into());
        }
        Ok(())
    }

    /// Puts the extents in order. Of those that share blocks the first file's stays.
    fn settle(&mut self) {
        self.extents.sort_by_key(|(bytes, file)| (bytes.start, *file));
        let mut end = 0;
        self.extents.retain(|(bytes, _)| {
            let free = bytes.start >= end;
            end = if free { bytes.end } else { end };
            free
        });
    }

    /// The paths of the files that have any of these bytes of the data space, in the order of where, and how many each has.
    pub fn at(&self, bytes: Range<u64>) -> impl Iterator<Item = (&[u8], u64)> {
        let first = self.extents.partition_point(|(extent, _)| extent.end <= bytes.start);
        self.extents[first..]
            .iter()
            .take_while(move |(extent, _)| extent.start < bytes.end)
            .map(move |(extent, file)| (&*self.paths[*file], extent.end.min(bytes.end) - extent.start.max(bytes.start)))
    }
}
