//! File contents on their way from an input, which is in no useful order, to the data space, which is in path order.
//!
//! Equal contents are kept once. What can be read once only is hashed when it passes, and goes to a nameless temporary file.
//! A tar that lies uncompressed in a file is read there again instead. Where nobody can change it meanwhile, its contents do
//! not even pass first: only those that could be equal, being of one size, are hashed, once all sizes are known. So it is
//! with the files of a directory, which must look as they did before. A tar that can have been changed is hashed both times.
//!
//! Memory: a buffer, and 24 bytes for different contents, some 20 more where they are hashed when they pass. Hashes are in
//! a file of their own.

use super::contents::{Contents, Runs};
use super::files::DirectoryFiles;
use super::hash::{BodyHasher, Hash};
use super::hashes::HashIndex;
use super::holders::{Holders, Input};
use super::item::{Holder, Item, Segment};
use super::late::{find_equal, find_zeros};
use crate::error::{Error, Result};
use crate::limits::ZEROS;
use crate::tar::Shape;
use rustix::fs::Stat;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const BUFFER: usize = 256 << 10;

/// The contents of the files of one layer while they come in; [`Spool::complete`] ends that.
#[derive(Debug)]
pub struct Spool {
    holders: Holders,
    /// Bytes in the spool.
    end: u64,
    /// Bytes of holes that are stored.
    zeros: u64,
    items: Vec<Item>,
    runs: Runs,
    /// The hash of each, where they are hashed when they pass.
    hashes: HashIndex,
    /// For further temporary files.
    directory: PathBuf,
    buffer: Vec<u8>,
}

impl Spool {
    /// An empty spool in a directory, which needs room for all stored bytes.
    pub fn new(directory: &Path) -> Result<Self> {
        Ok(Self {
            holders: Holders::new(directory)?,
            end: 0,
            zeros: 0,
            items: Vec::new(),
            runs: Runs::default(),
            hashes: HashIndex::new(directory),
            directory: directory.to_owned(),
            buffer: vec![0; BUFFER],
        })
    }

    /// From now on [`Spool::add_in_place`] does not copy: the input starts at this byte of the file. `fixed`: nobody can
    /// change it, and files without holes are not even read.
    pub fn read_again(&mut self, file: File, start: u64, fixed: bool) {
        self.holders.input = Input::File { file, start, fixed };
    }

    /// From now on [`Spool::add_file`] does not copy: the input is this directory.
    pub fn read_directory(&mut self, root: OwnedFd) {
        self.holders.input = Input::Directory(DirectoryFiles::new(root));
    }

    /// Takes a file's stored bytes from `read`, which gives 0 at their end; returns the file's number.
    pub fn add(&mut self, shape: &Shape, read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<u32> {
        self.take(shape, Item::new(shape, Holder::Spool, self.end), read)
    }

    /// As [`Spool::add`], of a file without holes that is not read yet: `path` leads to it from the directory that is the
    /// input, and it must look as in `stat` when it is read. `None` where that cannot be.
    pub fn add_file(&mut self, path: &[u8], stat: &Stat) -> Result<Option<u32>> {
        let Input::Directory(files) = &mut self.holders.input else { return Ok(None) };
        let Some(number) = files.add(path, stat) else { return Ok(None) };
        let shape = Shape { size: stat.st_size as u64, map: None };
        self.push(Item::new(&shape, Holder::Directory, number.into())).map(Some)
    }

    /// As [`Spool::add`], of bytes that stand in the input from `position` on.
    pub fn add_in_place(
        &mut self,
        shape: &Shape,
        position: u64,
        read: impl FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<u32> {
        match &self.holders.input {
            Input::File { start, fixed, .. } => {
                let item = Item::new(shape, Holder::Source, start + position);
                match *fixed && shape.map.is_none() {
                    true => self.push(item),
                    false => self.take(shape, item, read),
                }
            }
            _ => self.add(shape, read),
        }
    }

    fn take(&mut self, shape: &Shape, item: Item, mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<u32> {
        let want: u64 = item.segments().map(|segment| segment.length).sum();
        self.count_zeros(shape, item.length() - want)?;
        let mut hasher = BodyHasher::default();
        for segment in item.segments() {
            hasher.zeros(segment.to - hasher.at());
            self.take_segment(segment, item.holder(), &mut read, &mut hasher)?;
        }
        if read(&mut self.buffer[..1])? != 0 {
            return Err(Error::refused(format!("its contents are more than the {want} bytes that were announced")));
        }
        hasher.zeros(item.length() - hasher.at());
        let (hash, zeros) = item.finish(hasher);
        let spooled = if item.holder() == Holder::Spool { want } else { 0 };
        self.keep(item, hash, zeros, spooled)
    }

    fn take_segment(
        &mut self,
        segment: Segment,
        holder: Holder,
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
            if holder == Holder::Spool {
                let at = segment.at + segment.length - left;
                self.holders.write(bytes, at)?;
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
    fn keep(&mut self, item: Item, hash: Hash, zeros: Vec<(u64, u64)>, spooled: u64) -> Result<u32> {
        let next = self.next()?;
        if !self.holders.input.is_late()
            && let Some(first) = self.hashes.add(hash)?
        {
            return Ok(first);
        }
        self.end += spooled;
        self.runs.set(next, zeros);
        self.push(item)
    }

    fn push(&mut self, item: Item) -> Result<u32> {
        let next = self.next()?;
        self.items.push(item);
        Ok(next)
    }

    fn next(&self) -> Result<u32> {
        u32::try_from(self.items.len()).map_err(|e| Error::failed("counting the contents", e))
    }

    /// Nothing more is added: finds what is equal, or forgets what it is found by.
    pub fn complete(self) -> Result<Contents> {
        let Self { holders, items, mut runs, hashes, directory, mut buffer, .. } = self;
        let mut same = Vec::new();
        if holders.input.is_late() {
            find_zeros(&holders, &items, &mut buffer, &mut runs)?;
            same = find_equal(&holders, &items, &mut buffer, &directory)?;
        }
        let hashes = holders.input.can_change().then(|| hashes.into_hashes());
        Ok(Contents { items, runs, same, holders, hashes, directory })
    }

    /// Bytes in the spool.
    pub fn stored(&self) -> u64 {
        self.end
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
        let item = &spool.items[fine as usize];
        let erofs::Content::Sparse { chunks, chunk_bits, .. } = item.content(5) else { panic!("{item:?}") };
        assert!(chunks.contains(&None) && chunks[0] == Some(5), "{chunk_bits} {chunks:?}");
        // One that is stored whole is a plain file.
        let plain = add(&mut spool, &Shape { size: 9, map: None }, b"\0ab\0\0\0\0\0c").unwrap();
        assert_eq!(add(&mut spool, &holes(9, &[(1, 2), (8, 1)]), b"abc").unwrap(), plain);
    }

    #[test]
    fn a_sparse_file_of_many_pieces_is_read_once_each_and_kept_once() {
        let pieces = 100_000;
        let map: Vec<_> = (0..pieces).map(|n| (n * 100, 1)).collect();
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        for _ in 0..2 {
            let (mut reads, mut left) = (0, pieces as usize);
            let read = |buffer: &mut [u8]| {
                let count = buffer.len().min(left);
                buffer[..count].fill(7);
                (reads, left) = (reads + 1, left - count);
                Ok(count)
            };
            assert_eq!(spool.add(&holes(pieces * 100, &map), read).unwrap(), 0);
            assert_eq!(reads, pieces + 1, "and one that finds the end");
        }
        assert_eq!((spool.stored(), spool.items.len()), (pieces, 1));
        assert_eq!(spool.items[0].segments().count() as u64, pieces);
    }

    #[test]
    fn zeros_between_data_that_are_far_apart_have_a_bound() {
        let mut spool = Spool::new(&std::env::temp_dir()).unwrap();
        let apart: Vec<_> = (0..1000).map(|n| (n << 50, 1)).collect();
        assert!(add(&mut spool, &holes(1000 << 50, &apart), &[1; 1000]).unwrap_err().is_refusal());
    }
}
