//! Writes what was planned. All decisions have been made by `plan`; here are only bytes.

use crate::content::Content;
use crate::device::{put_slot, put_superblock};
use crate::directory;
use crate::format::{
    BLOCK_BITS, CHUNK_BASED, COMPAT_CHECKSUM, COMPAT_MTIME, DEVICE_SLOT_NUMBER, DeviceSlot, ExtendedInode,
    FORMAT_EXTENDED, INCOMPAT_CHUNKED_FILE, MAGIC, NULL_ADDRESS, SUPERBLOCK_OFFSET, Superblock, XattrHeader,
    encode_device,
};
use crate::plan::{Plan, Planned, Shape, WriteError, Xattrs, entries, icount};
use crate::{BLOCK, Kind, Tree, xattr};

/// The metadata of an image, in the stored form: the DEVICE_TABLE bit is clear, the device slot is filled in, the UUID is
/// zero until [`Metadata::set_uuid`]. Followed by the data blocks it is a complete, standard EROFS image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    bytes: Vec<u8>,
}

impl Metadata {
    /// Sets the UUID, and the checksum with it.
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        if let Some(superblock) = Superblock::at(&self.bytes, SUPERBLOCK_OFFSET as u64) {
            put_superblock(&mut self.bytes, &Superblock { uuid, ..superblock });
        }
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

/// Writes the metadata of an image of a tree whose files lie in a data space of `data_blocks` blocks.
///
/// # Errors
/// What EROFS cannot hold, by path; or the image would be larger than 2^32 − 1 blocks.
pub fn write(tree: &Tree, data_blocks: u64) -> Result<Metadata, WriteError> {
    let plan = Plan::new(tree, data_blocks)?;
    let mut bytes = vec![0; plan.first_data_block as usize * BLOCK];
    for (number, inode) in plan.inodes.iter().enumerate() {
        put_inode(&mut bytes, tree, &plan, inode, number as u32 + 1);
    }
    let mut rest = &mut bytes[plan.xattr_block as usize * BLOCK..];
    for shared in &plan.shared {
        rest = xattr::put(rest, shared.index, shared.rest, shared.value);
    }
    // The plan has made sure that the sum of both fits into 32 bits.
    let (blocks, mapped_blkaddr) = (data_blocks as u32, plan.first_data_block as u32);
    put_slot(&mut bytes, &DeviceSlot { tag: [0; 64], blocks, mapped_blkaddr, reserved: [0; 56] });
    put_superblock(&mut bytes, &superblock(tree, &plan, data_blocks));
    Ok(Metadata { bytes })
}

fn superblock(tree: &Tree, plan: &Plan<'_>, data_blocks: u64) -> Superblock {
    let chunked = plan.inodes.iter().any(|inode| inode.shape(tree).layout == CHUNK_BASED);
    Superblock {
        magic: MAGIC,
        checksum: 0,
        feature_compat: COMPAT_CHECKSUM | COMPAT_MTIME,
        blkszbits: BLOCK_BITS,
        sb_extslots: 0,
        root_nid: plan.inodes[0].nid() as u16,
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

fn put_inode(bytes: &mut [u8], tree: &Tree, plan: &Plan<'_>, inode: &Planned<'_>, number: u32) {
    let node = tree.node(inode.id);
    let attributes = &node.attributes;
    let Shape { layout, tail, .. } = inode.shape(tree);
    let disk = ExtendedInode {
        i_format: FORMAT_EXTENDED | layout << 1,
        i_xattr_icount: icount(u64::from(inode.xattr_size)).unwrap_or_default(),
        i_mode: node.kind.file_type().mode_bits() | attributes.mode,
        i_reserved: 0,
        i_size: inode.size,
        i_u: union_field(&node.kind, plan, inode),
        i_ino: number,
        i_uid: attributes.uid,
        i_gid: attributes.gid,
        i_mtime: attributes.mtime as u64,
        i_mtime_nsec: attributes.mtime_nsec,
        i_nlink: inode.nlink,
        i_reserved2: [0; 16],
    };
    let (head, behind) = bytes[inode.offset as usize..].split_at_mut(ExtendedInode::SIZE);
    head.copy_from_slice(&disk.encode());
    let (xattrs, behind) = behind.split_at_mut(inode.xattr_size as usize);
    if let Some(planned) = &inode.xattrs {
        put_xattrs(xattrs, planned);
    }
    match &node.kind {
        Kind::Directory => {
            let on_disk =
                |(name, id)| (name, (plan.inode(id).map_or(0, Planned::nid), tree.node(id).kind.file_type().dirent()));
            let entries: Vec<_> = entries(tree, inode).into_iter().map(on_disk).collect();
            put_contents(bytes, inode, tail, &directory::pack(&entries));
        }
        Kind::Symlink(target) => put_contents(bytes, inode, tail, target),
        Kind::File(Content::Sparse { chunks, .. }) => put_chunk_map(behind, plan, chunks),
        _ => {}
    }
}

/// `i_u`.
fn union_field(kind: &Kind, plan: &Plan<'_>, inode: &Planned<'_>) -> u32 {
    match kind {
        Kind::File(content) if content.size() == 0 => 0,
        Kind::File(Content::Plain { start, .. }) => (plan.first_data_block + start) as u32,
        Kind::File(Content::Sparse { chunk_bits, .. }) => u32::from(*chunk_bits),
        Kind::Char(major, minor) | Kind::Block(major, minor) => encode_device(*major, *minor).unwrap_or_default(),
        Kind::Directory | Kind::Symlink(_) => inode.block as u32,
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

/// Full blocks to their place, the tail behind the inode.
fn put_contents(bytes: &mut [u8], inode: &Planned<'_>, tail: u64, contents: &[u8]) {
    let (full, tail) = contents.split_at(contents.len() - tail as usize);
    bytes[inode.block as usize * BLOCK..][..full.len()].copy_from_slice(full);
    let behind = inode.offset as usize + ExtendedInode::SIZE + inode.xattr_size as usize;
    bytes[behind..][..tail.len()].copy_from_slice(tail);
}

fn put_chunk_map(out: &mut [u8], plan: &Plan<'_>, chunks: &[Option<u64>]) {
    for (place, chunk) in out.chunks_exact_mut(4).zip(chunks) {
        let address = chunk.map_or(NULL_ADDRESS, |start| (plan.first_data_block + start) as u32);
        place.copy_from_slice(&address.to_le_bytes());
    }
}
