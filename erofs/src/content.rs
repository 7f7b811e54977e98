//! What a regular file is made of, in blocks of the data space. Where these blocks come from is the caller's business.

use crate::BLOCK_U64;

/// log2 of the largest chunk size / block size that the format has room for.
pub(crate) const MAX_CHUNK_BITS: u8 = 31;

/// The contents of a regular file. Block numbers count from the start of the data space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Contiguous contents. Of an empty file `start` means nothing and is read back as 0.
    Plain {
        /// Bytes.
        size: u64,
        /// The first block.
        start: u64,
    },
    /// Contents with holes, in chunks of `4096 << chunk_bits` bytes. An empty one is read back as an empty `Plain`.
    Sparse {
        /// Bytes.
        size: u64,
        /// log2 of chunk size / 4096, at most 31.
        chunk_bits: u8,
        /// The first block of each chunk, `None` for a hole. The last chunk ends with the file, at a block boundary.
        chunks: Vec<Option<u64>>,
    },
}

impl Content {
    /// The contents of an empty file.
    pub const EMPTY: Content = Content::Plain { size: 0, start: 0 };

    /// Bytes.
    pub fn size(&self) -> u64 {
        match self {
            Content::Plain { size, .. } | Content::Sparse { size, .. } => *size,
        }
    }

    /// How to store a file of `size` bytes of which only the ranges `data`, as (offset, length), are not zero: the chunk
    /// size and the pieces of the file that must be stored.
    ///
    /// Small chunks make a long chunk map, large ones make zeros be stored between the data. The chunk size is the one that
    /// costs least where an entry of the map counts as its 4 bytes and a stored block as one byte: about what the
    /// zeros of a block cost when compressed, with their share of a chunk table.
    pub fn sparse(size: u64, data: &[(u64, u64)]) -> SparseLayout {
        let data = clip(size, data);
        let cost = |bits: &u8| u128::from(chunk_count(size, *bits)) * 4 + u128::from(stored_blocks(size, &data, *bits));
        let chunk_bits = (0..=MAX_CHUNK_BITS).min_by_key(cost).unwrap_or(0);
        let chunk = BLOCK_U64 << chunk_bits;
        let runs = chunk_runs(&data, chunk_bits);
        let pieces = runs.flat_map(|(first, last)| first..=last).map(|index| {
            let offset = index * chunk;
            Piece { offset, len: chunk.min(size - offset) }
        });
        SparseLayout { size, chunk_bits, pieces: pieces.collect() }
    }
}

/// How many chunks a file has.
pub(crate) fn chunk_count(size: u64, chunk_bits: u8) -> u64 {
    size.div_ceil(BLOCK_U64 << chunk_bits)
}

/// How many blocks of data the chunk at `index` stands for, the file's last one being cut at its end.
pub(crate) fn chunk_blocks(size: u64, chunk_bits: u8, index: u64) -> u64 {
    let chunk = BLOCK_U64 << chunk_bits;
    let offset = index.saturating_mul(chunk);
    size.saturating_sub(offset).min(chunk).div_ceil(BLOCK_U64)
}

/// The ranges sorted, cut at the end of the file, without empty ones.
fn clip(size: u64, data: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let end = |&(offset, len): &(u64, u64)| (offset, offset.saturating_add(len).min(size));
    let mut ranges: Vec<_> = data.iter().map(end).filter(|(start, end)| start < end).collect();
    ranges.sort_unstable();
    ranges
}

/// Runs of chunks, as (first, last), that hold some of `data`; no chunk is in two runs.
fn chunk_runs(data: &[(u64, u64)], chunk_bits: u8) -> impl Iterator<Item = (u64, u64)> {
    let chunk = BLOCK_U64 << chunk_bits;
    let mut free = 0;
    data.iter().filter_map(move |&(start, end)| {
        let (first, last) = ((start / chunk).max(free), (end - 1) / chunk);
        free = free.max(last + 1);
        (first <= last).then_some((first, last))
    })
}

fn stored_blocks(size: u64, data: &[(u64, u64)], chunk_bits: u8) -> u64 {
    let run = |(first, last)| (last - first) * (1 << chunk_bits) + chunk_blocks(size, chunk_bits, last);
    chunk_runs(data, chunk_bits).map(run).sum()
}

/// How a file with holes is best stored; see [`Content::sparse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseLayout {
    /// Bytes of the file.
    pub size: u64,
    /// log2 of chunk size / 4096.
    pub chunk_bits: u8,
    /// What must be stored, in order of offset, each from a block boundary of the data space on.
    pub pieces: Vec<Piece>,
}

/// A part of a file that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the file, in bytes: a multiple of the chunk size.
    pub offset: u64,
    /// Bytes: the chunk size, or less at the end of the file.
    pub len: u64,
}

impl SparseLayout {
    /// Bytes of the pieces.
    pub fn stored(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// The contents, once it is known at which block each piece begins. Missing starts make holes.
    pub fn content(&self, starts: impl IntoIterator<Item = u64>) -> Content {
        let mut chunks = vec![None; chunk_count(self.size, self.chunk_bits) as usize];
        for (piece, start) in self.pieces.iter().zip(starts) {
            chunks[(piece.offset / (BLOCK_U64 << self.chunk_bits)) as usize] = Some(start);
        }
        Content::Sparse { size: self.size, chunk_bits: self.chunk_bits, chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TB: u64 = 1_000_000_000_000;

    #[test]
    fn a_file_that_is_one_hole_has_one_chunk() {
        let layout = Content::sparse(TB * 5 / 4, &[]);
        assert!(layout.pieces.is_empty());
        assert_eq!(
            layout.content([]),
            Content::Sparse { size: TB * 5 / 4, chunk_bits: layout.chunk_bits, chunks: vec![None] }
        );
    }

    #[test]
    fn a_small_file_stores_little_more_than_its_data() {
        let layout = Content::sparse(64 << 10, &[(0, 10), (32 << 10, 4097)]);
        let cost = chunk_count(layout.size, layout.chunk_bits) * 4
            + layout.pieces.iter().map(|piece| piece.len / 4096).sum::<u64>();
        assert!(cost <= 24, "{layout:?}");
        let full = Content::sparse(64 << 10, &[(0, 64 << 10)]);
        assert_eq!(full.pieces, [Piece { offset: 0, len: 64 << 10 }]);
    }

    #[test]
    fn a_huge_file_with_little_data_costs_little() {
        let size = TB * 5 / 4;
        let layout = Content::sparse(size, &[(0, 292), (size - 292, 292)]);
        let entries = chunk_count(size, layout.chunk_bits);
        let stored: u64 = layout.pieces.iter().map(|piece| piece.len).sum();
        assert!(entries * 4 < 64 << 10 && stored < 512 << 20, "{entries} entries, {stored} bytes");
        assert_eq!(layout.pieces.len(), 2);
    }

    #[test]
    fn ranges_may_overlap_and_lie_outside() {
        let layout = Content::sparse(10_000, &[(9_000, u64::MAX), (20_000, 1), (0, 5_000), (100, 200), (3, 0)]);
        let covered: u64 = layout.pieces.iter().map(|piece| piece.len).sum();
        assert_eq!(covered, 10_000);
        assert!(Content::sparse(0, &[(0, 1)]).pieces.is_empty());
        assert!(Content::sparse(u64::MAX >> 1, &[]).pieces.is_empty());
    }
}
