//! Long runs of zero blocks, found while a body's bytes pass.

use erofs::BLOCK;

const BLOCK_U64: u64 = BLOCK as u64;

/// Shorter runs are not told of: they are chunks like others.
pub(super) const RUN_MIN: u64 = 256 << 10;

/// Takes a body from its start, in pieces of any length.
#[derive(Debug, Default)]
pub(super) struct Zeros {
    at: u64,
    /// From here to `at` all is zero.
    since: u64,
    runs: Vec<(u64, u64)>,
}

impl Zeros {
    /// The next bytes of the body.
    pub(super) fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let in_block = BLOCK - (self.at % BLOCK_U64) as usize;
            let (block, rest) = bytes.split_at(in_block.min(bytes.len()));
            if is_zero(block) {
                self.zeros(block.len() as u64);
            } else {
                self.end_run();
                self.at += block.len() as u64;
                self.since = self.at;
            }
            bytes = rest;
        }
    }

    /// The next bytes of the body are so many zeros.
    pub(super) fn zeros(&mut self, length: u64) {
        self.at += length;
    }

    /// The runs, as start and length in bytes, whole blocks.
    pub(super) fn finish(mut self) -> Vec<(u64, u64)> {
        self.end_run();
        self.runs
    }

    fn end_run(&mut self) {
        let start = self.since.next_multiple_of(BLOCK_U64);
        let length = (self.at / BLOCK_U64 * BLOCK_U64).saturating_sub(start);
        if length >= RUN_MIN {
            self.runs.push((start, length));
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_same_however_the_bytes_come() {
        let mut body = vec![0; 3 << 20];
        for at in [5000, 5001, 700_000, 2 << 20] {
            body[at] = 1;
        }
        let expect = [(8192, 696_320 - 8192), (700_416, (2 << 20) - 700_416), ((2 << 20) + 4096, (1 << 20) - 4096)];
        for step in [1, 999, 4096, 5000, 3 << 20] {
            let mut zeros = Zeros::default();
            body.chunks(step).for_each(|part| zeros.bytes(part));
            assert_eq!(zeros.finish(), expect, "{step}");
        }
    }

    #[test]
    fn announced_zeros_join_those_that_are_found() {
        let mut zeros = Zeros::default();
        zeros.bytes(&[1; 100]);
        zeros.zeros(200 << 10);
        zeros.bytes(&[0; 100 << 10]);
        zeros.bytes(&[1]);
        assert_eq!(zeros.finish(), [(4096, 299 << 10 & !4095)]);
        let mut zeros = Zeros::default();
        zeros.zeros(RUN_MIN - 4096);
        assert_eq!(zeros.finish(), []);
    }
}
