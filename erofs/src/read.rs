//! Reads an image's metadata, in the stored form or with the device attached. It never reads data blocks.
//!
//! Safe on any bytes: each answer is right for the bytes that were looked at or an error, and each call ends after work in
//! proportion to the metadata's length. Whether an image as a whole makes sense is not asked here but in
//! [`crate::check()`]: a walk down an unchecked image may go in circles.

use std::cmp::Ordering;

use crate::content::chunk_count;
use crate::directory::Block;
use crate::format::{
    BLOCK_BITS, CHUNK_BASED, DEVICE_SLOT_NUMBER, DEVICE_SLOT_OFFSET, DeviceSlot, ExtendedInode, FLAT_INLINE,
    FLAT_PLAIN, INCOMPAT_CHUNKED_FILE, INCOMPAT_DEVICE_TABLE, INODE_SLOT, MAGIC, NULL_ADDRESS, SUPERBLOCK_OFFSET,
    Superblock, XattrEntry, XattrHeader,
};
use crate::inode::Inode;
use crate::{BLOCK_U64, Content, FileType, Kind, ReadError, xattr};

/// The metadata of an image.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    bytes: &'a [u8],
    superblock: Superblock,
    slot: DeviceSlot,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name; `.` and `..` are entries too.
    pub name: &'a [u8],
    /// The inode that it leads to.
    pub nid: u64,
    /// That inode's type.
    pub file_type: FileType,
}

/// A run of a file's bytes that are one run of data, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it lies, in bytes from the start of the data space; `None` for a hole.
    pub data: Option<u64>,
    /// Bytes, at least one, not past the end of the file.
    pub len: u64,
}

/// Extended attributes: full names and values.
pub type Xattrs<'a> = Vec<(Vec<u8>, &'a [u8])>;

/// An xattr as it lies there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawXattr<'a> {
    pub(crate) index: u8,
    pub(crate) rest: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Zeros up to the next multiple of 4.
    pub(crate) padding: &'a [u8],
    /// Byte offset of its entry in the metadata.
    pub(crate) offset: u64,
    pub(crate) shared: bool,
}

/// Whether a reader of ours knows all features that it must know.
fn known_features(superblock: &Superblock) -> bool {
    superblock.feature_incompat & !(INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE) == 0
}

impl<'a> Image<'a> {
    /// Opens metadata: `first_data_block` blocks, no more, no less.
    ///
    /// # Errors
    /// It is not EROFS, or not of the shape that [`crate::write()`] makes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let superblock = Superblock::at(bytes, SUPERBLOCK_OFFSET as u64).ok_or(ReadError::NotErofs("too short"))?;
        if superblock.magic != MAGIC {
            return Err(ReadError::NotErofs("magic"));
        }
        if superblock.blkszbits != BLOCK_BITS || superblock.dirblkbits != 0 {
            return Err(ReadError::Unsupported("block size other than 4096"));
        }
        if !known_features(&superblock) || superblock.meta_blkaddr != 0 {
            return Err(ReadError::Unsupported("features"));
        }
        if superblock.extra_devices != 1 || superblock.devt_slotoff != DEVICE_SLOT_NUMBER {
            return Err(ReadError::Unsupported("no device slot behind the superblock"));
        }
        let slot = DeviceSlot::at(bytes, DEVICE_SLOT_OFFSET as u64).ok_or(ReadError::NotErofs("too short"))?;
        if bytes.len() as u64 != u64::from(slot.mapped_blkaddr) * BLOCK_U64 || bytes.is_empty() {
            return Err(ReadError::Corrupt("the metadata's length is not that of the device slot"));
        }
        Ok(Image { bytes, superblock, slot })
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The device slot.
    pub fn slot(&self) -> &DeviceSlot {
        &self.slot
    }

    /// Blocks of the metadata: the block address of the data space.
    pub fn first_data_block(&self) -> u64 {
        u64::from(self.slot.mapped_blkaddr)
    }

    /// Blocks of the data space.
    pub fn data_blocks(&self) -> u64 {
        u64::from(self.slot.blocks)
    }

    /// The metadata.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`Image::inode`].
    pub fn root(&self) -> Result<Inode, ReadError> {
        self.inode(u64::from(self.superblock.root_nid))
    }

    /// The inode at an address.
    ///
    /// # Errors
    /// There is none, or one of a shape that we do not write.
    pub fn inode(&self, nid: u64) -> Result<Inode, ReadError> {
        Inode::decode(nid, &self.disk_inode(nid)?)
    }

    pub(crate) fn disk_inode(&self, nid: u64) -> Result<ExtendedInode, ReadError> {
        let offset = nid.checked_mul(INODE_SLOT);
        let inode = offset.and_then(|offset| ExtendedInode::at(self.bytes, offset));
        inode.ok_or(ReadError::Corrupt("inode outside of the metadata"))
    }

    /// `len` bytes of the metadata.
    fn slice(&self, offset: u64, len: u64) -> Result<&'a [u8], ReadError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes.len() as u64);
        let end = end.ok_or(ReadError::Corrupt("address outside of the metadata"))?;
        Ok(&self.bytes[offset as usize..end as usize])
    }

    /// Block `index` of contents that lie in the metadata; the last is cut at their end.
    fn metadata_block(&self, inode: &Inode, index: u64) -> Result<&'a [u8], ReadError> {
        let len = inode.size.saturating_sub(index.saturating_mul(BLOCK_U64)).min(BLOCK_U64);
        match inode.layout {
            FLAT_INLINE if len < BLOCK_U64 => self.slice(inode.tail_offset(), len),
            FLAT_INLINE | FLAT_PLAIN => self.slice((u64::from(inode.value) + index).saturating_mul(BLOCK_U64), len),
            _ => Err(ReadError::Unsupported("layout of a directory or symlink")),
        }
    }

    pub(crate) fn directory_block(&self, directory: &Inode, index: u64) -> Result<Block<'a>, ReadError> {
        Block::parse(self.metadata_block(directory, index)?)
    }

    /// Where a name leads to.
    ///
    /// # Errors
    /// Not a directory, or a broken one.
    pub fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Option<Entry<'a>>, ReadError> {
        directory.expect(FileType::Directory, "directory")?;
        let (mut low, mut high) = (0, directory.size.div_ceil(BLOCK_U64));
        // The block to look in is the last one whose first name is not greater.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.directory_block(directory, middle)?.get(0)?.1.cmp(name) {
                Ordering::Greater => high = middle,
                Ordering::Less | Ordering::Equal => low = middle + 1,
            }
        }
        if low == 0 {
            return Ok(None);
        }
        lookup_in(self.directory_block(directory, low - 1)?, name)
    }

    /// The entries of a directory in byte order, `.` and `..` among them. The iterator ends with the first error.
    ///
    /// # Errors
    /// Not a directory.
    pub fn entries(&self, directory: &Inode) -> Result<Entries<'a>, ReadError> {
        directory.expect(FileType::Directory, "directory")?;
        let blocks = directory.size.div_ceil(BLOCK_U64);
        Ok(Entries { image: *self, directory: *directory, blocks: 0..blocks, block: None })
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// Not a symlink, or a broken one.
    pub fn readlink(&self, inode: &Inode) -> Result<&'a [u8], ReadError> {
        inode.expect(FileType::Symlink, "symlink")?;
        if inode.size >= BLOCK_U64 {
            return Err(ReadError::Corrupt("symlink longer than 4095 bytes"));
        }
        self.metadata_block(inode, 0)
    }

    /// The extended attributes: full names and values.
    ///
    /// # Errors
    /// Broken ones.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs<'a>, ReadError> {
        let full = |raw: Result<RawXattr<'a>, _>| {
            let raw = raw?;
            let name = xattr::join(raw.index, raw.rest);
            Ok((name.ok_or(ReadError::Unsupported("prefix of an xattr name"))?, raw.value))
        };
        self.raw_xattrs(inode)?.map(full).collect()
    }

    /// One extended attribute, by its full name.
    ///
    /// # Errors
    /// Broken ones.
    pub fn xattr(&self, inode: &Inode, name: &[u8]) -> Result<Option<&'a [u8]>, ReadError> {
        let Ok((index, rest)) = xattr::split(name) else { return Ok(None) };
        for raw in self.raw_xattrs(inode)? {
            let raw = raw?;
            if (raw.index, raw.rest) == (index, rest) {
                return Ok(Some(raw.value));
            }
        }
        Ok(None)
    }

    /// The xattrs as they lie there, shared ones first. The iterator ends with the first error.
    pub(crate) fn raw_xattrs(
        &self,
        inode: &Inode,
    ) -> Result<impl Iterator<Item = Result<RawXattr<'a>, ReadError>> + use<'a>, ReadError> {
        let image = *self;
        let area = (inode.body_offset(), inode.tail_offset());
        let (mut ids, mut inline) = (&[][..], area.1..area.1);
        if inode.xattr_icount > 0 {
            let header =
                XattrHeader::at(self.bytes, area.0).ok_or(ReadError::Corrupt("xattrs outside of the metadata"))?;
            let first_id = area.0 + XattrHeader::SIZE as u64;
            let first_inline = first_id + u64::from(header.h_shared_count) * xattr::ALIGN as u64;
            if first_inline > area.1 {
                return Err(ReadError::Corrupt("more shared xattrs than there is room for"));
            }
            (ids, inline) = (self.slice(first_id, first_inline - first_id)?, first_inline..area.1);
        }
        let base = u64::from(self.superblock.xattr_blkaddr) * BLOCK_U64;
        Ok(std::iter::from_fn(move || {
            if let Some((id, rest)) = ids.split_first_chunk() {
                ids = rest;
                let offset = base + u64::from(u32::from_le_bytes(*id)) * xattr::ALIGN as u64;
                return Some(image.raw_xattr(offset, image.bytes.len() as u64, true));
            }
            if inline.is_empty() {
                return None;
            }
            let raw = image.raw_xattr(inline.start, inline.end, false);
            inline.start = raw.as_ref().map_or(inline.end, RawXattr::end);
            Some(raw)
        }))
    }

    fn raw_xattr(&self, offset: u64, end: u64, shared: bool) -> Result<RawXattr<'a>, ReadError> {
        let entry = XattrEntry::at(self.bytes, offset).ok_or(ReadError::Corrupt("xattr outside of the metadata"))?;
        let (name_len, value_len) = (usize::from(entry.e_name_len), usize::from(entry.e_value_size));
        let len = (name_len + value_len).next_multiple_of(xattr::ALIGN) as u64;
        let start = offset + XattrEntry::SIZE as u64;
        if start + len > end {
            return Err(ReadError::Corrupt("xattr longer than there is room for"));
        }
        let body = self.slice(start, len)?;
        let (rest, behind) = body.split_at(name_len);
        let (value, padding) = behind.split_at(value_len);
        Ok(RawXattr { index: entry.e_name_index, rest, value, padding, offset, shared })
    }

    /// The contents of a regular file; blocks count from the start of the data space.
    ///
    /// # Errors
    /// Not a regular file, or a broken one.
    pub fn content(&self, inode: &Inode) -> Result<Content, ReadError> {
        inode.expect(FileType::File, "regular file")?;
        let size = inode.size;
        if inode.layout == FLAT_PLAIN {
            let start = if size == 0 { 0 } else { self.data_block(inode.value)? };
            return Ok(Content::Plain { size, start });
        }
        let start = |place: &[u8; 4]| match u32::from_le_bytes(*place) {
            NULL_ADDRESS => Ok(None),
            address => self.data_block(address).map(Some),
        };
        let (places, _) = self.chunk_map(inode)?.as_chunks();
        let chunks = places.iter().map(start).collect::<Result<_, _>>()?;
        Ok(Content::Sparse { size, chunk_bits: inode.chunk_bits()?, chunks })
    }

    /// What lies at byte `offset` of a regular file, and how far it goes; nothing at and past the end of the file.
    ///
    /// # Errors
    /// Not a regular file, or a broken one.
    pub fn extent(&self, inode: &Inode, offset: u64) -> Result<Option<Extent>, ReadError> {
        inode.expect(FileType::File, "regular file")?;
        let Some(left) = inode.size.checked_sub(offset).filter(|left| *left > 0) else { return Ok(None) };
        if inode.layout == FLAT_PLAIN {
            let data = self.data_block(inode.value)? * BLOCK_U64 + offset;
            return Ok(Some(Extent { data: Some(data), len: left }));
        }
        let chunk = BLOCK_U64 << inode.chunk_bits()?;
        let place = self.chunk_map(inode)?.as_chunks().0.get((offset / chunk) as usize);
        let address = place.map(|place| u32::from_le_bytes(*place)).ok_or(ReadError::Corrupt("chunk map"))?;
        let data = match address {
            NULL_ADDRESS => None,
            address => Some(self.data_block(address)? * BLOCK_U64 + offset % chunk),
        };
        Ok(Some(Extent { data, len: left.min(chunk - offset % chunk) }))
    }

    /// The bytes of a file's chunk map.
    fn chunk_map(&self, inode: &Inode) -> Result<&'a [u8], ReadError> {
        let len = chunk_count(inode.size, inode.chunk_bits()?).checked_mul(4);
        self.slice(inode.tail_offset(), len.ok_or(ReadError::Corrupt("chunk map"))?)
    }

    fn data_block(&self, address: u32) -> Result<u64, ReadError> {
        u64::from(address)
            .checked_sub(self.first_data_block())
            .ok_or(ReadError::Corrupt("contents inside the metadata"))
    }

    /// What an inode is, with all that belongs to it.
    ///
    /// # Errors
    /// Broken contents or target.
    pub fn kind(&self, inode: &Inode) -> Result<Kind, ReadError> {
        let (major, minor) = inode.device();
        Ok(match inode.file_type {
            FileType::Directory => Kind::Directory,
            FileType::File => Kind::File(self.content(inode)?),
            FileType::Symlink => Kind::Symlink(self.readlink(inode)?.to_vec()),
            FileType::Char => Kind::Char(major, minor),
            FileType::Block => Kind::Block(major, minor),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
        })
    }

    /// Where an inode with its xattrs and its tail or chunk map lies, and where its blocks of metadata, in bytes.
    pub(crate) fn extents(&self, inode: &Inode) -> Result<(std::ops::Range<u64>, std::ops::Range<u64>), ReadError> {
        let start = inode.nid * INODE_SLOT;
        let in_metadata = matches!(inode.file_type, FileType::Directory | FileType::Symlink);
        let (tail, blocks) = match inode.layout {
            CHUNK_BASED => (self.chunk_map(inode)?.len() as u64, 0),
            FLAT_INLINE => (inode.size % BLOCK_U64, inode.size / BLOCK_U64),
            _ if in_metadata => (0, inode.size.div_ceil(BLOCK_U64)),
            _ => (0, 0),
        };
        let first = u64::from(inode.value) * BLOCK_U64;
        let blocks = if blocks == 0 { 0..0 } else { first..first.saturating_add(blocks.saturating_mul(BLOCK_U64)) };
        Ok((start..inode.tail_offset() + tail, blocks))
    }
}

fn lookup_in<'a>(block: Block<'a>, name: &[u8]) -> Result<Option<Entry<'a>>, ReadError> {
    let (mut low, mut high) = (0, block.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let entry = block.get(middle)?;
        match entry.1.cmp(name) {
            Ordering::Equal => return to_entry(entry).map(Some),
            Ordering::Greater => high = middle,
            Ordering::Less => low = middle + 1,
        }
    }
    Ok(None)
}

fn to_entry<'a>((dirent, name): (crate::format::Dirent, &'a [u8])) -> Result<Entry<'a>, ReadError> {
    let file_type = FileType::from_dirent(dirent.file_type).ok_or(ReadError::Corrupt("file type of an entry"))?;
    Ok(Entry { name, nid: dirent.nid, file_type })
}

impl RawXattr<'_> {
    /// Byte offset of what lies behind it.
    pub(crate) fn end(&self) -> u64 {
        let len = XattrEntry::SIZE + self.rest.len() + self.value.len() + self.padding.len();
        self.offset + len as u64
    }
}

/// See [`Image::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    image: Image<'a>,
    directory: Inode,
    blocks: std::ops::Range<u64>,
    block: Option<(Block<'a>, usize)>,
}

impl<'a> Entries<'a> {
    fn step(&mut self) -> Result<Option<Entry<'a>>, ReadError> {
        if self.block.is_none_or(|(block, next)| next >= block.len()) {
            let Some(index) = self.blocks.next() else { return Ok(None) };
            self.block = Some((self.image.directory_block(&self.directory, index)?, 0));
        }
        let Some((block, next)) = &mut self.block else { return Ok(None) };
        *next += 1;
        to_entry(block.get(*next - 1)?).map(Some)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            (self.blocks, self.block) = (0..0, None);
        }
        step.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::BLOCK;

    #[test]
    fn what_is_not_erofs_is_an_error() {
        assert_eq!(Image::new(&[]).unwrap_err(), ReadError::NotErofs("too short"));
        assert_eq!(Image::new(&[0; BLOCK]).unwrap_err(), ReadError::NotErofs("magic"));
    }
}
