//! The superblock as a whole: its checksum, and the step from the stored form to the form that is mounted.

use crate::format::{DEVICE_SLOT_OFFSET, DeviceSlot, INCOMPAT_DEVICE_TABLE, SUPERBLOCK_OFFSET, Superblock};
use crate::read::Image;
use crate::{BLOCK, ReadError};

/// The superblock's checksum as it should be: CRC-32C without the final inversion, of all of block 0 from the superblock
/// on, with the checksum itself as zero.
///
/// # Panics
/// Of less than a block.
pub fn checksum(metadata: &[u8]) -> u32 {
    let block = &metadata[..BLOCK];
    let crc = crc32c::crc32c(&block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + 4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    !crc32c::crc32c_append(crc, &block[SUPERBLOCK_OFFSET + 8..])
}

/// Puts a superblock in its place, with the right checksum.
pub(crate) fn put_superblock(metadata: &mut [u8], superblock: &Superblock) {
    metadata[SUPERBLOCK_OFFSET..][..Superblock::SIZE].copy_from_slice(&superblock.encode());
    let checksum = checksum(metadata);
    metadata[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Puts the device slot in its place; the checksum must be made anew.
pub(crate) fn put_slot(metadata: &mut [u8], slot: &DeviceSlot) {
    metadata[DEVICE_SLOT_OFFSET..][..DeviceSlot::SIZE].copy_from_slice(&slot.encode());
}

/// Turns metadata in the stored form into the form that is mounted with `device=`: the DEVICE_TABLE bit is set, `blocks`
/// is that of the metadata alone (else statfs counts the data twice), and the checksum is made anew. All else stays
/// as it is, so metadata that was checked before is still what was checked. Doing it twice is doing it once.
///
/// # Errors
/// Not the metadata of an image of ours; the bytes are unchanged then.
pub fn attach_device(metadata: &mut [u8]) -> Result<(), ReadError> {
    let image = Image::new(metadata)?;
    let mut superblock = *image.superblock();
    superblock.feature_incompat |= INCOMPAT_DEVICE_TABLE;
    superblock.blocks = image.slot().mapped_blkaddr;
    put_superblock(metadata, &superblock);
    Ok(())
}
