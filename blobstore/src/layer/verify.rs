//! Every byte of a layer read again: hashes, frames, lengths, and that it is the layer its name says.

use super::error::{LayerError, Result, malformed};
use super::format;
use super::id::LayerId;
use super::index::Index;
use super::read::{open_file, read_index};
use super::walk::{Frame, walk};
use crate::store::Store;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A layer whose every byte was found right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Its id.
    pub id: LayerId,
    /// Bytes of index, metadata and data frames.
    pub file_len: u64,
    /// Bytes of the image, decompressed.
    pub image_bytes: u64,
    /// Number of data chunks.
    pub chunks: u32,
    /// Bytes of further skippable frames behind the layer.
    pub trailing: u64,
}

/// Verifies the layer file at `path`. It must be the layer `expect`, where given; else, where the file's name is a
/// layer id, that one. Blocks; memory: the index is mapped, frames are read one by one.
pub fn verify_file(path: &Path, expect: Option<&LayerId>) -> Result<Verified> {
    let reading = || format!("reading {}", path.display());
    let file = open_file(path)?;
    let size = file.metadata().map_err(LayerError::io(reading()))?.len();
    let index = Index::of_file(&file)?;
    let named = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    check_name(&index, expect.copied().or(named))?;
    check_size(&index, size)?;

    let read = |offset: u64, length: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset).map_err(LayerError::io(reading()))?;
        Ok(bytes)
    };
    for frame in Frame::all(&index) {
        frame.decode(&read(frame.offset, frame.entry.stored_len.into())?)?;
    }
    let mut trailer = Trailer::new(&index, size);
    while let Some(at) = trailer.next_header() {
        trailer.pass(&read(at, format::FRAME_HEADER as u64)?)?;
    }
    trailer.finish(&index)
}

/// Verifies the layer object at `key`. It must be the layer `expect`, where given; else, where the key's last part is
/// a layer id, that one. Memory: the index and some 16 MiB.
pub async fn verify_object(store: &dyn Store, key: &str, expect: Option<&LayerId>) -> Result<Verified> {
    let size = store.stat(key).await?.size;
    let named = key.rsplit('/').next().and_then(|name| name.parse().ok());
    let expect = expect.copied().or(named);
    let index = read_index(store, key, expect.as_ref()).await?;
    check_name(&index, expect)?;
    check_size(&index, size)?;

    walk(store, key, &index, (), |(), _, _| {}).await?;
    let mut trailer = Trailer::new(&index, size);
    while let Some(at) = trailer.next_header() {
        trailer.pass(&store.get_range(key, at..at + format::FRAME_HEADER as u64).await?)?;
    }
    trailer.finish(&index)
}

fn check_name(index: &Index, expect: Option<LayerId>) -> Result<()> {
    match expect {
        Some(id) if id != index.id() => Err(LayerError::corrupt(format!("it is {}, not {id}", index.id()))),
        _ => Ok(()),
    }
}

fn check_size(index: &Index, size: u64) -> Result<()> {
    match size < index.file_len() {
        true => Err(LayerError::corrupt(format!("{size} bytes of a layer of {}", index.file_len()))),
        false => Ok(()),
    }
}

/// What stands behind the last data frame: only skippable frames may, else `zstd -d` would add to the image or fail.
struct Trailer {
    at: u64,
    size: u64,
}

impl Trailer {
    fn new(index: &Index, size: u64) -> Self {
        Self { at: index.file_len(), size }
    }

    /// Where the next frame's header stands; `None` at the end, or where too few bytes are left for one.
    fn next_header(&self) -> Option<u64> {
        (self.size - self.at >= format::FRAME_HEADER as u64).then_some(self.at)
    }

    fn pass(&mut self, header: &[u8]) -> Result<()> {
        let (Some(magic), Some(length)) = (header.first_chunk(), header.get(4..).and_then(|rest| rest.first_chunk()))
        else {
            return Err(malformed!("cut short at byte {}", self.at));
        };
        let next = self.at + format::FRAME_HEADER as u64 + u64::from(u32::from_le_bytes(*length));
        // The sixteen magics of skippable frames differ in their last four bits.
        if u32::from_le_bytes(*magic) & !15 != format::SKIPPABLE_MAGIC & !15 || next > self.size {
            return Err(malformed!("bytes at {} that are no skippable frame", self.at));
        }
        self.at = next;
        Ok(())
    }

    fn finish(self, index: &Index) -> Result<Verified> {
        if self.at != self.size {
            return Err(malformed!("{} bytes at the end that are no skippable frame", self.size - self.at));
        }
        Ok(Verified {
            id: index.id(),
            file_len: index.file_len(),
            image_bytes: index.image_blocks() * format::BLOCK,
            chunks: index.chunk_count(),
            trailing: self.size - index.file_len(),
        })
    }
}
