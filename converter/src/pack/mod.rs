//! Contents to the data space: the order of files, which of them share blocks, and where chunks are cut.
//!
//! Files lie in path order, but for those that are to come first; each from a block on, filled up with zeros. Equal contents
//! share blocks. Files with holes store what [`erofs::Content::sparse`] says. First all of it is planned, so that a layer's
//! metadata can be written; then the contents are read, in order. Equal trees and contents give equal chunks; memory is
//! some fifty bytes a file, and one chunk.

mod contents;
mod cut;
mod files;
mod first;
mod hash;
mod hashes;
mod holders;
mod item;
mod late;
mod list;
mod read;
mod spool;

pub use contents::Contents;
pub use files::{looks, unchanged};
pub use first::{First, MAX_LIST};
pub use item::Item;
pub use spool::Spool;

use crate::error::Result;
use contents::Bodies;
use cut::Cutter;
use erofs::{BLOCK, NodeId, Tree, Visit};
use list::List;
use read::DataReader;
use std::num::NonZeroU32;

/// Contents that have no place yet.
const NOWHERE: u64 = u64::MAX;

/// Where all contents go.
#[derive(Debug)]
pub struct Plan {
    /// Blocks of the data space.
    pub blocks: u64,
    /// Bytes of files that share the blocks of others.
    pub deduplicated: u64,
    /// The contents, as their bodies follow each other.
    list: List,
    /// Length of each chunk.
    cuts: Vec<u32>,
    bodies: Bodies,
}

/// Gives each regular file of `tree` its contents, which are those of `files` by node and number in the spool. Those of
/// `first` come before all others. What only planning needs of the contents is forgotten.
pub fn plan(
    tree: &mut Tree,
    files: &[(NodeId, u32)],
    contents: Contents,
    target: u32,
    first: Option<&First>,
) -> Result<Plan> {
    let (cutter, list) = (Cutter::new(target), list::Writer::new(contents.directory())?);
    let mut space = Space { blocks: 0, cutter, list };
    let mut deduplicated = 0;
    let mut starts = vec![NOWHERE; contents.len()];
    let mut numbers = vec![None; tree.len()];
    // Fits: there is no 2^32nd, whose number would have none behind it.
    files.iter().for_each(|(node, number)| numbers[node.index()] = NonZeroU32::new(contents.first(*number) + 1));
    let mut place = |visit: Visit, full: bool| -> Result<()> {
        // Each node once, under its first name.
        let Some(number) = numbers[visit.node.index()].take() else { return Ok(()) };
        let number = number.get() - 1;
        match starts[number as usize] {
            NOWHERE => {
                space.cutter.set_full(full);
                starts[number as usize] = space.place(number, &contents, &visit.path)?;
            }
            _ => deduplicated += contents.item(number).size(),
        }
        Ok(())
    };
    if let Some(first) = first {
        let mut ranked: Vec<_> = tree.walk().filter_map(|visit| Some((first.rank(&visit.path)?, visit))).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().try_for_each(|(_, visit)| place(visit, true))?;
    }
    tree.walk().try_for_each(|visit| place(visit, false))?;
    for (node, number) in files {
        let number = contents.first(*number);
        if starts[number as usize] != NOWHERE {
            tree.set_content(*node, contents.item(number).content(starts[number as usize]));
        }
    }
    let Space { blocks, cutter, list } = space;
    Ok(Plan { blocks, deduplicated, list: list.finish()?, cuts: cutter.finish(), bodies: contents.into_bodies() })
}

/// The data space, growing.
struct Space {
    blocks: u64,
    cutter: Cutter,
    list: list::Writer,
}

impl Space {
    /// Puts a file's contents at the end; the block where they start.
    fn place(&mut self, number: u32, contents: &Contents, path: &[u8]) -> Result<u64> {
        let (start, item) = (self.blocks, contents.item(number));
        if item.length() > 0 {
            let mut key = blake3::Hasher::new();
            key.update(&item.size().to_le_bytes()).update(path);
            self.cutter.add(item, contents.zeros(number), *key.finalize().as_bytes());
            self.blocks += item.length() / BLOCK as u64;
            self.list.push(number, item)?;
        }
        Ok(start)
    }
}

impl Plan {
    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.cuts.len()
    }

    /// Reads the contents and hands the chunks to `emit`, in order.
    pub fn read(&self, emit: &mut dyn FnMut(Vec<u8>) -> Result<()>) -> Result<()> {
        let mut reader = DataReader::new(&self.bodies, &self.list)?;
        for &length in &self.cuts {
            let mut chunk = vec![0; length as usize];
            reader.fill(&mut chunk)?;
            emit(chunk)?;
        }
        self.list.check()?;
        self.bodies.holders.check_spool()
    }
}

#[cfg(test)]
mod tests;
