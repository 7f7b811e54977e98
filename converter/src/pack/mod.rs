//! Contents to the data space: the order of files, which of them share blocks, and where chunks are cut.
//!
//! Files lie in path order, each from a block on, filled up with zeros. Equal contents share blocks. Files with holes
//! store what [`erofs::Content::sparse`] says. Equal trees and contents give equal chunks; memory is bounded by the chunk
//! size.

mod body;
mod cut;
mod spool;

pub use spool::{Item, Spool};

use crate::error::{Error, Result};
use crate::limits::ZEROS;
use body::Body;
use cut::Cutter;
use erofs::{BLOCK, Content, Kind, NodeId, Tree};
use std::collections::HashMap;

/// The chunk size that is aimed at unless the caller asks for another.
pub const CHUNK_SIZE: u32 = 256 << 10;

/// What a pack came to.
#[derive(Debug)]
pub struct Packed {
    /// Blocks of the data space.
    pub blocks: u64,
    /// Bytes of holes that are stored.
    pub zeros: u64,
    /// Bytes of files that share the blocks of others.
    pub deduplicated: u64,
    /// BLAKE3 over the content hashes in order.
    pub digest: blake3::Hasher,
}

/// Gives each regular file of `tree` its contents, which are those of `files` by node and number in the spool, and hands
/// the chunks of the data space to `emit`, in order.
pub fn pack(
    tree: &mut Tree,
    files: &HashMap<NodeId, usize>,
    spool: &Spool,
    target: u32,
    emit: &mut dyn FnMut(Vec<u8>) -> Result<()>,
) -> Result<Packed> {
    let mut packed = Packed { blocks: 0, zeros: 0, deduplicated: 0, digest: blake3::Hasher::new() };
    let mut cutter = Cutter::new(spool, target, emit);
    let mut placed: HashMap<usize, Content> = HashMap::new();
    let mut contents: HashMap<NodeId, Content> = HashMap::new();
    for visit in tree.walk() {
        let Some(&number) = files.get(&visit.node) else { continue };
        if contents.contains_key(&visit.node) {
            continue;
        }
        let item = spool.item(number);
        let content = match placed.get(&number) {
            Some(content) => {
                packed.deduplicated += item.shape.size;
                content.clone()
            }
            None => {
                let content = place(item, &mut cutter, &mut packed, &visit.path).map_err(|e| e.at(&visit.path))?;
                packed.digest.update(&item.hash);
                placed.insert(number, content.clone());
                content
            }
        };
        contents.insert(visit.node, content);
    }
    cutter.flush()?;
    for (node, content) in contents {
        tree.node_mut(node).kind = Kind::File(content);
    }
    Ok(packed)
}

/// Puts a file's contents at the end of the data space.
fn place(item: &Item, cutter: &mut Cutter<'_>, packed: &mut Packed, path: &[u8]) -> Result<Content> {
    let size = item.shape.size;
    let (body, content) = match &item.shape.map {
        None if size == 0 => return Ok(Content::EMPTY),
        None => (Body::plain(item), Content::Plain { size, start: packed.blocks }),
        Some(map) => {
            let ranges: Vec<_> = map.iter().map(|extent| (extent.offset, extent.length)).collect();
            let layout = Content::sparse(size, &ranges);
            packed.zeros += layout.stored() - ranges.iter().map(|(_, length)| length).sum::<u64>();
            if packed.zeros > ZEROS {
                return Err(Error::refused(format!(
                    "a sparse file of {size} bytes whose data are too far apart: more than {ZEROS} bytes of holes would \
                     have to be stored"
                )));
            }
            let (body, starts) = Body::sparse(item, &layout);
            (body, layout.content(starts.into_iter().map(|start| packed.blocks + start)))
        }
    };
    let mut key = blake3::Hasher::new();
    key.update(&item.hash).update(path);
    cutter.add(&body, *key.finalize().as_bytes())?;
    packed.blocks += body.length / BLOCK as u64;
    Ok(content)
}

#[cfg(test)]
mod tests;
