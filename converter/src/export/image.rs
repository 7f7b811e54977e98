//! A flat EROFS image, uncompressed: metadata, then data, as the decompressed form of a layer is.
//!
//! Contents lie in path order; files that share the blocks of a layer share them here. The UUID is the first 16 bytes of
//! a BLAKE3 over data and metadata, so that an image depends on what it shows and on nothing else of the stack.

use super::Work;
use super::view::View;
use crate::error::{Error, Result, unwritable};
use crate::stored::Run;
use erofs::{BLOCK_U64, Content, Expect, Tree};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A run of a layer's data and the block of the image's data that it goes to.
struct Copy {
    layer: usize,
    run: Run,
    block: u64,
}

/// Writes the image to an empty file; bytes of it.
pub(super) fn write(view: &View, work: &mut Work<'_>, file: &File) -> Result<u64> {
    let (tree, copies, blocks) = place(view);
    let mut metadata = erofs::write(&tree, blocks).map_err(unwritable)?;
    let first = metadata.first_data_block();
    let mut digest = blake3::Hasher::new();
    for Copy { layer, run, block } in copies {
        let mut at = (first + block) * BLOCK_U64;
        work.read(layer, &run, &mut |bytes| {
            digest.update(bytes);
            put(file, bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
    }
    digest.update(metadata.bytes());
    let mut uuid = [0; 16];
    digest.finalize_xof().fill(&mut uuid);
    metadata.set_uuid(uuid);
    let expect = Expect { image_blocks: first + blocks, first_data_block: first };
    erofs::check(metadata.bytes(), &expect).map_err(|e| Error::failed("the metadata that was just written", e))?;
    let size = (first + blocks) * BLOCK_U64;
    file.set_len(size).map_err(failed)?;
    file.write_all_at(metadata.bytes(), 0).map_err(failed)?;
    Ok(size)
}

/// Gives each file its place in the data; what is to be copied there, and blocks of all of it.
fn place(view: &View) -> (Tree, Vec<Copy>, u64) {
    let (mut tree, mut copies, mut blocks) = (view.tree.clone(), Vec::new(), 0);
    let mut placed: HashMap<(usize, Content), Content> = HashMap::new();
    for (node, content) in view.files() {
        let layer = view.layer_of(node);
        let content = content.into_owned();
        let placed = placed.entry((layer, content.clone())).or_insert_with(|| {
            let mut take = |offset: u64, start: u64, length: u64| {
                let block = blocks;
                copies.push(Copy { layer, run: Run { offset, start: start * BLOCK_U64, length }, block });
                blocks += length.div_ceil(BLOCK_U64);
                block
            };
            match &content {
                Content::Plain { size: 0, .. } => Content::EMPTY,
                Content::Plain { size, start } => Content::Plain { size: *size, start: take(0, *start, *size) },
                Content::Sparse { size, chunk_bits, chunks } => {
                    let chunk = BLOCK_U64 << chunk_bits;
                    let piece = |(start, number): (&Option<u64>, u64)| {
                        start.map(|start| take(number * chunk, start, chunk.min(size - number * chunk)))
                    };
                    let chunks = chunks.iter().zip(0..).map(piece).collect();
                    Content::Sparse { size: *size, chunk_bits: *chunk_bits, chunks }
                }
            }
        });
        tree.set_content(node, placed.clone());
    }
    (tree, copies, blocks)
}

/// Writes what is not zero: the rest of the file is a hole.
fn put(file: &File, bytes: &[u8], at: u64) -> Result<()> {
    for (piece, offset) in bytes.chunks(64 << 10).zip((at..).step_by(64 << 10)) {
        if piece.iter().any(|&b| b != 0) {
            file.write_all_at(piece, offset).map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: std::io::Error) -> Error {
    Error::failed("writing the image", error)
}
