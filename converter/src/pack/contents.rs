//! The contents of a layer's files when no more come: what a plan has to know of them, and then what reading them has to.

use super::hash::Hash;
use super::hashes::Hashes;
use super::holders::Holders;
use super::item::{Holder, Item};
use crate::error::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// All contents of the files of one layer: see [`super::Spool`].
#[derive(Debug)]
pub struct Contents {
    pub(super) items: Vec<Item>,
    pub(super) runs: Runs,
    /// For each the first that is equal to it, where that is found only in the end.
    pub(super) same: Vec<u32>,
    pub(super) holders: Holders,
    /// Of those that have to be checked when they are read.
    pub(super) hashes: Option<Hashes>,
    /// For further temporary files.
    pub(super) directory: PathBuf,
}

/// Long runs of zero blocks in the bodies that have any, by number: start and length in bytes.
#[derive(Debug, Default)]
pub(super) struct Runs(HashMap<u32, Box<[(u64, u64)]>>);

/// What is needed to read contents whose order is known.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) holders: Holders,
    sparse: HashMap<u32, Item>,
    hashes: Option<Hashes>,
}

impl Runs {
    pub(super) fn set(&mut self, number: u32, zeros: Vec<(u64, u64)>) {
        if !zeros.is_empty() {
            self.0.insert(number, zeros.into());
        }
    }
}

impl Contents {
    /// A file's contents by its number.
    pub fn item(&self, number: u32) -> &Item {
        &self.items[number as usize]
    }

    /// How many there are; some may be equal.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The number of the first contents that are equal to these.
    pub(super) fn first(&self, number: u32) -> u32 {
        self.same.get(number as usize).copied().unwrap_or(number)
    }

    /// Long runs of zero blocks in the body of contents: start and length in bytes.
    pub(super) fn zeros(&self, number: u32) -> &[(u64, u64)] {
        self.runs.0.get(&number).map_or(&[], |runs| runs)
    }

    /// Where temporary files go.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Forgets what only a plan needs: most of what is known of contents.
    pub(super) fn into_bodies(self) -> Bodies {
        let all = self.items.into_iter().zip(0..);
        let sparse = all.filter(|(item, _)| item.is_sparse()).map(|(item, number)| (number, item)).collect();
        Bodies { holders: self.holders, sparse, hashes: self.hashes }
    }
}

impl Bodies {
    /// Contents by their number, where they have holes.
    pub(super) fn sparse(&self, number: u32) -> Option<&Item> {
        self.sparse.get(&number)
    }

    /// The hash that contents must have when they are read again, where that is not sure.
    pub(super) fn to_check(&self, number: u32, item: &Item) -> Result<Option<Hash>> {
        match &self.hashes {
            Some(hashes) if item.holder() != Holder::Spool => hashes.get(number),
            _ => Ok(None),
        }
    }
}
