//! A file's bytes as the data space holds them: whole blocks, filled up with zeros.

use super::spool::{Item, Spool};
use crate::error::Result;
use crate::tar::Extent;
use erofs::{BLOCK, SparseLayout};

/// Bytes of the data space that belong together, a multiple of the block size; what is not in a segment is zero.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) length: u64,
    /// In order: byte of the body, length, byte of the spool.
    segments: Vec<(u64, u64, u64)>,
}

impl Body {
    /// All of a file without holes.
    pub(super) fn plain(item: &Item) -> Self {
        let segments = item.pieces().into_iter().map(|(extent, at)| (extent.offset, extent.length, at)).collect();
        Self { length: item.shape.size.next_multiple_of(BLOCK as u64), segments }
    }

    /// The pieces of a file with holes that its layout stores, one behind the other, each from a block on; and the
    /// block, from the body's start, at which each begins.
    pub(super) fn sparse(item: &Item, layout: &SparseLayout) -> (Self, Vec<u64>) {
        let stored = item.pieces();
        let (mut body, mut starts, mut next) = (Self::default(), Vec::new(), 0);
        for piece in &layout.pieces {
            starts.push(body.length / BLOCK as u64);
            let end = piece.offset + piece.len;
            while stored.get(next).is_some_and(|(extent, _)| extent.offset + extent.length <= piece.offset) {
                next += 1;
            }
            for (extent, at) in stored[next..].iter().take_while(|(extent, _)| extent.offset < end) {
                let part = cut(extent, piece.offset, end);
                let place = body.length + (part.offset - piece.offset);
                body.segments.push((place, part.length, at + (part.offset - extent.offset)));
            }
            body.length += piece.len.next_multiple_of(BLOCK as u64);
        }
        (body, starts)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(super) fn read(&self, spool: &Spool, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        let end = offset + buffer.len() as u64;
        for &(place, length, at) in self.from(offset).iter().take_while(|(place, ..)| *place < end) {
            let part = cut(&Extent { offset: place, length }, offset, end);
            let to = (part.offset - offset) as usize;
            spool.read(&mut buffer[to..to + part.length as usize], at + (part.offset - place))?;
        }
        Ok(())
    }

    /// Bytes from `offset` to the next that may not be zero, whole blocks only.
    pub(super) fn zeros_from(&self, offset: u64) -> u64 {
        let next = self.from(offset).first().map_or(self.length, |(place, ..)| *place);
        next.saturating_sub(offset) / BLOCK as u64 * BLOCK as u64
    }

    fn from(&self, offset: u64) -> &[(u64, u64, u64)] {
        &self.segments[self.segments.partition_point(|(place, length, _)| place + length <= offset)..]
    }
}

/// What of an extent lies between `start` and `end`; it must overlap with them.
fn cut(extent: &Extent, start: u64, end: u64) -> Extent {
    let offset = extent.offset.max(start);
    Extent { offset, length: (extent.offset + extent.length).min(end) - offset }
}
