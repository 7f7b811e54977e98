//! An inode as it is read: decoded, and of a shape that the rest of the reader can rely on (file type, layout, a size that
//! is no larger than the kernel's). What lies behind it is not looked at here.

use crate::format::{
    CHUNK_BASED, CHUNK_BITS_MASK, ExtendedInode, FLAT_INLINE, FLAT_PLAIN, FORMAT_EXTENDED, INODE_SLOT, XattrHeader,
    decode_device,
};
use crate::xattr;
use crate::{FileType, ReadError};

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its address: byte offset / 32. What kernels show as the inode number.
    pub nid: u64,
    /// Its number: 1 for the root, then counted up.
    pub ino: u32,
    /// File type.
    pub file_type: FileType,
    /// Permissions, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime: i64,
    /// Its nanoseconds.
    pub mtime_nsec: u32,
    /// Bytes of contents, entries or target.
    pub size: u64,
    /// Number of names; of a directory, 2 + the number of subdirectories.
    pub nlink: u32,
    /// How the contents lie: a layout of the format.
    pub(crate) layout: u16,
    /// `i_u`.
    pub(crate) value: u32,
    pub(crate) xattr_icount: u16,
}

impl Inode {
    /// The inode at an address, from its bytes: one of a shape that we write.
    pub(crate) fn decode(nid: u64, disk: &ExtendedInode) -> Result<Self, ReadError> {
        if disk.i_format & FORMAT_EXTENDED == 0 {
            return Err(ReadError::Unsupported("compact inode"));
        }
        let layout = disk.i_format >> 1;
        if !matches!(layout, FLAT_PLAIN | FLAT_INLINE | CHUNK_BASED) {
            return Err(ReadError::Unsupported("inode layout"));
        }
        if disk.i_size > i64::MAX as u64 {
            return Err(ReadError::Corrupt("size of an inode"));
        }
        let file_type = FileType::from_mode(disk.i_mode).ok_or(ReadError::Corrupt("file type of an inode"))?;
        Ok(Inode {
            nid,
            ino: disk.i_ino,
            file_type,
            mode: disk.i_mode & 0o7777,
            uid: disk.i_uid,
            gid: disk.i_gid,
            mtime: disk.i_mtime as i64,
            mtime_nsec: disk.i_mtime_nsec,
            size: disk.i_size,
            nlink: disk.i_nlink,
            layout,
            value: disk.i_u,
            xattr_icount: disk.i_xattr_icount,
        })
    }

    /// The device number of a device: major, minor.
    pub fn device(&self) -> (u32, u32) {
        match self.file_type {
            FileType::Char | FileType::Block => decode_device(self.value),
            _ => (0, 0),
        }
    }

    /// Where its xattrs begin.
    pub(crate) fn body_offset(&self) -> u64 {
        self.nid * INODE_SLOT + ExtendedInode::SIZE as u64
    }

    /// Where its inline tail or chunk map begins. The nid was seen to lie in the metadata, so this is far from overflow.
    pub(crate) fn tail_offset(&self) -> u64 {
        let units = u64::from(self.xattr_icount).checked_sub(1);
        self.body_offset() + units.map_or(0, |units| XattrHeader::SIZE as u64 + units * xattr::ALIGN as u64)
    }

    pub(crate) fn chunk_bits(&self) -> Result<u8, ReadError> {
        if self.layout != CHUNK_BASED || self.value & !CHUNK_BITS_MASK != 0 {
            return Err(ReadError::Unsupported("layout of a regular file"));
        }
        Ok(self.value as u8)
    }

    pub(crate) fn expect(&self, file_type: FileType, name: &'static str) -> Result<(), ReadError> {
        if self.file_type == file_type { Ok(()) } else { Err(ReadError::WrongType(name)) }
    }
}
