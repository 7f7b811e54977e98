//! What is found out about contents that were not read when they came, once all are known: which are equal, and where they
//! have long runs of zeros. Only those that could be equal, being of one size, are read for that.

use super::contents::Runs;
use super::hash::RUN_MIN;
use super::hashes::HashIndex;
use super::holders::Holders;
use super::item::{Holder, Item};
use super::read::hash_body;
use crate::error::Result;
use erofs::BLOCK;
use std::path::Path;

/// Adds the long runs of zero blocks of contents that have not been read. Of each run one block at least stands at a
/// multiple of half of the shortest one's length: where none of those is zero, there is no run.
pub(super) fn find_zeros(holders: &Holders, items: &[Item], buffer: &mut [u8], runs: &mut Runs) -> Result<()> {
    for (number, item) in (0..).zip(items) {
        let length = item.length();
        let (Some(only), None) = (item.segment(0), item.segment(1)) else { continue };
        if item.holder() == Holder::Spool || length < RUN_MIN {
            continue;
        }
        let mut probes = (0..only.length).step_by(RUN_MIN as usize / 2);
        let any = probes.try_fold(false, |any, at| {
            let block = &mut buffer[..(only.length - at).min(BLOCK as u64) as usize];
            holders.read(item, block, only.at + at)?;
            Ok(any || block.iter().all(|&byte| byte == 0))
        })?;
        if any {
            let (_, zeros) = hash_body(holders, item, buffer)?;
            runs.set(number, zeros);
        }
    }
    Ok(())
}

/// For each the number of the first that is equal to it. Hashes may go to a temporary file in `directory`.
pub(super) fn find_equal(holders: &Holders, items: &[Item], buffer: &mut [u8], directory: &Path) -> Result<Vec<u32>> {
    // Fits: they were numbered when they came.
    let mut same: Vec<u32> = (0..items.len() as u32).collect();
    let mut order = same.clone();
    let size = |number: &u32| {
        let item = &items[*number as usize];
        (item.size(), item.length())
    };
    order.sort_unstable_by_key(|number| (size(number), *number));
    for alike in order.chunk_by(|a, b| size(a) == size(b)).filter(|alike| alike.len() > 1) {
        let (mut index, mut different) = (HashIndex::new(directory), Vec::new());
        for &number in alike {
            let (hash, _) = hash_body(holders, &items[number as usize], buffer)?;
            match index.add(hash)? {
                Some(first) => same[number as usize] = different[first as usize],
                None => different.push(number),
            }
        }
    }
    Ok(same)
}
