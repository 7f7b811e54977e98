//! Every frame of a layer in file order, each verified and decompressed: for who needs all bytes, but few at a time.

use super::error::Result;
use super::format::ChunkEntry;
use super::index::Index;
use super::read::{decode, off_the_runtime};
use crate::store::Store;

/// Stored bytes asked for in one request: many frames, and still little memory.
const BATCH: u64 = 8 << 20;

/// A frame, by its place in the layer file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    number: Number,
    /// Byte of the file at which it is stored.
    pub(super) offset: u64,
    /// Its lengths and hash.
    pub(super) entry: ChunkEntry,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Metadata(usize),
    Chunk(u32),
}

impl Frame {
    /// All frames behind the index.
    pub(super) fn all(index: &Index) -> impl Iterator<Item = Self> + '_ {
        let metadata = index.metadata_frames().enumerate();
        let metadata = metadata.map(|(n, (offset, entry))| Self { number: Number::Metadata(n), offset, entry });
        let chunks = index.chunks();
        let chunks = chunks.map(|at| Self { number: Number::Chunk(at.chunk), offset: at.file_offset, entry: at.entry });
        metadata.chain(chunks)
    }

    /// Its content, by its stored bytes; an error says which frame it is.
    pub(super) fn decode(&self, stored: &[u8]) -> Result<Vec<u8>> {
        decode(stored, &self.entry).map_err(|error| match self.number {
            Number::Metadata(number) => error.within(&format!("metadata frame {number} at byte {}", self.offset)),
            Number::Chunk(number) => error.at_chunk(number),
        })
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.entry.stored_len))
    }
}

/// Reads all frames of the layer object at `key`, whose index this is, and hands each to `take`: its stored bytes, and the
/// content that they were verified to hold. Gives back `state`, which `take` works on. The index frame itself, and what
/// follows the layer, are left to the caller. Memory: some 16 MiB.
pub async fn walk<T: Send + 'static>(
    store: &dyn Store,
    key: &str,
    index: &Index,
    mut state: T,
    take: fn(&mut T, &[u8], &[u8]),
) -> Result<T> {
    let mut frames = Frame::all(index).peekable();
    while let Some(first) = frames.next() {
        let (start, mut end, mut batch) = (first.offset, first.end(), vec![first]);
        while let Some(next) = frames.next_if(|next| next.offset - start < BATCH) {
            end = next.end();
            batch.push(next);
        }
        let bytes = store.get_range(key, start..end).await?;
        state = off_the_runtime(move || {
            each(&bytes, &batch, |stored, content| take(&mut state, stored, content)).map(|()| state)
        })
        .await?;
    }
    Ok(state)
}

/// Takes frames that lie side by side in `bytes`.
fn each(bytes: &[u8], batch: &[Frame], mut take: impl FnMut(&[u8], &[u8])) -> Result<()> {
    let mut rest = bytes;
    for frame in batch {
        let (stored, after) = rest.split_at_checked(frame.entry.stored_len as usize).unwrap_or((rest, &[]));
        rest = after;
        take(stored, &frame.decode(stored)?);
    }
    Ok(())
}
