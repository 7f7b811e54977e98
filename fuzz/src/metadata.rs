//! EROFS metadata: accepted or refused, and read either way.

#[path = "../../erofs/tests/ask/mod.rs"]
mod ask;

use ask::ask_everything;
use erofs::format::{DEVICE_SLOT_OFFSET, MAGIC, SUPERBLOCK_OFFSET};
use erofs::{BLOCK, Expect, Image, check, read_tree};

/// Enough for every structure, and small enough to be fast.
const BLOCKS_MAX: usize = 32;

/// Looks at metadata whose magic, lengths and checksum were made right.
pub fn metadata(data: &[u8]) {
    let bytes = repair(data);
    let Ok(image) = Image::new(&bytes) else { return };
    ask_everything(&image);
    let first_data_block = image.first_data_block();
    let expect = Expect { image_blocks: first_data_block + image.data_blocks(), first_data_block };
    let Ok(checked) = check(&bytes, &expect) else { return };
    let tree = read_tree(checked.image()).expect("what is accepted is read");
    let Ok(again) = erofs::write(&tree, image.data_blocks()) else { return };
    let first_data_block = again.first_data_block();
    let expect = Expect { image_blocks: first_data_block + image.data_blocks(), first_data_block };
    let checked = check(again.bytes(), &expect).expect("what was written is accepted");
    assert!(read_tree(checked.image()).expect("and read") == tree, "as the tree that was written");
    let mut attached = bytes.clone();
    erofs::attach_device(&mut attached).expect("what is accepted can be attached");
    let attached = Image::new(&attached).expect("and read then");
    assert!(read_tree(&attached).expect("as before") == tree);
}

fn repair(data: &[u8]) -> Vec<u8> {
    let blocks = data.len().div_ceil(BLOCK).clamp(1, BLOCKS_MAX);
    let mut bytes = data.to_vec();
    bytes.resize(blocks * BLOCK, 0);
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(SUPERBLOCK_OFFSET, MAGIC);
    put(DEVICE_SLOT_OFFSET + 68, blocks as u32);
    let data_blocks = Image::new(&bytes).map_or(0, |image| image.data_blocks());
    let all = u32::try_from(blocks as u64 + data_blocks).unwrap_or(u32::MAX);
    bytes[SUPERBLOCK_OFFSET + 36..][..4].copy_from_slice(&all.to_le_bytes());
    let checksum = erofs::checksum(&bytes).to_le_bytes();
    bytes[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum);
    bytes
}
