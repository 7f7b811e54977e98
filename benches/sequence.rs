//! One large file read from its start to its end, cold, from a bucket that is some milliseconds away (an S3 server
//! behind a proxy, `away.rs`): as built, without readahead, and with one request at a time.
//!
//! Half of the file is noise: it is stored as about half its length. In the test pass it is small, and each contender
//! runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::away::Away;
use benches::lazy::{Contender, Lamina, compare};
use benches::{Report, tiny};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

const ROUNDS: usize = 3;
/// What is read at a time, as `cp` does.
const READ: usize = 256 << 10;
const AS_BUILT: &str = "as built";
const CONTENDERS: &[(&str, &str)] = &[
    (AS_BUILT, ""),
    ("without readahead", "readahead = 0\nneighbours = false\n"),
    ("one request at a time", "readahead = 0\nneighbours = false\ncoalesce = 0\nhedge = \"off\"\nconcurrency = 1\n"),
];

/// Blocks of 4 KiB, every other one noise.
fn write_file(path: &Path, length: u64) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let mut noise = blake3::Hasher::new().update(b"sequence").finalize_xof();
    let mut block = [0; 8192];
    for n in 0..length / block.len() as u64 {
        noise.fill(&mut block[..4096]);
        block[4096..].fill(n as u8);
        out.write_all(&block).unwrap();
    }
    out.into_inner().unwrap();
}

/// Reads a file; gives its length.
fn read_file(path: &Path) -> u64 {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; READ];
    let mut total = 0;
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return total,
            n => total += n as u64,
        }
    }
}

fn main() {
    if !tests::possible("sequence") || Away::start("sequence", Duration::ZERO).is_none() {
        return;
    }
    let length = if tiny() { 8 << 20 } else { 1 << 30 };
    let work = tempfile::tempdir_in(benches::target()).unwrap();
    write_file(&work.path().join("file"), length);
    let mut report = Report::new("sequence", AS_BUILT);
    let latencies: &[u64] = if tiny() { &[5] } else { &[5, 20] };
    for latency in latencies {
        let away = Duration::from_millis(*latency);
        let contender = |(name, fetch): &(&str, &str)| -> Box<dyn Contender> {
            Box::new(Lamina::directory_in_bucket(name, work.path(), fetch, away).unwrap())
        };
        let mut contenders: Vec<_> = CONTENDERS.iter().map(contender).collect();
        let task = format!("{} MiB, {latency} ms away", length >> 20);
        compare(&mut report, &task, &mut contenders, if tiny() { 1 } else { ROUNDS }, |root| {
            assert_eq!(read_file(&root.join("file")), length);
        });
    }
    report.finish();
}
