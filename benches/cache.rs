//! The chunk cache: the time to the first served read after a start, by the number of chunks; and reads by many threads.
//!
//! Starts: a cache of small chunks on the disk that holds the clone, its files in the page cache; `Cache::open` until a chunk has been read,
//! against the time until all chunks are known. Reads: 256-byte chunks from the page cache, so that it is the map
//! which is measured; each thread makes the same number of reads, so with a processor each, equal seconds mean perfect scaling.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::{Report, Row, target, tiny};
use blobstore::cache::{Cache, Options, Reserve};
use blobstore::meter::Meter;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

const ROUNDS: usize = 7;
const LENGTH: usize = 256;

fn open(dir: &Path) -> Cache {
    let options = Options { reserve: Reserve::Bytes(0), queue: 1 << 16, ..Options::new(2 << 30) };
    Cache::open(dir, &options, &Meter::new("")).unwrap()
}

fn chunk(n: u64) -> ([u8; 32], Vec<u8>) {
    let bytes: Vec<u8> = n.to_le_bytes().into_iter().cycle().take(LENGTH).collect();
    (*blake3::hash(&bytes).as_bytes(), bytes)
}

fn fill(dir: &Path, count: u64) {
    let cache = open(dir);
    let chunks = cache.chunks.as_ref().unwrap();
    for n in 0..count {
        let (hash, bytes) = chunk(n);
        assert!(chunks.put(hash, bytes.into()));
        if n % 4096 == 0 {
            chunks.flush();
        }
    }
}

/// Seconds until a chunk has been read, and until all are known.
fn start(dir: &Path, count: u64) -> [f64; 2] {
    let (hash, bytes) = chunk(count / 2);
    let begun = Instant::now();
    let cache = open(dir);
    let chunks = cache.chunks.as_ref().unwrap();
    assert_eq!(chunks.get(&hash, LENGTH as u32).unwrap(), bytes);
    let first = begun.elapsed().as_secs_f64();
    chunks.flush();
    let all = begun.elapsed().as_secs_f64();
    assert_eq!(chunks.stats().chunks, count);
    [first, all]
}

/// Seconds that so many threads need for their reads.
fn read(cache: &Cache, threads: u64, reads: u64, hashes: &[[u8; 32]]) -> f64 {
    let chunks = cache.chunks.as_ref().unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for n in 0..reads {
                    let at = (n * 7919 + thread * 104_729) as usize % hashes.len();
                    assert!(chunks.get(&hashes[at], LENGTH as u32).is_some());
                }
            });
        }
    });
    begun.elapsed().as_secs_f64()
}

fn main() {
    fs::create_dir_all(target().join("bench")).unwrap();
    let mut report = Report::new("cache", "first read");
    let row = |task: String, name: &str, seconds| Row { task, name: name.into(), seconds, notes: vec![] };
    let rounds = if tiny() { 1 } else { ROUNDS };
    for count in if tiny() { [10, 100, 1_000] } else { [10_000, 100_000, 1_000_000] } {
        let dir = tempfile::tempdir_in(target().join("bench")).unwrap();
        fill(dir.path(), count);
        let starts: Vec<_> = (0..rounds).map(|_| start(dir.path(), count)).collect();
        for (n, name) in ["first read", "all chunks known"].into_iter().enumerate() {
            report.rows.push(row(format!("start, {count} chunks"), name, starts.iter().map(|s| s[n]).collect()));
        }
    }
    let dir = tempfile::tempdir_in(target().join("bench")).unwrap();
    let count = if tiny() { 100 } else { 100_000 };
    fill(dir.path(), count);
    let cache = open(dir.path());
    cache.chunks.as_ref().unwrap().flush();
    let hashes: Vec<_> = (0..count).map(|n| chunk(n).0).collect();
    let contenders = [1, 2, 8];
    let mut seconds = contenders.map(|_| Vec::new());
    for _ in 0..rounds {
        for (threads, seconds) in contenders.into_iter().zip(&mut seconds) {
            seconds.push(read(&cache, threads, 10 * count, &hashes));
        }
    }
    for (threads, seconds) in contenders.into_iter().zip(seconds) {
        report.rows.push(row(format!("{} reads each", 10 * count), &format!("{threads} threads"), seconds));
    }
    report.finish();
}
