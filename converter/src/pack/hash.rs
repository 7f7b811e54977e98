//! The hash of a body, taken while its bytes pass, and the long runs of zero blocks that are found on the way.
//!
//! A long run is not hashed as bytes: it counts as its place and length. So a file that is nearly all holes costs what its
//! data cost. However the bytes come, in whichever pieces, the hash and the runs are the same.

use erofs::BLOCK_U64;

/// Shorter runs are bytes like others, and chunks like others.
pub(super) const RUN_MIN: u64 = 256 << 10;

/// BLAKE3 of a body and its layout.
pub(super) type Hash = [u8; 32];

/// Takes a body from its start.
#[derive(Debug, Default)]
pub(super) struct BodyHasher {
    hasher: blake3::Hasher,
    at: u64,
    /// From here to `at` all is zero, and not hashed yet.
    since: u64,
    runs: Vec<(u64, u64)>,
}

impl BodyHasher {
    /// Where the next byte stands in the body.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes of the body.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        // Within a piece as long as a long run no long run can stand between other bytes.
        for piece in bytes.chunks(RUN_MIN as usize) {
            let leading = leading_zeros(piece);
            if leading < piece.len() {
                self.end_run(self.at + leading as u64);
                let end = piece.len() - trailing_zeros(piece);
                self.hasher.update(&piece[leading..end]);
                self.since = self.at + end as u64;
            }
            self.at += piece.len() as u64;
        }
    }

    /// The next bytes of the body are so many zeros.
    pub(super) fn zeros(&mut self, length: u64) {
        self.at += length;
    }

    /// The hash, with `numbers` in it, and the runs: start and length in bytes, whole blocks.
    pub(super) fn finish(mut self, numbers: impl Iterator<Item = u64>) -> (Hash, Vec<(u64, u64)>) {
        self.end_run(self.at);
        // Behind the body: from its start on that is hashed in the large aligned pieces that BLAKE3 is fast with.
        let runs = self.runs.iter().flat_map(|&(start, length)| [start, length]).chain([self.runs.len() as u64]);
        for number in runs.chain(numbers) {
            self.hasher.update(&number.to_le_bytes());
        }
        (*self.hasher.finalize().as_bytes(), self.runs)
    }

    /// Hashes the zeros up to `end`, but for a long run.
    fn end_run(&mut self, end: u64) {
        let (start, stop) = (self.since.next_multiple_of(BLOCK_U64), end / BLOCK_U64 * BLOCK_U64);
        if stop.saturating_sub(start) >= RUN_MIN {
            self.runs.push((start, stop - start));
            self.hash_zeros((start - self.since) + (end - stop));
        } else {
            self.hash_zeros(end - self.since);
        }
    }

    /// Of no more than a long run and a block at each end.
    fn hash_zeros(&mut self, mut length: u64) {
        const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        while length > 0 {
            let step = length.min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..step as usize]);
            length -= step;
        }
    }
}

const WORD: usize = 64;

fn leading_zeros(bytes: &[u8]) -> usize {
    let words = bytes.chunks(WORD).take_while(|word| is_zero(word)).count();
    let whole = (words * WORD).min(bytes.len());
    whole + bytes[whole..].iter().take_while(|&&byte| byte == 0).count()
}

fn trailing_zeros(bytes: &[u8]) -> usize {
    let words = bytes.rchunks(WORD).take_while(|word| is_zero(word)).count();
    let rest = bytes.len() - (words * WORD).min(bytes.len());
    bytes.len() - rest + bytes[..rest].iter().rev().take_while(|&&byte| byte == 0).count()
}

/// Without an early end, which would keep the compiler from doing all at once.
fn is_zero(word: &[u8]) -> bool {
    word.iter().fold(0, |all, byte| all | byte) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Vec<u8> {
        let mut body = vec![0; 3 << 20];
        for at in [5000, 5001, 700_000, 2 << 20] {
            body[at] = 1;
        }
        body
    }

    fn finish(hasher: BodyHasher) -> ([u8; 32], Vec<(u64, u64)>) {
        hasher.finish([7].into_iter())
    }

    #[test]
    fn hash_and_runs_are_the_same_however_the_bytes_come() {
        let body = body();
        let runs = [(8192, 696_320 - 8192), (700_416, (2 << 20) - 700_416), ((2 << 20) + 4096, (1 << 20) - 4096)];
        let mut hashes = Vec::new();
        for step in [1, 999, 4096, 5000, 256 << 10, 3 << 20] {
            let mut hasher = BodyHasher::default();
            body.chunks(step).for_each(|part| hasher.bytes(part));
            let (hash, found) = finish(hasher);
            assert_eq!(found, runs, "{step}");
            hashes.push(hash);
        }
        let mut announced = BodyHasher::default();
        announced.bytes(&body[..5002]);
        announced.zeros(700_000 - 5002);
        announced.bytes(&body[700_000..]);
        hashes.push(finish(announced).0);
        hashes.dedup();
        assert_eq!(hashes.len(), 1);
    }

    #[test]
    fn a_byte_less_or_elsewhere_is_another_hash() {
        let hash = |body: &[u8]| {
            let mut hasher = BodyHasher::default();
            hasher.bytes(body);
            finish(hasher).0
        };
        let body = body();
        let mut moved = body.clone();
        moved.swap(700_000, 700_000 + 8192);
        let mut hashes = vec![hash(&body), hash(&moved), hash(&body[1..]), hash(&body[..body.len() - 4096])];
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 4);
    }

    #[test]
    fn announced_zeros_join_those_that_are_found() {
        let mut hasher = BodyHasher::default();
        hasher.bytes(&[1; 100]);
        hasher.zeros(200 << 10);
        hasher.bytes(&[0; 100 << 10]);
        hasher.bytes(&[1]);
        assert_eq!(finish(hasher).1, [(4096, 299 << 10 & !4095)]);
        let mut hasher = BodyHasher::default();
        hasher.zeros(RUN_MIN - 4096);
        assert_eq!(finish(hasher).1, []);
    }
}
