//! Names for bytes of the data space.
use crate::sample::everything;
use erofs::{BLOCK_U64, Content, Files, Image, Kind, attach_device};
use std::collections::HashMap;

/// Path of the file that has a block.
fn path_of(files: &Files, block: u64) -> Option<Vec<u8>> {
    let mut found = files.at(block * BLOCK_U64..(block + 1) * BLOCK_U64);
    let (path, bytes) = found.next()?;
    assert!(bytes == BLOCK_U64 && found.next().is_none());
    Some(path.to_vec())
}

#[test]
fn every_block_has_the_name_of_the_first_file_that_has_it() {
    let sample = everything();
    let mut expected: HashMap<u64, Vec<u8>> = HashMap::new();
    for visit in sample.tree.walk() {
        let Kind::File(content) = &sample.tree.node(visit.node).kind else { continue };
        let (path, blocks) = ([&b"/"[..], &visit.path].concat(), content.size().div_ceil(BLOCK_U64));
        for at in 0..blocks {
            let block = match content {
                Content::Plain { start, .. } => Some(start + at),
                Content::Sparse { chunk_bits, chunks, .. } => {
                    chunks[(at >> chunk_bits) as usize].map(|start| start + at % (1 << chunk_bits))
                }
            };
            if let Some(block) = block {
                expected.entry(block).or_insert_with(|| path.clone());
            }
        }
    }
    let mut metadata = sample.write().into_bytes();
    attach_device(&mut metadata).unwrap();
    let files = Files::of(&Image::new(&metadata).unwrap()).unwrap();
    for block in 0..sample.data_blocks() {
        assert_eq!(path_of(&files, block), expected.get(&block).cloned(), "block {block}");
    }
    assert_eq!(files.at(0..u64::MAX).map(|(_, bytes)| bytes).sum::<u64>(), expected.len() as u64 * BLOCK_U64);
    assert!(files.at(sample.data_blocks() * BLOCK_U64..u64::MAX).next().is_none());
}
