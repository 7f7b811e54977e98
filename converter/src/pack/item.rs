//! One file's contents: what of it is stored, in which order, and the hash that this has.
//!
//! The *body* is what stands in the data space: of a plain file its bytes, of one with holes the pieces that
//! [`Content::sparse`] stores, one behind the other; either way each piece from a block on and filled up with zeros. A
//! hash is taken over the body and its place in the file, so it does not depend on how a tar or a file system described
//! the holes, and a file without holes is a plain one whatever its map says.

use super::hash::{BodyHasher, Hash};
use crate::tar::{Extent, Shape};
use erofs::{BLOCK_U64, Content, SparseLayout};
use std::fmt;

/// Bytes of a body that stand together where the file's stored bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// Byte of the body.
    pub(super) to: u64,
    pub(super) length: u64,
    /// Byte of the spool, of the source or of the file.
    pub(super) at: u64,
}

/// What holds the bytes of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// In the spool.
    Spool,
    /// In the file that is the input.
    Source,
    /// In a file of the directory that is the input.
    Directory,
}

/// Where the stored bytes of contents begin, in eight bytes: whose, in two bits, and the byte of it; of a file of a
/// directory its number there.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    /// No file has as many bytes as fill the rest.
    const BITS: u32 = u64::BITS - 2;

    fn new(holder: Holder, at: u64) -> Self {
        Self((holder as u64) << Self::BITS | at)
    }

    fn holder(self) -> Holder {
        match self.0 >> Self::BITS {
            0 => Holder::Spool,
            1 => Holder::Source,
            _ => Holder::Directory,
        }
    }

    fn at(self) -> u64 {
        self.0 & ((1 << Self::BITS) - 1)
    }
}

/// One file's contents: what of it stands in the data space, and what is in no segment is zero. A layer can have millions
/// of them.
#[derive(Clone)]
pub struct Item {
    /// Bytes of the file, holes included.
    size: u64,
    place: Place,
    sparse: Option<Box<Sparse>>,
}

/// What of a file with holes stands in the data space.
#[derive(Debug, Clone)]
struct Sparse {
    layout: SparseLayout,
    segments: Vec<Segment>,
    /// Bytes of all pieces: of as many as there can be, asking the layout takes long.
    stored: u64,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, place, sparse } = self;
        f.debug_struct("Item").field("size", size).field("holder", &place.holder()).field("sparse", sparse).finish()
    }
}

impl Item {
    /// Of a file whose stored bytes begin at `at`; `at` is its number where it is a file of a directory.
    pub(super) fn new(shape: &Shape, holder: Holder, at: u64) -> Self {
        let plain = Self { size: shape.size, place: Place::new(holder, at), sparse: None };
        let Some(map) = &shape.map else { return plain };
        let ranges: Vec<_> = map.iter().map(|extent| (extent.offset, extent.length)).collect();
        let layout = Content::sparse(shape.size, &ranges);
        let whole = Extent { offset: 0, length: shape.size };
        if map[..] == [whole] {
            return plain;
        }
        let segments = segments(map, &layout, at);
        let stored = layout.stored();
        Self { sparse: Some(Box::new(Sparse { layout, segments, stored })), ..plain }
    }

    /// Bytes of [`Item::to_bytes`].
    pub(super) const BYTES: usize = 16;

    /// All but what a file with holes has besides.
    pub(super) fn to_bytes(&self) -> [u8; Self::BYTES] {
        (u128::from(self.size) << 64 | u128::from(self.place.0)).to_le_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let both = u128::from_le_bytes(*bytes);
        Self { size: (both >> 64) as u64, place: Place(both as u64), sparse: None }
    }

    /// Whether it has holes that are not stored.
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }

    /// What holds its bytes.
    pub(super) fn holder(&self) -> Holder {
        self.place.holder()
    }

    /// The number of a file of a directory.
    pub(super) fn number(&self) -> u32 {
        // Fits: it was one.
        self.place.at() as u32
    }

    /// Bytes of the file, holes included.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of its body, a multiple of the block size.
    pub(super) fn length(&self) -> u64 {
        let stored = self.sparse.as_ref().map_or(self.size, |sparse| sparse.stored);
        stored.next_multiple_of(BLOCK_U64)
    }

    /// One after the other, in order of their place in the body, and of their bytes where they are.
    pub(super) fn segment(&self, index: usize) -> Option<Segment> {
        if let Some(sparse) = &self.sparse {
            return sparse.segments.get(index).copied();
        }
        let at = if self.holder() == Holder::Directory { 0 } else { self.place.at() };
        (index == 0 && self.size > 0).then_some(Segment { to: 0, length: self.size, at })
    }

    /// All of them.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> {
        (0..).map_while(|index| self.segment(index))
    }

    /// The contents of the file, when the body starts at this block of the data space.
    pub(super) fn content(&self, start: u64) -> Content {
        match self.layout() {
            None if self.size == 0 => Content::EMPTY,
            None => Content::Plain { size: self.size, start },
            Some(layout) => {
                let blocks = layout.pieces.iter().scan(start, |next, piece| {
                    let here = *next;
                    *next += piece.len.div_ceil(BLOCK_U64);
                    Some(here)
                });
                layout.content(blocks)
            }
        }
    }

    /// The hash of the contents, when `hasher` has taken all of the body; and the body's long runs of zeros.
    pub(super) fn finish(&self, hasher: BodyHasher) -> (Hash, Vec<(u64, u64)>) {
        let pieces = self.layout().map_or(&[][..], |layout| &layout.pieces);
        let chunk_bits = self.layout().map_or(0, |layout| u64::from(layout.chunk_bits) + 1);
        let numbers = pieces.iter().flat_map(|piece| [piece.offset, piece.len]);
        hasher.finish(numbers.chain([pieces.len() as u64, chunk_bits, self.size]))
    }

    /// Where the file has holes, and is not stored as a plain one.
    fn layout(&self) -> Option<&SparseLayout> {
        let Sparse { layout, stored, .. } = &**self.sparse.as_ref()?;
        (*stored < layout.size).then_some(layout)
    }
}

/// Where the stored bytes of each piece are: those of the ranges in `map`, one behind the other from `at` on.
fn segments(map: &[Extent], layout: &SparseLayout, mut at: u64) -> Vec<Segment> {
    let (mut segments, mut next, mut to) = (Vec::new(), 0, 0);
    for piece in &layout.pieces {
        let end = piece.offset + piece.len;
        while let Some(extent) = map.get(next).filter(|extent| extent.offset < end) {
            let start = extent.offset.max(piece.offset);
            let stop = (extent.offset + extent.length).min(end);
            segments.push(Segment { to: to + (start - piece.offset), length: stop - start, at });
            at += stop - start;
            if stop < extent.offset + extent.length {
                break;
            }
            next += 1;
        }
        to += piece.len.next_multiple_of(BLOCK_U64);
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FILE_PIECES;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent { offset, length }
    }

    fn item(size: u64, map: &[Extent]) -> Item {
        Item::new(&Shape { size, map: Some(map.to_vec()) }, Holder::Source, 100)
    }

    #[test]
    fn each_stored_byte_is_in_one_segment_in_order() {
        let map = [extent(10, 100), extent(5000, 8000), extent(1 << 20, 3), extent((1 << 20) + 10, 4)];
        let item = item((1 << 20) + 20, &map);
        let mut at = 100;
        for segment in item.segments() {
            assert_eq!(segment.at, at);
            at += segment.length;
        }
        assert_eq!(at - 100, 8107);
        let segments: Vec<_> = item.segments().collect();
        assert!(segments.windows(2).all(|pair| pair[0].to + pair[0].length <= pair[1].to));
        assert!(item.length() < 1 << 18);
    }

    #[test]
    fn of_as_many_pieces_as_a_file_may_have_each_is_looked_at_once() {
        // A look at all for each would not end.
        let map: Vec<_> = (0..FILE_PIECES as u64).map(|at| extent(at << 18, 1)).collect();
        let item = item((FILE_PIECES as u64) << 18, &map);
        let (mut count, mut to) = (0, 0);
        for segment in item.segments() {
            assert!(segment.to >= to && segment.to + segment.length <= item.length());
            (count, to) = (count + 1, segment.to + segment.length);
        }
        assert_eq!(count, FILE_PIECES);
        let Content::Sparse { chunks, .. } = item.content(0) else { panic!() };
        assert!(chunks.len() <= 4 * FILE_PIECES);
    }

    #[test]
    fn a_file_whose_holes_are_not_worth_it_is_plain() {
        for map in [vec![extent(0, 9000)], vec![extent(0, 10), extent(4096, 4904)], vec![extent(1, 8998)]] {
            assert_eq!(item(9000, &map).content(7), Content::Plain { size: 9000, start: 7 });
        }
        assert_eq!(item(0, &[]).content(7), Content::EMPTY);
        assert_eq!(size_of::<Item>(), 24);
    }
}
