//! The hashes of different contents, by number: which of them are equal, and what contents have to be when they are read
//! for the second time.
//!
//! In memory are the first eight bytes of each, and all of the last ones; the others lie in a nameless file, and are asked
//! for where contents could be equal.

use super::hash::Hash;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How many stay in memory: most layers have no more.
const RECENT: usize = 16 << 10;

/// Finds equal contents.
#[derive(Debug)]
pub(super) struct HashIndex {
    hashes: Hashes,
    /// Numbers by the first bytes of the hash.
    numbers: HashMap<[u8; 8], u32>,
}

impl HashIndex {
    /// Of nothing yet; a temporary file goes to `directory`.
    pub(super) fn new(directory: &Path) -> Self {
        Self { hashes: Hashes::new(directory), numbers: HashMap::new() }
    }

    /// The number of the contents that have this hash; or it is new, and has the next number.
    pub(super) fn add(&mut self, hash: Hash) -> Result<Option<u32>> {
        let next = self.hashes.next()?;
        let number = *self.numbers.entry(*hash.first_chunk().unwrap_or(&[0; 8])).or_insert(next);
        if number != next && self.hashes.get(number)? == Some(hash) {
            return Ok(Some(number));
        }
        // Of contents whose hashes begin alike, which are rarer than any error, only the first is found again.
        self.hashes.push(hash)?;
        Ok(None)
    }

    /// The hashes alone: no contents are looked for any more.
    pub(super) fn into_hashes(self) -> Hashes {
        self.hashes
    }
}

/// Hashes by number.
#[derive(Debug)]
pub(super) struct Hashes {
    directory: PathBuf,
    /// Those that have left memory.
    file: Option<File>,
    stored: usize,
    recent: Vec<Hash>,
}

impl Hashes {
    fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), file: None, stored: 0, recent: Vec::new() }
    }

    fn push(&mut self, hash: Hash) -> Result<()> {
        if self.recent.len() == RECENT {
            self.store().map_err(|e| Error::failed("writing hashes to a temporary file", e))?;
        }
        self.recent.push(hash);
        Ok(())
    }

    fn next(&self) -> Result<u32> {
        u32::try_from(self.stored + self.recent.len()).map_err(|e| Error::failed("counting the contents", e))
    }

    fn store(&mut self) -> std::io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile_in(&self.directory)?,
        };
        file.write_all_at(self.recent.as_flattened(), (self.stored * size_of::<Hash>()) as u64)?;
        self.stored += self.recent.len();
        self.recent.clear();
        self.file = Some(file);
        Ok(())
    }

    /// The hash of this number, if there are so many.
    pub(super) fn get(&self, number: u32) -> Result<Option<Hash>> {
        let number = number as usize;
        let Some(file) = self.file.as_ref().filter(|_| number < self.stored) else {
            return Ok(self.recent.get(number - self.stored).copied());
        };
        let mut hash = Hash::default();
        let read = file.read_exact_at(&mut hash, (number * size_of::<Hash>()) as u64);
        read.map_err(|e| Error::failed("reading hashes from a temporary file", e))?;
        Ok(Some(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_found_wherever_they_are() {
        let mut hashes = HashIndex::new(&std::env::temp_dir());
        let hash = |number: u32| *blake3::hash(&number.to_le_bytes()).as_bytes();
        let count = RECENT as u32 * 5 / 2;
        (0..count).for_each(|number| assert_eq!(hashes.add(hash(number)).unwrap(), None));
        assert!((0..count).step_by(999).all(|number| hashes.add(hash(number)).unwrap() == Some(number)));
        let mut alike = hash(7);
        alike[31] ^= 1;
        assert_eq!(hashes.add(alike).unwrap(), None);
        let hashes = hashes.into_hashes();
        assert!((0..count).step_by(1001).all(|number| hashes.get(number).unwrap() == Some(hash(number))));
        assert_eq!(hashes.get(count - 1).unwrap(), Some(hash(count - 1)));
        assert_eq!((hashes.get(count).unwrap(), hashes.get(count + 1).unwrap()), (Some(alike), None));
    }
}
