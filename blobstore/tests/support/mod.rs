//! Layers for the tests: made from numbers, the same on every machine.

pub mod asked;
pub mod node;
pub mod trickle;

use blobstore::layer::{Flags, Front, LayerError, Options, Section, Summary, Writer};
use std::fs::File;
use std::io::{Read, Seek};

/// What a layer is made of.
#[derive(Debug, Clone)]
pub struct Input {
    pub metadata: Vec<u8>,
    pub chunks: Vec<Vec<u8>>,
    pub flags: Flags,
    pub sections: Vec<Section>,
}

impl Input {
    /// A layer of `metadata_blocks` and of chunks with these numbers of blocks.
    pub fn new(metadata_blocks: usize, chunk_blocks: &[usize]) -> Self {
        let chunks = chunk_blocks.iter().enumerate().map(|(n, blocks)| content(n as u64 + 1, blocks * 4096)).collect();
        Self { metadata: content(0, metadata_blocks * 4096), chunks, flags: Flags::empty(), sections: Vec::new() }
    }

    /// The layer file.
    pub fn write(&self, threads: usize) -> (Summary, Vec<u8>) {
        let mut file = tempfile::tempfile().unwrap();
        let summary = self.write_to(threads, file.try_clone().unwrap()).unwrap();
        let mut out = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut out).unwrap();
        (summary, out)
    }

    /// Writes the layer to a file.
    pub fn write_to(&self, threads: usize, out: File) -> Result<Summary, LayerError> {
        let (metadata, chunks) = (&self.metadata[..], self.chunks.len() as u32);
        let front = Front { metadata, flags: self.flags, sections: &self.sections, chunks };
        let mut writer = Writer::new(&Options { level: 3, threads }, &front, out)?;
        self.chunks.iter().try_for_each(|chunk| writer.push(chunk.clone()))?;
        writer.finish()
    }

    /// What the layer is decompressed: metadata, then data.
    pub fn image(&self) -> Vec<u8> {
        [&self.metadata[..], &self.data()].concat()
    }

    /// The data space.
    pub fn data(&self) -> Vec<u8> {
        self.chunks.concat()
    }
}

/// Bytes that look a little like files: lines that repeat, with noise between, the same for the same seed.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(length + 64);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match state % 3 {
            0 => out.extend_from_slice(&state.to_le_bytes()),
            1 => out.extend_from_slice(format!("line {} of file {seed}\n", state % 50).as_bytes()),
            _ => out.extend(std::iter::repeat_n(0, (state % 40) as usize)),
        }
    }
    out.truncate(length);
    out
}
