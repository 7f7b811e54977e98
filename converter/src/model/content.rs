//! Contents of a file as a hash of what reads of it give: where the zeros are holes does not count.
//!
//! BLAKE3 over the size (u64, little endian) and then, for each block of 4096 bytes that is not all zeros, its number
//! (u64, little endian) and its bytes; the last block ends with the file.

const BLOCK: u64 = 4096;

/// Takes a file's bytes in order, with holes left out.
pub struct ContentHash {
    hasher: blake3::Hasher,
    size: u64,
    /// Number of the block that is being filled.
    number: u64,
    block: [u8; BLOCK as usize],
}

impl ContentHash {
    /// Of a file of so many bytes, which are zero unless they are written.
    pub fn new(size: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&size.to_le_bytes());
        Self { hasher, size, number: 0, block: [0; BLOCK as usize] }
    }

    /// The next bytes, which begin at `offset`: not before the end of those that came last, and not past the file's end.
    pub fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if offset / BLOCK != self.number {
                self.end_block();
                self.number = offset / BLOCK;
            }
            let at = (offset % BLOCK) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(self.block.len() - at));
            self.block[at..at + now.len()].copy_from_slice(now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    fn end_block(&mut self) {
        let length = self.size.saturating_sub(self.number.saturating_mul(BLOCK)).min(BLOCK) as usize;
        if self.block.iter().any(|&b| b != 0) {
            self.hasher.update(&self.number.to_le_bytes()).update(&self.block[..length]);
            self.block.fill(0);
        }
    }

    /// The hash.
    pub fn finish(mut self) -> [u8; 32] {
        self.end_block();
        *self.hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> [u8; 32] {
        let mut hash = ContentHash::new(bytes.len() as u64);
        hash.write(0, bytes);
        hash.finish()
    }

    #[test]
    fn zeros_count_the_same_written_or_not_and_in_any_pieces() {
        let mut bytes = vec![0; 20_000];
        bytes[5_000..9_000].fill(7);
        bytes[19_999] = 1;
        for step in [1, 511, 4_096, 5_000] {
            let mut hash = ContentHash::new(20_000);
            for (at, piece) in bytes[4_990..9_010].chunks(step).enumerate() {
                hash.write(4_990 + (at * step) as u64, piece);
            }
            hash.write(19_999, &[1]);
            assert_eq!(hash.finish(), whole(&bytes), "{step}");
        }
    }

    #[test]
    fn size_place_and_bytes_count() {
        let with = |size: usize, at: usize, byte: u8| {
            let mut bytes = vec![0; size];
            bytes[at] = byte;
            whole(&bytes)
        };
        let all =
            [with(9_000, 10, 1), with(9_001, 10, 1), with(9_000, 11, 1), with(9_000, 10, 2), with(9_000, 4_106, 1)];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
