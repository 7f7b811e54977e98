//! File contents on their way from an input, which is in no useful order, to the data space, which is in path order.
//!
//! Equal contents are kept once. What can be read once only is hashed when it passes, and goes to a nameless temporary file.
//! A tar that lies uncompressed in a file is read there again instead. Where nobody can change it meanwhile, its contents do
//! not even pass first: only those that could be equal, being of one size, are hashed, once all sizes are known. So it is
//! with the files of a directory, which must look as they did before. A tar that can have been changed is hashed both times.
//!
//! Memory: a buffer, and 24 bytes for different contents, some 20 more where they are hashed when they pass. Hashes are in
//! a file of their own.

use super::files::DirectoryFiles;
use super::hash::{BodyHasher, Hash, RUN_MIN};
use super::hashes::Equal;
use super::item::{From, Item, Segment};
use super::read::hash;
use crate::error::{Error, Result};
use crate::limits::ZEROS;
use crate::tar::Shape;
use erofs::BLOCK;
use rustix::fs::Stat;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BUFFER: usize = 256 << 10;

/// The contents of the files of one layer.
#[derive(Debug)]
pub struct Spool {
    file: File,
    end: u64,
    /// Bytes of holes that are stored.
    zeros: u64,
    /// Where the input can be read again.
    source: Source,
    items: Vec<Item>,
    /// Those with holes, when the others are forgotten.
    sparse: HashMap<u32, Item>,
    /// Long runs of zero blocks in the bodies that have any: start and length in bytes.
    runs: HashMap<u32, Box<[(u64, u64)]>>,
    /// The hash of each, where they are hashed when they pass, and have to be checked later.
    hashes: Option<Equal>,
    /// For each the first that is equal to it, where that is found only in the end.
    same: Vec<u32>,
    /// For further temporary files.
    directory: PathBuf,
    complete: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    /// Nowhere.
    Spooled,
    /// In a file, from a byte on; whether nobody can change it.
    File {
        file: File,
        start: u64,
        fixed: bool,
    },
    Directory(DirectoryFiles),
}

impl Spool {
    /// An empty spool in a directory, which needs room for all stored bytes.
    pub fn new(directory: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(directory)
            .map_err(|e| Error::failed(format!("making a spool file in {}", directory.display()), e))?;
        Ok(Self {
            file,
            end: 0,
            zeros: 0,
            source: Source::Spooled,
            items: Vec::new(),
            sparse: HashMap::new(),
            runs: HashMap::new(),
            hashes: Some(Equal::new(directory)),
            same: Vec::new(),
            directory: directory.to_owned(),
            complete: false,
            buffer: vec![0; BUFFER],
        })
    }

    /// From now on [`Spool::add_in_place`] does not copy: the input starts at this byte of the file. `fixed`: nobody can
    /// change it, and files without holes are not even read.
    pub fn read_again(&mut self, file: File, start: u64, fixed: bool) {
        self.source = Source::File { file, start, fixed };
    }

    /// From now on [`Spool::add_file`] does not copy: the input is this directory.
    pub fn read_directory(&mut self, root: OwnedFd) {
        self.source = Source::Directory(DirectoryFiles::new(root));
    }

    /// Takes a file's stored bytes from `read`, which gives 0 at their end; returns the file's number.
    pub fn add(&mut self, shape: &Shape, read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<u32> {
        self.take(shape, Item::new(shape, From::Spool, self.end), read)
    }

    /// As [`Spool::add`], of a file without holes that is not read yet: `path` leads to it from the directory that is the
    /// input, and it must look as in `stat` when it is read. `None` where that cannot be.
    pub fn add_file(&mut self, path: &[u8], stat: &Stat) -> Result<Option<u32>> {
        let Source::Directory(files) = &mut self.source else { return Ok(None) };
        let Some(number) = files.add(path, stat) else { return Ok(None) };
        let shape = Shape { size: stat.st_size as u64, map: None };
        self.push(Item::new(&shape, From::Directory, number.into())).map(Some)
    }

    /// As [`Spool::add`], of bytes that stand in the input from `position` on.
    pub fn add_in_place(
        &mut self,
        shape: &Shape,
        position: u64,
        read: impl FnMut(&mut [u8]) -> Result<usize>,
    ) -> Result<u32> {
        match &self.source {
            Source::File { start, fixed, .. } => {
                let item = Item::new(shape, From::Source, start + position);
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
            self.take_segment(segment, item.from(), &mut read, &mut hasher)?;
        }
        if read(&mut self.buffer[..1])? != 0 {
            return Err(Error::refused(format!("its contents are more than the {want} bytes that were announced")));
        }
        hasher.zeros(item.length() - hasher.at());
        let (hash, zeros) = item.finish(hasher);
        let spooled = if item.from() == From::Spool { want } else { 0 };
        self.keep(item, hash, zeros, spooled)
    }

    fn take_segment(
        &mut self,
        segment: Segment,
        from: From,
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
            if from == From::Spool {
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
    fn keep(&mut self, item: Item, hash: Hash, zeros: Vec<(u64, u64)>, spooled: u64) -> Result<u32> {
        let next = self.next()?;
        if let Some(equal) = self.hashes.as_mut().filter(|_| !is_late(&self.source))
            && let Some(first) = equal.add(hash)?
        {
            return Ok(first);
        }
        self.end += spooled;
        self.set_zeros(next, zeros);
        self.push(item)
    }

    fn set_zeros(&mut self, number: u32, zeros: Vec<(u64, u64)>) {
        if !zeros.is_empty() {
            self.runs.insert(number, zeros.into());
        }
    }

    fn push(&mut self, item: Item) -> Result<u32> {
        let next = self.next()?;
        self.items.push(item);
        Ok(next)
    }

    fn next(&self) -> Result<u32> {
        u32::try_from(self.items.len()).map_err(|e| Error::failed("counting the contents", e))
    }

    /// Nothing more is added: finds what is equal, or forgets what it is found by. Once is enough.
    pub fn complete(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.complete, true) {
            return Ok(());
        }
        if is_late(&self.source) {
            self.find_zeros()?;
            self.find_equal()?;
        }
        match (&self.source, &mut self.hashes) {
            (Source::File { fixed: false, .. }, Some(hashes)) => hashes.forget_table(),
            _ => self.hashes = None,
        }
        Ok(())
    }

    /// Finds the long runs of zero blocks of contents that have not been read. Of each run one block at least stands at a
    /// multiple of half of the shortest one's length: where none of those is zero, there is no run.
    fn find_zeros(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for number in 0..self.next()? {
            let item = self.item(number);
            let length = item.length();
            let (Some(only), None) = (item.segment(0), item.segment(1)) else { continue };
            if item.from() == From::Spool || length < RUN_MIN {
                continue;
            }
            let mut probes = (0..only.length).step_by(RUN_MIN as usize / 2);
            let any = probes.try_fold(false, |any, at| {
                let block = &mut buffer[..(only.length - at).min(BLOCK as u64) as usize];
                self.read(item, block, only.at + at)?;
                Ok(any || block.iter().all(|&byte| byte == 0))
            })?;
            if any {
                let (_, zeros) = hash(self, item, &mut buffer)?;
                self.set_zeros(number, zeros);
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    fn find_equal(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut same: Vec<u32> = (0..self.next()?).collect();
        let mut order = same.clone();
        let size = |number: &u32| (self.item(*number).size(), self.item(*number).length());
        order.sort_unstable_by_key(|number| (size(number), *number));
        for alike in order.chunk_by(|a, b| size(a) == size(b)).filter(|alike| alike.len() > 1) {
            let (mut equal, mut different) = (Equal::new(&self.directory), Vec::new());
            for &number in alike {
                let (hash, _) = hash(self, self.item(number), &mut buffer)?;
                match equal.add(hash)? {
                    Some(first) => same[number as usize] = different[first as usize],
                    None => different.push(number),
                }
            }
        }
        (self.same, self.buffer) = (same, buffer);
        Ok(())
    }

    /// A file's contents by its number.
    pub fn item(&self, number: u32) -> &Item {
        &self.items[number as usize]
    }

    /// Forgets what only a plan needs, once there is one: most of what is known of contents.
    pub fn forget_plain(&mut self) {
        let all = std::mem::take(&mut self.items).into_iter().zip(0..);
        self.sparse = all.filter(|(item, _)| item.is_sparse()).map(|(item, number)| (number, item)).collect();
        self.same = Vec::new();
        self.runs = HashMap::new();
    }

    /// A file's contents by its number, where it has holes.
    pub(super) fn sparse(&self, number: u32) -> Option<&Item> {
        self.items.get(number as usize).or_else(|| self.sparse.get(&number)).filter(|item| item.is_sparse())
    }

    /// Where temporary files go.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of the first contents that are equal to these.
    pub(super) fn first(&self, number: u32) -> u32 {
        self.same.get(number as usize).copied().unwrap_or(number)
    }

    /// Long runs of zero blocks in the body of contents: start and length in bytes.
    pub(super) fn zeros(&self, number: u32) -> &[(u64, u64)] {
        self.runs.get(&number).map_or(&[], |runs| runs)
    }

    /// The hash that contents must have when they are read again, where that is not sure.
    pub(super) fn to_check(&self, number: u32, item: &Item) -> Result<Option<Hash>> {
        match &self.hashes {
            Some(hashes) if item.from() != From::Spool => hashes.get(number),
            _ => Ok(None),
        }
    }

    /// How many contents there are; some may be equal.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes in the spool.
    pub fn stored(&self) -> u64 {
        self.end
    }

    /// Fills `buffer` with bytes of an item, from where its segments say they are.
    pub(super) fn read(&self, item: &Item, buffer: &mut [u8], at: u64) -> Result<()> {
        let (file, what) = match (item.from(), &self.source) {
            (From::Directory, Source::Directory(files)) => return files.read(item.number(), buffer, at),
            (From::Source, Source::File { file, .. }) => (file, "reading the source again"),
            _ => (&self.file, "reading the spool file"),
        };
        file.read_exact_at(buffer, at).map_err(|e| Error::failed(what, e))
    }
}

/// Whether equal contents are found in the end only.
fn is_late(source: &Source) -> bool {
    matches!(source, Source::File { fixed: true, .. } | Source::Directory(_))
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
        let erofs::Content::Sparse { chunks, chunk_bits, .. } = item.content(5) else { panic!("{item:?}") };
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
