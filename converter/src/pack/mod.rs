//! Contents to the data space: the order of files, which of them share blocks, and where chunks are cut.
//!
//! Files lie in path order, each from a block on, filled up with zeros. Equal contents share blocks. Files with holes
//! store what [`erofs::Content::sparse`] says. First all of it is planned, so that a layer's metadata can be written;
//! then the contents are read, in order. Equal trees and contents give equal chunks; memory is some hundred bytes a
//! file, and one chunk.

mod cut;
mod hash;
mod item;
mod read;
mod spool;

pub use item::Item;
pub use spool::Spool;

use crate::error::Result;
use cut::Cutter;
use erofs::{BLOCK, Content, Kind, NodeId, Tree};
use read::DataReader;
use std::collections::HashMap;

/// Where all contents go.
#[derive(Debug)]
pub struct Plan {
    /// Blocks of the data space.
    pub blocks: u64,
    /// Bytes of files that share the blocks of others.
    pub deduplicated: u64,
    /// BLAKE3 over the content hashes in order.
    pub digest: blake3::Hasher,
    /// Numbers of the contents, as their bodies follow each other.
    order: Vec<usize>,
    /// Length of each chunk.
    cuts: Vec<u32>,
}

/// Gives each regular file of `tree` its contents, which are those of `files` by node and number in the spool.
pub fn plan(tree: &mut Tree, files: &HashMap<NodeId, usize>, spool: &Spool, target: u32) -> Plan {
    let mut plan =
        Plan { blocks: 0, deduplicated: 0, digest: blake3::Hasher::new(), order: Vec::new(), cuts: Vec::new() };
    let mut cutter = Cutter::new(target);
    let mut placed: HashMap<usize, Content> = HashMap::new();
    let mut contents: HashMap<NodeId, Content> = HashMap::new();
    for visit in tree.walk() {
        let Some(&number) = files.get(&visit.node) else { continue };
        if contents.contains_key(&visit.node) {
            continue;
        }
        let content = match placed.get(&number) {
            Some(content) => {
                plan.deduplicated += spool.item(number).size;
                content.clone()
            }
            None => {
                let content = plan.place(number, spool.item(number), &mut cutter, &visit.path);
                placed.insert(number, content.clone());
                content
            }
        };
        contents.insert(visit.node, content);
    }
    for (node, content) in contents {
        tree.node_mut(node).kind = Kind::File(content);
    }
    plan.cuts = cutter.finish();
    plan
}

impl Plan {
    /// Puts a file's contents at the end of the data space.
    fn place(&mut self, number: usize, item: &Item, cutter: &mut Cutter, path: &[u8]) -> Content {
        let content = item.body.content(self.blocks);
        self.digest.update(&item.hash);
        if item.body.length() > 0 {
            let mut key = blake3::Hasher::new();
            key.update(&item.hash).update(path);
            cutter.add(&item.body, &item.zeros, *key.finalize().as_bytes());
            self.blocks += item.body.length() / BLOCK as u64;
            self.order.push(number);
        }
        content
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.cuts.len()
    }

    /// Reads the contents and hands the chunks to `emit`, in order.
    pub fn read(&self, spool: &Spool, emit: &mut dyn FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut reader = DataReader::new(spool, &self.order);
        for &length in &self.cuts {
            let mut chunk = vec![0; length as usize];
            reader.fill(&mut chunk)?;
            emit(chunk)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
