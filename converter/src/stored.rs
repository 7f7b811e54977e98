//! The contents of stored files, for who reads many of them in the order of their paths.
//!
//! Small files share chunks with their neighbours, and a stack's layers take turns: so the chunk that was read last of
//! each layer is kept. Every chunk is verified before it is used.

use crate::below::StoredLayer;
use crate::error::{Error, Result};
use crate::pack::Spool;
use crate::tar::{Extent, Shape};
use crate::tree::Placed;
use blobstore::layer::Located;
use erofs::{BLOCK_U64, Content};
use std::collections::HashMap;
use tokio::runtime::Handle;

/// Most bytes of chunks that are kept.
const KEPT: usize = 64 << 20;

/// Reads contents of the layers of a stack. Must not be used on one of the runtime's own threads.
#[derive(Debug)]
pub(crate) struct StoredContents<'a> {
    layers: &'a [StoredLayer],
    runtime: &'a Handle,
    /// The last chunk of each layer.
    chunks: HashMap<usize, (Located, Vec<u8>)>,
}

/// A run of a file's bytes that are stored; what lies between two runs is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Where it begins in its layer's data.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) length: u64,
}

impl Run {
    /// What is left behind its first bytes.
    fn after(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, start: self.start + bytes, length: self.length - bytes }
    }
}

/// The stored bytes of a file, in order; neighbours in file and data are one run.
pub(crate) fn runs(content: &Content) -> Vec<Run> {
    match content {
        Content::Plain { size: 0, .. } => Vec::new(),
        Content::Plain { size, start } => {
            vec![Run { offset: 0, start: start.saturating_mul(BLOCK_U64), length: *size }]
        }
        Content::Sparse { size, chunk_bits, chunks } => {
            let chunk = BLOCK_U64 << chunk_bits;
            let mut runs: Vec<Run> = Vec::new();
            for (start, offset) in chunks.iter().zip((0..).step_by(chunk as usize)) {
                let Some(start) = start.map(|start| start.saturating_mul(BLOCK_U64)) else { continue };
                let length = chunk.min(size.saturating_sub(offset));
                match runs.last_mut() {
                    Some(last) if last.offset + last.length == offset && last.start + last.length == start => {
                        last.length += length;
                    }
                    _ => runs.push(Run { offset, start, length }),
                }
            }
            runs
        }
    }
}

impl<'a> StoredContents<'a> {
    /// Of layers, bottom to top.
    pub(crate) fn new(layers: &'a [StoredLayer], runtime: &'a Handle) -> Self {
        Self { layers, runtime, chunks: HashMap::new() }
    }

    /// Hands the bytes of a run of a layer to `sink`, piece by piece in order.
    pub(crate) fn read(&mut self, layer: usize, run: &Run, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut left = *run;
        while left.length > 0 {
            let piece = self.piece(layer, &left)?;
            sink(piece)?;
            left = left.after(piece.len() as u64);
        }
        Ok(())
    }

    /// Copies a file's contents into a spool; its number there.
    pub(crate) fn copy(&mut self, from: &Placed, spool: &mut Spool) -> Result<u32> {
        let runs = runs(&from.content);
        let holes = matches!(from.content, Content::Sparse { .. });
        let extent = |run: &Run| Extent { offset: run.offset, length: run.length };
        let shape = Shape { size: from.content.size(), map: holes.then(|| runs.iter().map(extent).collect()) };
        let (mut runs, mut left) = (runs.into_iter(), Run { offset: 0, start: 0, length: 0 });
        spool.add(&shape, |buffer| {
            if left.length == 0 {
                let Some(next) = runs.next() else { return Ok(0) };
                left = next;
            }
            let piece = self.piece(from.layer, &left)?;
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece[..count]);
            left = left.after(count as u64);
            Ok(count)
        })
    }

    /// Bytes from a run's start on: as many as one chunk has of them.
    fn piece(&mut self, layer: usize, run: &Run) -> Result<&[u8]> {
        let (start, chunk) = self.chunk(layer, run.start)?;
        let rest = &chunk[(run.start - start) as usize..];
        Ok(&rest[..rest.len().min(usize::try_from(run.length).unwrap_or(usize::MAX))])
    }

    /// The chunk with byte `at` of a layer's data, and where it starts.
    fn chunk(&mut self, layer: usize, at: u64) -> Result<(u64, &[u8])> {
        let inside = |(located, content): &(Located, Vec<u8>)| {
            at.checked_sub(located.data_start).is_some_and(|n| n < content.len() as u64)
        };
        if !self.chunks.get(&layer).is_some_and(inside) {
            let gone = || Error::failed("reading a file", "its layer is not known");
            let fresh = self.layers.get(layer).ok_or_else(gone)?.chunk(at, self.runtime)?;
            if self.chunks.values().map(|(_, content)| content.len()).sum::<usize>() > KEPT {
                self.chunks.clear();
            }
            self.chunks.insert(layer, fresh);
        }
        Ok(self.chunks.get(&layer).map_or((at, &[][..]), |(located, content)| (located.data_start, content)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_file_with_holes_are_joined_where_the_data_is_one() {
        let chunks = vec![Some(3), Some(4), None, Some(5), Some(9)];
        let content = Content::Sparse { size: 4 * 4096 + 10, chunk_bits: 0, chunks };
        let run = |offset: u64, start: u64, length| Run { offset: offset * 4096, start: start * 4096, length };
        assert_eq!(runs(&content), [run(0, 3, 8192), run(3, 5, 4096), run(4, 9, 10)]);
        assert!(runs(&Content::EMPTY).is_empty());
    }
}
