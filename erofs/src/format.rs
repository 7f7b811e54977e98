//! The on-disk structures: a specification of the subset of EROFS that Lamina writes.
//!
//! Source of every field's meaning: `fs/erofs/erofs_fs.h` of Linux 5.16 to 6.18, whose names are kept. All integers are
//! little endian; offsets in the comments are bytes from the start of the structure. Nothing here decides anything: what
//! values are allowed is said by the writer ([`crate::write()`]) and enforced by [`crate::check`].
//!
//! Where things lie in the metadata:
//!
//! ```text
//! block 0   0..1024     zero (boot sector)
//!           1024..1152  Superblock
//!           1152..1280  DeviceSlot (devt_slotoff 9, in units of 128 bytes)
//!           1280..4096  inodes
//! block 1.. inodes, each followed by its xattrs, then its inline tail or its chunk map
//!           shared xattrs (from xattr_blkaddr on, if there are any)
//!           full blocks of directories, targets of symlinks too long to lie inline
//! ```
//!
//! An inode's number (nid) is its byte offset / 32 (`meta_blkaddr` is 0).

/// A fixed-width little-endian value inside a structure.
trait Field: Sized {
    const SIZE: usize;
    fn put(&self, out: &mut [u8]);
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! integer_field {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const SIZE: usize = size_of::<$int>();
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &[u8]) -> Self {
                let mut raw = [0; Self::SIZE];
                raw.copy_from_slice(bytes);
                Self::from_le_bytes(raw)
            }
        }
    )*};
}
integer_field!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    fn take(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
}

/// Declares a structure whose fields lie one behind the other on disk, with its size asserted.
macro_rules! on_disk {
    ($(#[$doc:meta])* $name:ident, $size:literal: $($(#[$field_doc:meta])* $field:ident: $ty:ty,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        const _: () = assert!($size == 0 $(+ <$ty as Field>::SIZE)*, "fields do not add up to the size on disk");

        impl $name {
            /// Bytes on disk.
            pub const SIZE: usize = $size;

            /// The structure as it lies on disk.
            pub fn encode(&self) -> [u8; $size] {
                let mut out = [0; $size];
                let rest = &mut out[..];
                $(let (head, rest) = rest.split_at_mut(<$ty as Field>::SIZE);
                self.$field.put(head);)*
                debug_assert!(rest.is_empty());
                out
            }

            /// The structure from its bytes. Every bit pattern decodes.
            pub fn decode(bytes: &[u8; $size]) -> Self {
                let rest = &bytes[..];
                $(let (head, rest) = rest.split_at(<$ty as Field>::SIZE);
                let $field = <$ty as Field>::take(head);)*
                debug_assert!(rest.is_empty());
                Self { $($field),* }
            }

            /// The structure at a byte offset of `bytes`, or nothing where it does not fit in.
            pub fn at(bytes: &[u8], offset: u64) -> Option<Self> {
                let offset = usize::try_from(offset).ok()?;
                bytes.get(offset..)?.first_chunk().map(Self::decode)
            }
        }
    };
}

/// Where the superblock lies.
pub const SUPERBLOCK_OFFSET: usize = 1024;
/// Where the device slot lies: right behind the superblock.
pub const DEVICE_SLOT_OFFSET: usize = 1152;
/// Where the first inode lies: right behind the device slot.
pub const FIRST_INODE_OFFSET: usize = 1280;

/// `magic` of the superblock.
pub const MAGIC: u32 = 0xE0F5_E1E2;
/// log2 of the block size.
pub const BLOCK_BITS: u8 = 12;
/// `devt_slotoff`: [`DEVICE_SLOT_OFFSET`] in units of 128 bytes.
pub const DEVICE_SLOT_NUMBER: u16 = 9;

/// `feature_compat`: the superblock's checksum is valid.
pub const COMPAT_CHECKSUM: u32 = 0x1;
/// `feature_compat`: the times of inodes are modification times.
pub const COMPAT_MTIME: u32 = 0x2;
/// `feature_incompat`: there are inodes of layout [`CHUNK_BASED`].
pub const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// `feature_incompat`: there is a device table (kernels without it take the image as flat, slot or no slot).
pub const INCOMPAT_DEVICE_TABLE: u32 = 0x8;

on_disk! {
    /// The superblock, at byte 1024.
    Superblock, 128:
    /// 0: [`MAGIC`].
    magic: u32,
    /// 4: CRC-32C (initial value all ones, no final inversion) of bytes 1024..4096 of block 0, this field taken as zero.
    checksum: u32,
    /// 8: features that a reader may ignore.
    feature_compat: u32,
    /// 12: log2 of the block size: 12.
    blkszbits: u8,
    /// 13: length of the superblock beyond 128 bytes, in units of 16 bytes: 0.
    sb_extslots: u8,
    /// 14: nid of the root directory.
    root_nid: u16,
    /// 16: number of inodes.
    inos: u64,
    /// 24: time base of compact inodes, which we do not write: 0.
    build_time: u64,
    /// 32: nanoseconds of `build_time`: 0.
    build_time_nsec: u32,
    /// 36: blocks of the whole flat image; in the device form, of the metadata alone. Used for statfs.
    blocks: u32,
    /// 40: block that nids are counted from: 0.
    meta_blkaddr: u32,
    /// 44: block that shared xattr ids are counted from; 0 where there are none.
    xattr_blkaddr: u32,
    /// 48: UUID.
    uuid: [u8; 16],
    /// 64: volume name: zero.
    volume_name: [u8; 16],
    /// 80: features that a reader must know.
    feature_incompat: u32,
    /// 84: compression algorithms: 0.
    available_compr_algs: u16,
    /// 86: number of device slots: 1, also where the DEVICE_TABLE bit is clear.
    extra_devices: u16,
    /// 88: where the device slots begin, in units of 128 bytes: 9.
    devt_slotoff: u16,
    /// 90: log2 of directory block size / block size: 0.
    dirblkbits: u8,
    /// 91: number of long xattr name prefixes: 0.
    xattr_prefix_count: u8,
    /// 92: where these begin: 0.
    xattr_prefix_start: u32,
    /// 96: nid of the packed inode: 0.
    packed_nid: u64,
    /// 104: xattr name filter parameter: 0.
    xattr_filter_reserved: u8,
    /// 105: zero; later kernels define fields here, all of them behind feature bits that we leave clear.
    reserved: [u8; 23],
}

on_disk! {
    /// An extra device: a range of block addresses that lies in a file of its own.
    DeviceSlot, 128:
    /// 0: a tag: zero.
    tag: [u8; 64],
    /// 64: blocks of the device.
    blocks: u32,
    /// 68: the block address that the device begins at.
    mapped_blkaddr: u32,
    /// 72: zero; later kernels have the high halves of both numbers here.
    reserved: [u8; 56],
}

/// `i_format`: the inode is extended (64 bytes); always set. Bits 1 to 3 hold the layout.
pub const FORMAT_EXTENDED: u16 = 1;
/// Layout: `i_u` is the block address of contiguous contents.
pub const FLAT_PLAIN: u16 = 0;
/// Layout: like [`FLAT_PLAIN`], but the last, partial block lies right behind the inode and its xattrs.
pub const FLAT_INLINE: u16 = 2;
/// Layout: `i_u` is the chunk format; 4-byte block addresses, one a chunk, lie behind the inode and its xattrs.
pub const CHUNK_BASED: u16 = 4;
/// The chunk format's bits 0 to 4: log2 of chunk size / block size. All others must be clear: block map, 32-bit addresses.
pub const CHUNK_BITS_MASK: u32 = 0x1f;
/// The block address of a chunk that is a hole.
pub const NULL_ADDRESS: u32 = u32::MAX;
/// As an owner or group: nobody. The kernel's INVALID_UID.
pub const NO_ID: u32 = u32::MAX;
/// Inodes are aligned to this, and nids count it.
pub const INODE_SLOT: u64 = 32;

on_disk! {
    /// An extended inode.
    ExtendedInode, 64:
    /// 0: [`FORMAT_EXTENDED`] and the layout shifted left by one.
    i_format: u16,
    /// 2: size of the xattrs behind the inode: 0, or 12 + 4 × (this − 1) bytes.
    i_xattr_icount: u16,
    /// 4: file type and permissions, as in `st_mode`.
    i_mode: u16,
    /// 6: zero.
    i_reserved: u16,
    /// 8: size of the contents in bytes; 0 for devices, fifos and sockets.
    i_size: u64,
    /// 16: by layout and file type: block address, chunk format, or device number (the kernel's `new_encode_dev`).
    i_u: u32,
    /// 20: a running number; kernels show the nid instead.
    i_ino: u32,
    /// 24: owner.
    i_uid: u32,
    /// 28: group.
    i_gid: u32,
    /// 32: modification time, seconds since 1970 as two's complement.
    i_mtime: u64,
    /// 40: its nanoseconds.
    i_mtime_nsec: u32,
    /// 44: number of names, for directories 2 + the number of subdirectories.
    i_nlink: u32,
    /// 48: zero.
    i_reserved2: [u8; 16],
}

on_disk! {
    /// What an inode's xattrs begin with. `h_shared_count` u32 ids of shared xattrs follow, then the inline ones.
    XattrHeader, 12:
    /// 0: name filter, which we do not use: 0.
    h_name_filter: u32,
    /// 4: number of shared xattrs.
    h_shared_count: u8,
    /// 5: zero.
    h_reserved: [u8; 7],
}

on_disk! {
    /// An xattr; its name without the prefix and its value follow, then zeros up to a multiple of 4. A shared xattr's
    /// id is its distance from `xattr_blkaddr` in units of 4 bytes.
    XattrEntry, 4:
    /// 0: length of the name without its prefix.
    e_name_len: u8,
    /// 1: which prefix: 1 `user.`, 2 `system.posix_acl_access`, 3 `system.posix_acl_default`, 4 `trusted.`, 6 `security.`.
    e_name_index: u8,
    /// 2: length of the value.
    e_value_size: u16,
}

on_disk! {
    /// A directory entry. A directory block is an array of these, then the names in the same order, then zeros.
    Dirent, 12:
    /// 0: the inode.
    nid: u64,
    /// 8: where the name begins in the block; that of the first entry gives the number of entries × 12.
    nameoff: u16,
    /// 10: file type: 1 regular, 2 directory, 3 character device, 4 block device, 5 fifo, 6 socket, 7 symlink.
    file_type: u8,
    /// 11: zero.
    reserved: u8,
}

/// The kernel's `new_encode_dev`, or nothing where the number does not fit (12 bits of major, 20 of minor).
pub fn encode_device(major: u32, minor: u32) -> Option<u32> {
    (major < 1 << 12 && minor < 1 << 20).then_some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// The kernel's `new_decode_dev`: major and minor.
pub fn decode_device(dev: u32) -> (u32, u32) {
    ((dev & 0xf_ff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xf_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let bytes: [u8; 128] = std::array::from_fn(|at| at as u8);
        let superblock = Superblock::decode(&bytes);
        assert_eq!(superblock.inos.to_le_bytes()[0], 16);
        assert_eq!(superblock.feature_incompat.to_le_bytes()[0], 80);
        assert_eq!(superblock.packed_nid.to_le_bytes()[0], 96);
        assert_eq!(superblock.encode(), bytes);
        assert_eq!(DeviceSlot::decode(&bytes).mapped_blkaddr.to_le_bytes()[0], 68);
        assert_eq!(DeviceSlot::decode(&bytes).encode(), bytes);
        let inode = ExtendedInode::at(&bytes, 64).unwrap();
        assert_eq!(inode.i_u.to_le_bytes()[0], 64 + 16);
        assert_eq!(inode.i_nlink.to_le_bytes()[0], 64 + 44);
        assert_eq!(inode.encode(), bytes[64..]);
        assert_eq!(ExtendedInode::at(&bytes, 65), None);
    }

    #[test]
    fn device_numbers_round_trip_to_their_limits() {
        for (major, minor) in [(0, 0), (1, 3), (8, 0x1_2345), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(major, minor).unwrap()), (major, minor));
        }
        assert_eq!(encode_device(0x1000, 0), None);
        assert_eq!(encode_device(0, 0x10_0000), None);
    }
}
