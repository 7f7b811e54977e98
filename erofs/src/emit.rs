//! Writes what was planned. All decisions have been made by `plan`; here are only bytes.

use crate::content::Content;
use crate::device::{put_slot, put_superblock};
use crate::directory;
use crate::format::{
    BLOCK_BITS, CHUNK_BASED, COMPAT_CHECKSUM, COMPAT_MTIME, DEVICE_SLOT_NUMBER, DeviceSlot, ExtendedInode,
    FORMAT_EXTENDED, INCOMPAT_CHUNKED_FILE, MAGIC, NULL_ADDRESS, SUPERBLOCK_OFFSET, Superblock, XattrHeader,
    encode_device,
};
use crate::plan::{Plan, Planned, WriteError, Xattrs, icount};
use crate::{BLOCK, BLOCK_U64, Kind, Tree, xattr};
use std::io;

/// The metadata of an image, in the stored form: the DEVICE_TABLE bit is clear, the device slot is filled in, the UUID is
/// zero until [`Metadata::set_uuid`]. Followed by the data blocks it is a complete, standard EROFS image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    bytes: Vec<u8>,
}

impl Metadata {
    /// Sets the UUID, and the checksum with it.
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        set_uuid(&mut self.bytes, uuid);
    }

    /// Blocks of the metadata, which is the block address of the data space.
    pub fn first_data_block(&self) -> u64 {
        (self.bytes.len() / BLOCK) as u64
    }

    /// The bytes: a whole number of blocks.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes: a whole number of blocks.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Sets the UUID, and the checksum with it, in metadata of which the first block is given at least.
pub fn set_uuid(metadata: &mut [u8], uuid: [u8; 16]) {
    if let Some(superblock) = Superblock::at(metadata, SUPERBLOCK_OFFSET as u64) {
        put_superblock(metadata, &Superblock { uuid, ..superblock });
    }
}

/// Writes the metadata of an image of a tree whose files lie in a data space of `data_blocks` blocks.
///
/// # Errors
/// What EROFS cannot hold, by path; or the image would be larger than 2^32 − 1 blocks.
pub fn write(tree: &Tree, data_blocks: u64) -> Result<Metadata, WriteError> {
    let layout = Layout::new(tree, data_blocks)?;
    let mut bytes = vec![0; layout.bytes() as usize];
    // Cannot fail: a place in memory takes what it is given.
    let _ = layout.emit(&mut |at, part| {
        bytes[at as usize..][..part.len()].copy_from_slice(part);
        Ok(())
    });
    Ok(Metadata { bytes })
}

/// The metadata of an image, of which every byte has its place, and none is there yet: for those who have no room for all
/// of it in memory.
#[derive(Debug)]
pub struct Layout<'a> {
    plan: Plan<'a>,
    data_blocks: u64,
}

impl<'a> Layout<'a> {
    /// Of a tree whose files lie in a data space of `data_blocks` blocks.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn new(tree: &'a Tree, data_blocks: u64) -> Result<Self, WriteError> {
        Ok(Self { plan: Plan::new(tree, data_blocks)?, data_blocks })
    }

    /// Blocks of the metadata, which is the block address of the data space.
    pub fn first_data_block(&self) -> u64 {
        self.plan.first_data_block
    }

    /// Bytes of the metadata.
    pub fn bytes(&self) -> u64 {
        self.plan.first_data_block * BLOCK_U64
    }

    /// Hands the metadata to `put`, piece by piece, each with the byte that it begins at: mostly one behind the other. What
    /// is in no piece is zero.
    ///
    /// # Errors
    /// What `put` says.
    pub fn emit(&self, put: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let plan = &self.plan;
        let mut head = vec![0; BLOCK];
        // The plan has made sure that the sum of both fits into 32 bits.
        let (blocks, mapped_blkaddr) = (self.data_blocks as u32, plan.first_data_block as u32);
        put_slot(&mut head, &DeviceSlot { tag: [0; 64], blocks, mapped_blkaddr, reserved: [0; 56] });
        let mut buffer = Vec::new();
        for (number, inode) in plan.inodes.iter().enumerate() {
            buffer.clear();
            put_inode(&mut buffer, plan, inode, number as u32 + 1, put)?;
            // The superblock's checksum is one of all of the first block.
            match inode.offset() < BLOCK_U64 {
                true => head[inode.offset() as usize..][..buffer.len()].copy_from_slice(&buffer),
                false => put(inode.offset(), &buffer)?,
            }
        }
        let mut at = plan.xattr_block * BLOCK_U64;
        for shared in &plan.shared {
            let mut entry = vec![0; xattr::entry_size(shared.rest, shared.value)];
            xattr::put(&mut entry, shared.index, shared.rest, shared.value);
            put(at, &entry)?;
            at += entry.len() as u64;
        }
        put_superblock(&mut head, &superblock(plan, self.data_blocks));
        put(0, &head)
    }
}

fn superblock(plan: &Plan<'_>, data_blocks: u64) -> Superblock {
    let chunked = plan.inodes.iter().any(|inode| plan.shape(inode).layout == CHUNK_BASED);
    Superblock {
        magic: MAGIC,
        checksum: 0,
        feature_compat: COMPAT_CHECKSUM | COMPAT_MTIME,
        blkszbits: BLOCK_BITS,
        sb_extslots: 0,
        root_nid: plan.inodes[0].nid as u16,
        inos: plan.inodes.len() as u64,
        build_time: 0,
        build_time_nsec: 0,
        blocks: (plan.first_data_block + data_blocks) as u32,
        meta_blkaddr: 0,
        xattr_blkaddr: plan.xattr_block as u32,
        uuid: [0; 16],
        volume_name: [0; 16],
        feature_incompat: if chunked { INCOMPAT_CHUNKED_FILE } else { 0 },
        available_compr_algs: 0,
        extra_devices: 1,
        devt_slotoff: DEVICE_SLOT_NUMBER,
        dirblkbits: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: 0,
        packed_nid: 0,
        xattr_filter_reserved: 0,
        reserved: [0; 23],
    }
}

/// Puts an inode, with what lies behind it, into `out`, which is empty; what lies in blocks of its own goes to `put`.
fn put_inode(
    out: &mut Vec<u8>,
    plan: &Plan<'_>,
    inode: &Planned,
    number: u32,
    put: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (tree, xattrs, shape) = (plan.tree, plan.xattrs(inode), plan.shape(inode));
    let (attributes, kind) = (tree.attributes(inode.id), tree.node(inode.id).kind);
    let xattr_size = xattrs.map_or(0, |xattrs| xattrs.size);
    let disk = ExtendedInode {
        i_format: FORMAT_EXTENDED | shape.layout << 1,
        i_xattr_icount: icount(u64::from(xattr_size)).unwrap_or_default(),
        i_mode: kind.file_type().mode_bits() | attributes.mode,
        i_reserved: 0,
        i_size: plan.size(inode),
        i_u: union_field(&kind, plan, inode),
        i_ino: number,
        i_uid: attributes.uid,
        i_gid: attributes.gid,
        i_mtime: attributes.mtime as u64,
        i_mtime_nsec: attributes.mtime_nsec,
        i_nlink: inode.nlink,
        i_reserved2: [0; 16],
    };
    out.extend_from_slice(&disk.encode());
    if let Some(xattrs) = xattrs {
        out.resize(ExtendedInode::SIZE + xattr_size as usize, 0);
        put_xattrs(&mut out[ExtendedInode::SIZE..], xattrs);
    }
    let contents = match kind {
        Kind::Directory => {
            let on_disk = |(name, id)| (name, (plan.nid(id), tree.file_type(id).dirent()));
            directory::pack(&plan.entries(inode).into_iter().map(on_disk).collect::<Vec<_>>())
        }
        Kind::Symlink(target) => target,
        Kind::File(Content::Sparse { chunks, .. }) => {
            put_chunk_map(out, plan, &chunks);
            return Ok(());
        }
        _ => return Ok(()),
    };
    // Full blocks to their place, the tail behind the inode.
    let (full, tail) = contents.split_at(contents.len() - shape.tail as usize);
    out.extend_from_slice(tail);
    match plan.own(inode).filter(|_| !full.is_empty()) {
        Some(own) => put(own.block * BLOCK_U64, full),
        None => Ok(()),
    }
}

/// `i_u`.
fn union_field(kind: &Kind, plan: &Plan<'_>, inode: &Planned) -> u32 {
    match kind {
        Kind::File(content) if content.size() == 0 => 0,
        Kind::File(Content::Plain { start, .. }) => (plan.first_data_block + start) as u32,
        Kind::File(Content::Sparse { chunk_bits, .. }) => u32::from(*chunk_bits),
        Kind::Char(major, minor) | Kind::Block(major, minor) => encode_device(*major, *minor).unwrap_or_default(),
        Kind::Directory | Kind::Symlink(_) => plan.own(inode).map_or(0, |own| own.block as u32),
        Kind::Fifo | Kind::Socket => 0,
    }
}

fn put_xattrs(out: &mut [u8], inode: &Xattrs<'_>) {
    let header = XattrHeader { h_name_filter: 0, h_shared_count: inode.shared.len() as u8, h_reserved: [0; 7] };
    let (head, behind) = out.split_at_mut(XattrHeader::SIZE);
    head.copy_from_slice(&header.encode());
    let (ids, mut behind) = behind.split_at_mut(inode.shared.len() * xattr::ALIGN);
    for (place, id) in ids.chunks_exact_mut(xattr::ALIGN).zip(&inode.shared) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    for inline in &inode.inline {
        behind = xattr::put(behind, inline.index, inline.rest, inline.value);
    }
}

fn put_chunk_map(out: &mut Vec<u8>, plan: &Plan<'_>, chunks: &[Option<u64>]) {
    for chunk in chunks {
        let address = chunk.map_or(NULL_ADDRESS, |start| (plan.first_data_block + start) as u32);
        out.extend_from_slice(&address.to_le_bytes());
    }
}
