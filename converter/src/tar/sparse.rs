//! Maps of sparse tar entries: which ranges of a file are stored. The rest are holes.
//!
//! Three forms by GNU tar: in the header and its extensions (type `S`), in PAX records (0.0, 0.1), and in front of the
//! stored data (1.0). A map that contradicts itself or the stored size is refused: its bytes would be shown as content.

use crate::error::{Error, Result};
use crate::limits::FILE_PIECES;
use crate::tar::number;
use crate::tar::pax::Records;
use tar::{GnuExtSparseHeader, GnuSparseHeader};

/// A stored range of a file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts in the file.
    pub offset: u64,
    /// Its length.
    pub length: u64,
}

/// Refuses maps out of order, past the end of the file, or that do not sum up to what is stored; drops empty pieces.
pub(super) fn check(map: Vec<Extent>, size: u64, stored: u64) -> Result<Vec<Extent>> {
    let wrong = |what: &str| Error::refused(format!("invalid sparse entry: {what}"));
    let (mut end, mut sum) = (0u64, 0u64);
    for extent in &map {
        if extent.offset < end {
            return Err(wrong("its pieces overlap or are out of order"));
        }
        end = extent.offset.checked_add(extent.length).ok_or_else(|| wrong("a piece is too large"))?;
        sum += extent.length;
    }
    if end > size {
        return Err(wrong("a piece reaches past its size"));
    }
    if sum != stored {
        return Err(wrong(&format!("its pieces hold {sum} bytes, but {stored} are stored")));
    }
    Ok(map.into_iter().filter(|extent| extent.length > 0).collect())
}

/// The pieces in one header block of the old GNU form.
pub(super) fn header_pieces(headers: &[GnuSparseHeader], map: &mut Vec<Extent>) -> Result<()> {
    for header in headers {
        if header.offset[0] == 0 || header.numbytes[0] == 0 {
            break;
        }
        let number = |field: &[u8]| number::parse(field).and_then(|n| u64::try_from(n).ok());
        match (number(&header.offset), number(&header.numbytes)) {
            (Some(offset), Some(length)) => push(map, offset, length)?,
            _ => return Err(Error::refused("invalid sparse entry: a number in its map")),
        }
    }
    Ok(())
}

/// An extension block of the old GNU form: its pieces, and whether another block follows.
pub(super) fn extension(block: &[u8; 512], map: &mut Vec<Extent>) -> Result<bool> {
    let mut header = GnuExtSparseHeader::new();
    header.as_mut_bytes().copy_from_slice(block);
    header_pieces(header.sparse(), map)?;
    Ok(header.is_extended())
}

/// The map in the records of forms 0.0 and 0.1, if there is one.
pub(super) fn from_records(records: &Records) -> Result<Option<Vec<Extent>>> {
    let numbers: Vec<&[u8]> = if let Some(map) = records.get("GNU.sparse.map") {
        map.split(|&b| b == b',').collect()
    } else if !records.sparse_pairs.is_empty() {
        let in_order =
            records.sparse_pairs.iter().enumerate().all(|(i, (key, _))| key.ends_with(b"offset") == (i % 2 == 0));
        if !in_order {
            return Err(Error::refused("invalid sparse entry: its map's records are out of order"));
        }
        records.sparse_pairs.iter().map(|(_, value)| value.as_slice()).collect()
    } else {
        return Ok(None);
    };
    let mut map = Vec::new();
    for pair in numbers.chunks(2) {
        match pair {
            [offset, length] => push(&mut map, decimal(offset)?, decimal(length)?)?,
            _ => return Err(Error::refused("invalid sparse entry: its map has an odd count of numbers")),
        }
    }
    Ok(Some(map))
}

/// The map in front of the stored data (1.0): decimal lines, a count and then pairs; `block` gives the next 512 bytes.
pub(super) fn from_data(mut block: impl FnMut() -> Result<[u8; 512]>) -> Result<Vec<Extent>> {
    let mut lines = Lines { text: Vec::new(), at: 0 };
    let count = lines.next(&mut block)?;
    let mut map = Vec::new();
    for _ in 0..count {
        let offset = lines.next(&mut block)?;
        push(&mut map, offset, lines.next(&mut block)?)?;
    }
    Ok(map)
}

struct Lines {
    text: Vec<u8>,
    at: usize,
}

impl Lines {
    fn next(&mut self, block: &mut impl FnMut() -> Result<[u8; 512]>) -> Result<u64> {
        loop {
            if let Some(end) = self.text[self.at..].iter().position(|&b| b == b'\n') {
                let value = decimal(&self.text[self.at..self.at + end])?;
                self.at += end + 1;
                return Ok(value);
            }
            self.text.drain(..self.at);
            self.at = 0;
            if self.text.len() > 64 {
                return Err(Error::refused("invalid sparse entry: a number in its map"));
            }
            self.text.extend_from_slice(&block()?);
        }
    }
}

fn push(map: &mut Vec<Extent>, offset: u64, length: u64) -> Result<()> {
    if map.len() == FILE_PIECES {
        return Err(Error::refused("invalid sparse entry: its map is too long"));
    }
    map.push(Extent { offset, length });
    Ok(())
}

fn decimal(text: &[u8]) -> Result<u64> {
    number::decimal(text).ok_or_else(|| Error::refused("invalid sparse entry: a number in its map"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(pairs: &[(u64, u64)]) -> Vec<Extent> {
        pairs.iter().map(|&(offset, length)| Extent { offset, length }).collect()
    }

    #[test]
    fn a_map_in_front_of_the_data_is_read_over_block_borders() {
        let text: Vec<u8> = [b"100\n".to_vec(), b"123456\n8\n".repeat(100)].concat();
        let mut blocks = text.chunks(512).map(|c| {
            let mut block = [0; 512];
            block[..c.len()].copy_from_slice(c);
            block
        });
        let map = from_data(|| blocks.next().ok_or_else(|| Error::refused("end"))).unwrap();
        assert_eq!(map, extents(&[(123456, 8); 100]));
        assert!(blocks.next().is_none());
    }

    #[test]
    fn maps_that_contradict_themselves_are_refused() {
        assert_eq!(check(extents(&[(0, 4), (8, 0)]), 8, 4).unwrap(), extents(&[(0, 4)]));
        for (pairs, size, stored) in
            [(&[(4, 4), (0, 4)][..], 8, 8), (&[(0, 9)], 8, 9), (&[(0, 4)], 8, 5), (&[(1, u64::MAX)], u64::MAX, 4)]
        {
            assert!(check(extents(pairs), size, stored).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn maps_in_records_are_pairs() {
        let mut records = Records::default();
        records.read(b"28 GNU.sparse.map=0,4,100,5\n").unwrap();
        assert_eq!(from_records(&records).unwrap().unwrap(), extents(&[(0, 4), (100, 5)]));
        let mut records = Records::default();
        records.read(b"24 GNU.sparse.map=0,4,5\n").unwrap();
        assert!(from_records(&records).is_err());
    }
}
