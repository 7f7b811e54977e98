//! File contents on their way from a tar, which is in no useful order, to the data space, which is in path order.
//!
//! Each file's stored bytes go to a nameless temporary file and are hashed on the way; equal contents are kept once.
//! Memory: a buffer, and some hundred bytes a file.

use crate::error::{Error, Result};
use crate::tar::{Extent, Shape};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BUFFER: usize = 256 << 10;

/// The contents of the files of one layer.
#[derive(Debug)]
pub struct Spool {
    file: File,
    end: u64,
    items: Vec<Item>,
    by_hash: HashMap<[u8; 32], usize>,
}

/// One file's contents.
#[derive(Debug, Clone)]
pub struct Item {
    /// How they lie in the file.
    pub shape: Shape,
    /// BLAKE3 of the shape and the stored bytes.
    pub hash: [u8; 32],
    /// Where the stored bytes start in the spool.
    at: u64,
}

impl Spool {
    /// An empty spool in a directory, which needs room for all stored bytes.
    pub fn new(directory: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(directory)
            .map_err(|e| Error::failed(format!("making a spool file in {}", directory.display()), e))?;
        Ok(Self { file, end: 0, items: Vec::new(), by_hash: HashMap::new() })
    }

    /// Takes a file's stored bytes from `read`, which gives 0 at their end; returns the file's number.
    pub fn add(&mut self, shape: &Shape, mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let want = shape.map.as_ref().map_or(shape.size, |map| map.iter().map(|extent| extent.length).sum());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&describe(shape));
        let mut buffer = vec![0; BUFFER.min(usize::try_from(want).unwrap_or(BUFFER)).max(1)];
        let mut got = 0;
        loop {
            let count = read(&mut buffer)?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            self.file
                .write_all_at(&buffer[..count], self.end + got)
                .map_err(|e| Error::failed("writing the spool file", e))?;
            got += count as u64;
        }
        if got != want {
            return Err(Error::refused(format!("its contents are {got} bytes, {want} were announced")));
        }
        Ok(self.keep(Item { shape: shape.clone(), hash: *hasher.finalize().as_bytes(), at: self.end }, got))
    }

    /// Keeps an item whose bytes stand at the end of the spool, unless its contents are there already.
    fn keep(&mut self, item: Item, stored: u64) -> usize {
        *self.by_hash.entry(item.hash).or_insert_with(|| {
            self.items.push(item);
            self.end += stored;
            self.items.len() - 1
        })
    }

    /// A file's contents by its number.
    pub fn item(&self, number: usize) -> &Item {
        &self.items[number]
    }

    /// Bytes in the spool.
    pub fn stored(&self) -> u64 {
        self.end
    }

    /// Fills `buffer` with spooled bytes.
    pub(super) fn read(&self, buffer: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(buffer, at).map_err(|e| Error::failed("reading the spool file", e))
    }
}

impl Item {
    /// The stored pieces of the file, each with its place in the spool.
    pub(super) fn pieces(&self) -> Vec<(Extent, u64)> {
        let whole = [Extent { offset: 0, length: self.shape.size }];
        let mut at = self.at;
        let pieces = self.shape.map.as_deref().unwrap_or(&whole).iter().map(|&extent| {
            let piece = (extent, at);
            at += extent.length;
            piece
        });
        pieces.filter(|(extent, _)| extent.length > 0).collect()
    }
}

/// The shape as bytes that no other shape has.
fn describe(shape: &Shape) -> Vec<u8> {
    let pieces = shape.map.iter().flatten().flat_map(|extent| [extent.offset, extent.length]);
    let kind = u64::from(shape.map.is_some());
    let count = shape.map.as_ref().map_or(0, |map| map.len() as u64);
    [kind, shape.size, count].into_iter().chain(pieces).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn add(spool: &mut Spool, shape: &Shape, mut bytes: &[u8]) -> Result<usize> {
        spool.add(shape, |buffer| {
            let count = buffer.len().min(bytes.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            Ok(count)
        })
    }

    #[test]
    fn equal_contents_are_kept_once_and_shapes_tell_them_apart() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let plain = Shape { size: 3, map: None };
        let holes = Shape { size: 9, map: Some(vec![Extent { offset: 4, length: 3 }]) };
        let first = add(&mut spool, &plain, b"abc").unwrap();
        assert_eq!(add(&mut spool, &plain, b"abc").unwrap(), first);
        assert_ne!(add(&mut spool, &holes, b"abc").unwrap(), first);
        assert_eq!(spool.stored(), 6);
        assert!(add(&mut spool, &plain, b"ab").unwrap_err().is_refusal());
    }
}
