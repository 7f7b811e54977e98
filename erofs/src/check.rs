//! The gate: metadata that comes from outside is given to the kernel only after it was accepted here.
//!
//! Accepted is what [`crate::write()`] may write, and nothing else that EROFS would allow: one superblock to the last field, the
//! stored form, extended inodes of the layouts that belong to their file type, directories sorted and unique, a tree
//! in which every directory has one name, link counts that are right, addresses inside of what they belong to. No
//! byte of the metadata belongs to two things, and bytes that belong to nothing are zero; shared xattrs alone are named
//! from several places. So the work is in proportion to the length of the metadata, and what was accepted can be
//! attached to a device ([`crate::attach_device`]) without being looked at again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::ReadError;
use crate::device::checksum;
use crate::directory::Block;
use crate::format::{
    CHUNK_BASED, COMPAT_CHECKSUM, COMPAT_MTIME, DeviceSlot, ExtendedInode, FIRST_INODE_OFFSET, FLAT_INLINE, FLAT_PLAIN,
    INCOMPAT_CHUNKED_FILE, INODE_SLOT, NO_ID, SUPERBLOCK_OFFSET, Superblock, XattrHeader, encode_device,
};
use crate::inode::Inode;
use crate::read::Image;
use crate::xattr::{self, XattrProblem};
use crate::{BLOCK_U64, Content, FileType, content};

/// What is known about the image from elsewhere: from the layer's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Blocks of the whole image, metadata and data.
    pub image_blocks: u64,
    /// Blocks of the metadata.
    pub first_data_block: u64,
}

/// Why metadata was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The superblock or the device slot.
    #[error("EROFS metadata refused: superblock: {0}")]
    Superblock(&'static str),
    /// An inode, or what belongs to it.
    #[error("EROFS metadata refused: inode {nid}: {what}")]
    Inode {
        /// Where.
        nid: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An attribute that must not be.
    #[error("EROFS metadata refused: inode {nid}: attribute {}: {problem}", name.escape_ascii())]
    Xattr {
        /// Where.
        nid: u64,
        /// Its full name.
        name: Vec<u8>,
        /// What is wrong.
        problem: XattrProblem,
    },
    /// Bytes that belong to nothing, and yet are not zero.
    #[error("EROFS metadata refused: stray bytes at {offset}")]
    Stray {
        /// The offset of such a byte, rounded down to a multiple of 4.
        offset: u64,
    },
    /// It could not even be read.
    #[error("EROFS metadata refused: {0}")]
    Read(#[from] ReadError),
}

/// Metadata that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    image: Image<'a>,
}

impl<'a> Checked<'a> {
    /// The image.
    pub fn image(&self) -> &Image<'a> {
        &self.image
    }
}

/// Accepts or refuses metadata in the stored form, before the kernel sees it.
///
/// # Errors
/// What was found wrong first.
pub fn check<'a>(metadata: &'a [u8], expect: &Expect) -> Result<Checked<'a>, CheckError> {
    let image = Image::new(metadata)?;
    check_superblock(&image, expect)?;
    let slots = metadata.len() / INODE_SLOT as usize;
    let mut checker = Checker {
        image,
        claims: Claims::new(metadata.len()),
        names: Names::new(slots),
        shared: HashSet::new(),
        chunked: false,
    };
    checker.claims.take(0..FIRST_INODE_OFFSET as u64);
    checker.tree()?;
    checker.totals()?;
    Ok(Checked { image })
}

/// Compares the superblock and the slot with the only ones that this image can have.
fn check_superblock(image: &Image<'_>, expect: &Expect) -> Result<(), CheckError> {
    let refuse = |what| Err(CheckError::Superblock(what));
    let superblock = image.superblock();
    if superblock.checksum != checksum(image.bytes()) {
        return refuse("checksum");
    }
    if image.first_data_block() != expect.first_data_block {
        return refuse("the metadata is not as long as the index says");
    }
    if u64::from(superblock.blocks) != expect.image_blocks
        || image.first_data_block().checked_add(image.data_blocks()) != Some(expect.image_blocks)
    {
        return refuse("the image is not as long as the index says");
    }
    let exact = Superblock {
        feature_compat: COMPAT_CHECKSUM | COMPAT_MTIME,
        feature_incompat: superblock.feature_incompat & INCOMPAT_CHUNKED_FILE,
        sb_extslots: 0,
        build_time: 0,
        build_time_nsec: 0,
        volume_name: [0; 16],
        available_compr_algs: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: 0,
        packed_nid: 0,
        xattr_filter_reserved: 0,
        reserved: [0; 23],
        ..*superblock
    };
    if *superblock != exact {
        return refuse("a field or feature that is not used");
    }
    if *image.slot() != (DeviceSlot { tag: [0; 64], reserved: [0; 56], ..*image.slot() }) {
        return refuse("a field of the device slot that is not used");
    }
    if image.bytes()[..SUPERBLOCK_OFFSET].iter().any(|byte| *byte != 0) {
        return refuse("bytes before it");
    }
    if u64::from(superblock.xattr_blkaddr) >= expect.first_data_block {
        return refuse("address of the shared xattrs");
    }
    Ok(())
}

struct Checker<'a> {
    image: Image<'a>,
    claims: Claims,
    /// By nid: names seen so far; of a directory, 1 for its own name and 1 for each subdirectory.
    names: Names,
    /// Offsets of the shared xattrs that were seen to be right.
    shared: HashSet<u64>,
    chunked: bool,
}

impl Checker<'_> {
    /// Walks the tree.
    fn tree(&mut self) -> Result<(), CheckError> {
        let root = self.image.root()?;
        if root.file_type != FileType::Directory {
            return Err(refused(&root, "the root is no directory"));
        }
        self.first_visit(&root)?;
        let mut waiting = vec![(root, root.nid)];
        while let Some((directory, parent)) = waiting.pop() {
            self.directory(&directory, parent, &mut waiting)?;
        }
        Ok(())
    }

    /// A directory's blocks and entries; subdirectories are put on the list.
    fn directory(&mut self, directory: &Inode, parent: u64, waiting: &mut Vec<(Inode, u64)>) -> Result<(), CheckError> {
        let mut last: &[u8] = b"";
        let mut dots = 0;
        for index in 0..directory.size.div_ceil(BLOCK_U64) {
            let block = self.image.directory_block(directory, index)?;
            for at in 0..block.len() {
                let (dirent, name) = block.get(at)?;
                if name <= last {
                    return Err(refused(directory, "names out of order"));
                }
                last = name;
                if dirent.reserved != 0 || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
                    return Err(refused(directory, "an entry or a name with a byte that must not be"));
                }
                let expected = match name {
                    b"." => Some(directory.nid),
                    b".." => Some(parent),
                    _ => None,
                };
                match expected {
                    None => self.entry(directory, dirent.nid, dirent.file_type, waiting)?,
                    Some(nid) if nid == dirent.nid && dirent.file_type == FileType::Directory.dirent() => dots += 1,
                    Some(_) => return Err(refused(directory, "a wrong . or ..")),
                }
            }
            self.padding(directory, block)?;
        }
        if dots == 2 { Ok(()) } else { Err(refused(directory, "without . or ..")) }
    }

    fn padding(&self, directory: &Inode, block: Block<'_>) -> Result<(), CheckError> {
        match block.padding()?.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(refused(directory, "bytes behind the names")),
        }
    }

    /// An entry other than `.` and `..`.
    fn entry(
        &mut self,
        directory: &Inode,
        nid: u64,
        file_type: u8,
        waiting: &mut Vec<(Inode, u64)>,
    ) -> Result<(), CheckError> {
        let inode = self.image.inode(nid)?;
        if inode.file_type.dirent() != file_type {
            return Err(refused(&inode, "its entry says another file type"));
        }
        if self.names.of(nid) == 0 {
            self.first_visit(&inode)?;
            if inode.file_type == FileType::Directory {
                self.names.add(directory.nid);
                waiting.push((inode, directory.nid));
            }
        } else if inode.file_type == FileType::Directory {
            return Err(refused(&inode, "a directory with two names"));
        } else {
            self.names.add(nid);
        }
        Ok(())
    }

    /// All that can be said about an inode alone.
    fn first_visit(&mut self, inode: &Inode) -> Result<(), CheckError> {
        self.names.add(inode.nid);
        let (own, blocks) = self.image.extents(inode)?;
        let one_block = own.start / BLOCK_U64 == (own.end - 1) / BLOCK_U64;
        let header_end = own.start + ExtendedInode::SIZE as u64;
        if own.start / BLOCK_U64 != (header_end - 1) / BLOCK_U64 || (inode.layout == FLAT_INLINE && !one_block) {
            return Err(refused(inode, "crosses a block boundary"));
        }
        let slots = own.start..own.end.next_multiple_of(INODE_SLOT);
        if !self.claims.take(slots) || !self.claims.take(blocks.clone()) {
            return Err(refused(inode, "lies outside of the metadata or where something else lies"));
        }
        if self.image.bytes()[own.end as usize..own.end.next_multiple_of(INODE_SLOT) as usize]
            .iter()
            .any(|byte| *byte != 0)
        {
            return Err(refused(inode, "bytes behind it"));
        }
        let disk = self.image.disk_inode(inode.nid)?;
        if disk.i_format >> 1 != inode.layout || disk.i_reserved != 0 || disk.i_reserved2 != [0; 16] {
            return Err(refused(inode, "a field that is not used"));
        }
        if inode.mtime_nsec >= 1_000_000_000 {
            return Err(refused(inode, "nanoseconds of its time"));
        }
        if inode.uid == NO_ID || inode.gid == NO_ID {
            return Err(refused(inode, "an owner or group that cannot be"));
        }
        self.body(inode, blocks)?;
        self.xattrs(inode)
    }

    /// Layout, size, and where the contents lie.
    fn body(&mut self, inode: &Inode, blocks: Range<u64>) -> Result<(), CheckError> {
        let inline = inode.layout == FLAT_INLINE && !inode.size.is_multiple_of(BLOCK_U64);
        let in_metadata =
            (inode.layout == FLAT_PLAIN || inline) && inode.size > 0 && (!blocks.is_empty() || inode.value == 0);
        let right = match inode.file_type {
            FileType::Directory => in_metadata && self.zero_tail(blocks, inode.size),
            FileType::Symlink => {
                in_metadata && !self.image.readlink(inode)?.contains(&0) && self.zero_tail(blocks, inode.size)
            }
            FileType::File => return self.file(inode),
            FileType::Char | FileType::Block => {
                let (major, minor) = inode.device();
                inode.layout == FLAT_PLAIN && inode.size == 0 && encode_device(major, minor) == Some(inode.value)
            }
            FileType::Fifo | FileType::Socket => inode.layout == FLAT_PLAIN && inode.size == 0 && inode.value == 0,
        };
        if right { Ok(()) } else { Err(refused(inode, "layout, size or address do not fit its file type")) }
    }

    /// Whether the blocks of a symlink or a directory are zero behind its size. The kernel's lookup reads a directory's last
    /// block to its end, and would find another last name than its readdir.
    fn zero_tail(&self, blocks: Range<u64>, size: u64) -> bool {
        let end = blocks.end.min(blocks.start.saturating_add(size));
        self.image.bytes()[end as usize..blocks.end as usize].iter().all(|byte| *byte == 0)
    }

    /// The contents of a regular file lie in the data space.
    fn file(&mut self, inode: &Inode) -> Result<(), CheckError> {
        self.chunked |= inode.layout == CHUNK_BASED;
        let data_blocks = self.image.data_blocks();
        let inside = |start: u64, blocks: u64| start.checked_add(blocks).is_some_and(|end| end <= data_blocks);
        let right = match self.image.content(inode)? {
            Content::Plain { size: 0, .. } => inode.value == 0,
            Content::Plain { size, start } => inside(start, size.div_ceil(BLOCK_U64)),
            Content::Sparse { size, chunk_bits, chunks } => {
                let blocks = |at| content::chunk_blocks(size, chunk_bits, at as u64);
                let fits = |(at, start): (usize, Option<u64>)| start.is_none_or(|start| inside(start, blocks(at)));
                size > 0 && chunks.into_iter().enumerate().all(fits)
            }
        };
        if right { Ok(()) } else { Err(refused(inode, "contents outside of the data blocks")) }
    }

    fn xattrs(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let mut names = Vec::new();
        for raw in self.image.raw_xattrs(inode)? {
            let raw = raw?;
            let padded = raw.padding.iter().any(|byte| *byte != 0);
            let name = xattr::join(raw.index, raw.rest).ok_or_else(|| refused(inode, "prefix of an xattr name"))?;
            match xattr::examine(inode.file_type, &name, raw.value) {
                Ok(split) if split == (raw.index, raw.rest) && !padded => {}
                Ok(_) => return Err(refused(inode, "an xattr's prefix or padding")),
                Err(problem) => return Err(CheckError::Xattr { nid: inode.nid, name, problem }),
            }
            if raw.shared && self.shared.insert(raw.offset) && !self.claims.take(raw.offset..raw.end()) {
                return Err(refused(inode, "a shared xattr where something else lies"));
            }
            names.push((raw.index, raw.rest));
        }
        let header = XattrHeader::at(self.image.bytes(), inode.body_offset());
        let plain = header.is_none_or(|header| header.h_name_filter == 0 && header.h_reserved == [0; 7]);
        if inode.xattr_icount > 0 && (names.is_empty() || !plain) {
            return Err(refused(inode, "header of its xattrs"));
        }
        names.sort_unstable();
        match names.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(refused(inode, "an xattr twice")),
            false => Ok(()),
        }
    }

    /// What can be said only when everything has been seen.
    fn totals(&self) -> Result<(), CheckError> {
        let mut inodes = 0;
        for (nid, names) in self.names.iter() {
            inodes += 1;
            let inode = self.image.inode(nid)?;
            if inode.nlink != names + u32::from(inode.file_type == FileType::Directory) {
                return Err(refused(&inode, "number of links"));
            }
        }
        let superblock = self.image.superblock();
        if superblock.inos != inodes {
            return Err(CheckError::Superblock("number of inodes"));
        }
        if (superblock.feature_incompat & INCOMPAT_CHUNKED_FILE != 0) != self.chunked {
            return Err(CheckError::Superblock("the feature bit of files in chunks"));
        }
        if (superblock.xattr_blkaddr != 0) == self.shared.is_empty() {
            return Err(CheckError::Superblock("address of the shared xattrs"));
        }
        match self.claims.stray(self.image.bytes()) {
            Some(offset) => Err(CheckError::Stray { offset }),
            None => Ok(()),
        }
    }
}

fn refused(inode: &Inode, what: &'static str) -> CheckError {
    CheckError::Inode { nid: inode.nid, what }
}

/// How many names each inode has, by its address: a byte, for nearly all have one.
struct Names {
    few: Vec<u8>,
    /// Those for which a byte is too little.
    many: HashMap<u64, u32>,
}

impl Names {
    fn new(slots: usize) -> Self {
        Names { few: vec![0; slots], many: HashMap::new() }
    }

    /// One more.
    fn add(&mut self, nid: u64) {
        match self.few[nid as usize] {
            u8::MAX => *self.many.entry(nid).or_insert(u8::MAX.into()) += 1,
            few => self.few[nid as usize] = few + 1,
        }
    }

    fn of(&self, nid: u64) -> u32 {
        match self.few[nid as usize] {
            u8::MAX => self.many.get(&nid).copied().unwrap_or(u8::MAX.into()),
            few => few.into(),
        }
    }

    /// The inodes that have any.
    fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let named = self.few.iter().enumerate().filter(|(_, few)| **few > 0);
        named.map(|(nid, _)| (nid as u64, self.of(nid as u64)))
    }
}

/// Which bytes belong to something, in units of 4; a bit for each.
struct Claims {
    taken: Vec<u64>,
    units: u64,
}

impl Claims {
    const UNIT: u64 = 4;
    const WORD: u64 = u64::BITS as u64;

    fn new(len: usize) -> Self {
        let units = len as u64 / Self::UNIT;
        Claims { taken: vec![0; units.div_ceil(Self::WORD) as usize], units }
    }

    /// Takes a range of bytes, or says that it is not free or not there. Work is in proportion to what was free.
    fn take(&mut self, bytes: Range<u64>) -> bool {
        let units = bytes.start / Self::UNIT..bytes.end.div_ceil(Self::UNIT);
        if units.is_empty() {
            return true;
        }
        if units.end > self.units {
            return false;
        }
        let mut at = units.start;
        while at < units.end {
            let (word, first) = ((at / Self::WORD) as usize, at % Self::WORD);
            let count = (units.end - at).min(Self::WORD - first);
            let mask = (u64::MAX >> (Self::WORD - count)) << first;
            if self.taken[word] & mask != 0 {
                return false;
            }
            self.taken[word] |= mask;
            at += count;
        }
        true
    }

    /// The offset of something that is not zero and belongs to nothing.
    fn stray(&self, bytes: &[u8]) -> Option<u64> {
        let unit = Self::UNIT as usize;
        let mut words = self.taken.iter().zip(bytes.chunks(unit * Self::WORD as usize)).enumerate();
        words.find_map(|(number, (taken, bytes))| {
            if *taken == u64::MAX {
                return None;
            }
            let mut units = bytes.chunks(unit).enumerate();
            let free = units.find(|(at, unit)| taken >> at & 1 == 0 && unit.iter().any(|byte| *byte != 0))?;
            Some((number as u64 * Self::WORD + free.0 as u64) * Self::UNIT)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_however_many_there_are() {
        let mut names = Names::new(3);
        (0..300).for_each(|_| names.add(1));
        (0..255).for_each(|_| names.add(2));
        assert_eq!([names.of(0), names.of(1), names.of(2)], [0, 300, 255]);
        assert_eq!(names.iter().collect::<Vec<_>>(), [(1, 300), (2, 255)]);
    }

    #[test]
    fn bytes_are_claimed_once() {
        let mut claims = Claims::new(64);
        assert!(claims.take(0..10));
        assert!(!claims.take(11..12));
        assert!(claims.take(12..64));
        assert!(!claims.take(60..68));
        assert!(claims.take(20..20));
        let mut claims = Claims::new(4096);
        assert!(claims.take(1000..3000) && claims.take(3000..4096) && claims.take(0..1000) && !claims.take(2996..3000));
        assert_eq!((claims.stray(&[1; 4096]), Claims::new(4096).stray(&[0; 4096])), (None, None));
        let mut claims = Claims::new(4096);
        assert!(claims.take(0..2052));
        assert_eq!(claims.stray(&[1; 4096]), Some(2052));
    }
}
