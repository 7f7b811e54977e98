//! File contents on their way from a tar, which is in no useful order, to the data space, which is in path order.
//!
//! Each file's stored bytes are hashed when they pass first; equal contents are kept once. Most inputs can be read once
//! only: their bytes go to a nameless temporary file. A tar that lies uncompressed in a file is read there again
//! instead. It may have changed by then, so what comes from it is to be hashed again.
//!
//! Memory: a buffer, and about a hundred bytes a file.

use super::hash::BodyHasher;
use super::item::{Body, Item, Segment};
use crate::error::{Error, Result};
use crate::limits::ZEROS;
use crate::tar::Shape;
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
    /// Bytes of holes that are stored.
    zeros: u64,
    /// Where the input can be read again, and the byte at which it starts there.
    source: Option<(File, u64)>,
    items: Vec<Item>,
    /// Places in the list by the first bytes of the hash: the hashes themselves are kept once.
    by_hash: HashMap<[u8; 8], u32>,
    buffer: Vec<u8>,
}

impl Spool {
    /// An empty spool in a directory, which needs room for all stored bytes.
    pub fn new(directory: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(directory)
            .map_err(|e| Error::failed(format!("making a spool file in {}", directory.display()), e))?;
        let (items, by_hash, buffer) = (Vec::new(), HashMap::new(), vec![0; BUFFER]);
        Ok(Self { file, end: 0, zeros: 0, source: None, items, by_hash, buffer })
    }

    /// From now on [`Spool::add_in_place`] does not copy: the input starts at this byte of the file.
    pub fn read_again(&mut self, source: File, start: u64) {
        self.source = Some((source, start));
    }

    /// Takes a file's stored bytes from `read`, which gives 0 at their end; returns the file's number.
    pub fn add(&mut self, shape: &Shape, read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<u32> {
        let body = Body::new(shape, self.end);
        self.take(shape, body, false, read)
    }

    /// As [`Spool::add`], of bytes that stand in the input from `position` on.
    pub fn add_in_place(
        &mut self,
        shape: &Shape,
        position: u64,
        read: impl FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<u32> {
        match self.source {
            Some((_, start)) => self.take(shape, Body::new(shape, start + position), true, read),
            None => self.add(shape, read),
        }
    }

    fn take(
        &mut self,
        shape: &Shape,
        body: Body,
        in_source: bool,
        mut read: impl FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<u32> {
        let want: u64 = body.segments().iter().map(|segment| segment.length).sum();
        self.count_zeros(shape, body.length() - want)?;
        let mut hasher = BodyHasher::default();
        for segment in body.segments() {
            hasher.zeros(segment.to - hasher.at());
            self.take_segment(segment, in_source, &mut read, &mut hasher)?;
        }
        if read(&mut self.buffer[..1])? != 0 {
            return Err(Error::refused(format!("its contents are more than the {want} bytes that were announced")));
        }
        hasher.zeros(body.length() - hasher.at());
        self.keep(Item::new(body, hasher, in_source), if in_source { 0 } else { want })
    }

    fn take_segment(
        &mut self,
        segment: &Segment,
        in_source: bool,
        read: &mut impl FnMut(&mut [u8]) -> Result<usize>,
        hasher: &mut BodyHasher,
    ) -> Result<()> {
        let mut left = segment.length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            let count = read(&mut self.buffer[..most])?;
            if count == 0 {
                return Err(Error::refused(format!("its contents are {left} bytes less than were announced")));
            }
            let bytes = &self.buffer[..count];
            if !in_source {
                let at = segment.at + segment.length - left;
                self.file.write_all_at(bytes, at).map_err(|e| Error::failed("writing the spool file", e))?;
            }
            hasher.bytes(bytes);
            left -= count as u64;
        }
        Ok(())
    }

    /// Refuses more holes that have to be stored than a layer may have; the end of a file's last block is none.
    fn count_zeros(&mut self, shape: &Shape, zeros: u64) -> Result<()> {
        if shape.map.is_some() {
            self.zeros = self.zeros.saturating_add(zeros);
        }
        match self.zeros > ZEROS {
            true => Err(Error::refused(format!(
                "a sparse file of {} bytes whose data are too far apart: more than {ZEROS} bytes of holes would have \
                 to be stored",
                shape.size
            ))),
            false => Ok(()),
        }
    }

    /// Keeps an item whose bytes stand at the end of the spool, unless its contents are there already.
    fn keep(&mut self, item: Item, spooled: u64) -> Result<u32> {
        let next = u32::try_from(self.items.len()).map_err(|e| Error::failed("counting the contents", e))?;
        let number = *self.by_hash.entry(*item.hash.first_chunk().unwrap_or(&[0; 8])).or_insert(next);
        if self.items.get(number as usize).is_some_and(|kept| kept.hash == item.hash) {
            return Ok(number);
        }
        // Of contents whose hashes begin alike, which are rarer than any error, all but the first are kept each time.
        self.items.push(item);
        self.end += spooled;
        Ok(next)
    }

    /// Nothing more is added: forgets what equal contents are found by.
    pub fn complete(&mut self) {
        self.by_hash = HashMap::new();
    }

    /// A file's contents by its number.
    pub fn item(&self, number: u32) -> &Item {
        &self.items[number as usize]
    }

    /// How many different contents there are.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes in the spool.
    pub fn stored(&self) -> u64 {
        self.end
    }

    /// Fills `buffer` with bytes of an item, from where its segments say they are.
    pub(super) fn read(&self, item: &Item, buffer: &mut [u8], at: u64) -> Result<()> {
        let (file, what) = match &self.source {
            Some((source, _)) if item.in_source => (source, "reading the source again"),
            _ => (&self.file, "reading the spool file"),
        };
        file.read_exact_at(buffer, at).map_err(|e| Error::failed(what, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::Extent;

    fn add(spool: &mut Spool, shape: &Shape, mut bytes: &[u8]) -> Result<u32> {
        spool.add(shape, |buffer| std::io::Read::read(&mut bytes, buffer).map_err(|_| unreachable!()))
    }

    fn holes(size: u64, map: &[(u64, u64)]) -> Shape {
        let extent = |&(offset, length): &(u64, u64)| Extent { offset, length };
        Shape { size, map: Some(map.iter().map(extent).collect()) }
    }

    #[test]
    fn equal_contents_are_kept_once_and_shapes_tell_them_apart() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let plain = Shape { size: 3, map: None };
        let first = add(&mut spool, &plain, b"abc").unwrap();
        assert_eq!(add(&mut spool, &plain, b"abc").unwrap(), first);
        assert_ne!(add(&mut spool, &holes(1 << 20, &[(4, 3)]), b"abc").unwrap(), first);
        assert_eq!(spool.stored(), 6);
        assert!(add(&mut spool, &plain, b"ab").unwrap_err().is_refusal());
        assert!(add(&mut spool, &plain, b"abcd").unwrap_err().is_refusal());
    }

    #[test]
    fn how_a_map_describes_the_holes_does_not_count() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let fine = add(&mut spool, &holes(1 << 20, &[(10, 3), (4095, 2)]), b"abcde").unwrap();
        let mut coarse = vec![0; 8192];
        coarse[10..13].copy_from_slice(b"abc");
        coarse[4095..4097].copy_from_slice(b"de");
        assert_eq!(add(&mut spool, &holes(1 << 20, &[(0, 8192)]), &coarse).unwrap(), fine);
        let item = spool.item(fine);
        let erofs::Content::Sparse { chunks, chunk_bits, .. } = item.body.content(5) else { panic!("{item:?}") };
        assert!(chunks.contains(&None) && chunks[0] == Some(5), "{chunk_bits} {chunks:?}");
        // One that is stored whole is a plain file.
        let plain = add(&mut spool, &Shape { size: 9, map: None }, b"\0ab\0\0\0\0\0c").unwrap();
        assert_eq!(add(&mut spool, &holes(9, &[(1, 2), (8, 1)]), b"abc").unwrap(), plain);
    }

    #[test]
    fn zeros_between_data_that_are_far_apart_have_a_bound() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let apart: Vec<_> = (0..1000).map(|n| (n << 50, 1)).collect();
        assert!(add(&mut spool, &holes(1000 << 50, &apart), &[1; 1000]).unwrap_err().is_refusal());
    }
}
