//! Directory blocks: how names are packed into them, and how they are read back.
//!
//! Entries are in byte order of their names, `.` and `..` among them. Each block is filled as far as whole entries go,
//! and the rest of it is zero; the directory's size ends with the last name of its last block.

use crate::format::Dirent;
use crate::tree::MAX_NAME;
use crate::{BLOCK, ReadError};

/// Bytes of an entry with its name.
fn need(name: &[u8]) -> usize {
    Dirent::SIZE + name.len()
}

/// Cuts sorted entries into those of each block.
fn blocks<'e, T>(mut entries: &'e [(&[u8], T)]) -> impl Iterator<Item = &'e [(&'e [u8], T)]> {
    std::iter::from_fn(move || {
        let mut used = 0;
        let fits = |(name, _): &&(&[u8], T)| {
            used += need(name);
            used <= BLOCK
        };
        let (block, rest) = entries.split_at(entries.iter().take_while(fits).count());
        entries = rest;
        (!block.is_empty()).then_some(block)
    })
}

/// Bytes of a directory of these entries.
pub(crate) fn size<T>(entries: &[(&[u8], T)]) -> u64 {
    let used = |block: &[(&[u8], T)]| block.iter().map(|(name, _)| need(name)).sum::<usize>() as u64;
    let (count, last) = blocks(entries).fold((0, 0), |(count, _), block| (count + 1, used(block)));
    (BLOCK as u64) * u64::max(count, 1) - BLOCK as u64 + last
}

/// The contents of a directory of these entries, given as name, (nid, file type on disk).
pub(crate) fn pack(entries: &[(&[u8], (u64, u8))]) -> Vec<u8> {
    let mut out = Vec::with_capacity(size(entries) as usize);
    for block in blocks(entries) {
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        let mut nameoff = block.len() * Dirent::SIZE;
        for (name, (nid, file_type)) in block {
            let dirent = Dirent { nid: *nid, nameoff: nameoff as u16, file_type: *file_type, reserved: 0 };
            out.extend_from_slice(&dirent.encode());
            nameoff += name.len();
        }
        block.iter().for_each(|(name, _)| out.extend_from_slice(name));
    }
    out
}

/// A block of a directory, of which the array of entries is known to lie inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Block<'a> {
    /// A block from its bytes: 4096, or fewer if it is the last.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let first = Dirent::at(bytes, 0).ok_or(ReadError::Corrupt("directory block shorter than an entry"))?;
        let names = usize::from(first.nameoff);
        if names < Dirent::SIZE || names % Dirent::SIZE != 0 || names > bytes.len() {
            return Err(ReadError::Corrupt("first name offset of a directory block"));
        }
        Ok(Block { bytes, count: names / Dirent::SIZE })
    }

    /// Entries in it, at least one.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// An entry and its name; `index` is less than [`Block::len`].
    pub(crate) fn get(&self, index: usize) -> Result<(Dirent, &'a [u8]), ReadError> {
        let at = |index: usize| Dirent::at(self.bytes, (index * Dirent::SIZE) as u64);
        let dirent = at(index).ok_or(ReadError::Corrupt("directory entry outside its block"))?;
        let start = usize::from(dirent.nameoff);
        let name = if index + 1 < self.count {
            let end = at(index + 1).map_or(0, |next| usize::from(next.nameoff));
            self.bytes.get(start..end)
        } else {
            let rest = self.bytes.get(start..);
            rest.map(|rest| &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())])
        };
        match name {
            Some(name) if (1..=MAX_NAME).contains(&name.len()) && start >= self.count * Dirent::SIZE => {
                Ok((dirent, name))
            }
            _ => Err(ReadError::Corrupt("name of a directory entry")),
        }
    }

    /// What lies behind the name of the last entry.
    pub(crate) fn padding(&self) -> Result<&'a [u8], ReadError> {
        let (dirent, name) = self.get(self.count - 1)?;
        Ok(&self.bytes[usize::from(dirent.nameoff) + name.len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_filled_to_the_last_byte() {
        // 4 × (12 + 255) + ... : sixteen entries of 256 bytes are exactly a block.
        let names: Vec<Vec<u8>> = (0..17).map(|at| vec![b'a' + at; 256 - Dirent::SIZE]).collect();
        let entries: Vec<_> = names.iter().map(|name| (name.as_slice(), (7, 1))).collect();
        assert_eq!(size(&entries[..16]), 4096);
        assert_eq!(size(&entries), 4096 + 256);
        let packed = pack(&entries);
        assert_eq!(packed.len(), 4096 + 256);
        let block = Block::parse(&packed[..4096]).unwrap();
        assert_eq!(block.len(), 16);
        assert_eq!(block.get(15).unwrap().1, names[15]);
        assert!(block.padding().unwrap().is_empty());
        assert_eq!(Block::parse(&packed[4096..]).unwrap().get(0).unwrap().1, names[16]);
    }

    #[test]
    fn broken_blocks_are_errors() {
        let packed = pack(&[(b"a", (1, 1)), (b"b", (2, 1))]);
        assert!(Block::parse(&packed[..11]).is_err());
        for nameoff in [0u16, 11, 13, 36] {
            let mut broken = packed.clone();
            broken[8..10].copy_from_slice(&nameoff.to_le_bytes());
            assert!(Block::parse(&broken).is_err(), "{nameoff}");
        }
        let mut broken = packed;
        broken[20] = 24;
        assert!(Block::parse(&broken).unwrap().get(0).is_err());
    }
}
