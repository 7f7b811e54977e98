//! Chunks kept on the disk as they are stored, which is what is built, or decompressed: what filling a cache costs, and
//! what a read costs that the page cache cannot answer.
//!
//! The chunks are those of the image's layers, and all is done by one thread, from the bytes that came from the store to
//! those that the kernel is given: verified, kept, decompressed; and later read, verified and, where they are compressed,
//! decompressed. Reads are in a mixed order, of a sample; cold ones from the disk, warm ones of files in the page cache.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::image;
use benches::process::processor_time;
use benches::{Report, Row, drop_caches, median, target, tiny};
use blobstore::cache::{Cache, Options, Reserve};
use blobstore::layer::{ChunkEntry, Index, decode};
use blobstore::meter::Meter;
use bytes::Bytes;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;
use tests::node::Node;
use tests::registry::layers;

const ROUNDS: usize = 5;
const SAMPLE: usize = 1000;
const STORED: &str = "as stored";

/// A chunk: how it is described, and the bytes as they are stored.
type Chunk = (ChunkEntry, Bytes);

/// All chunks of an image's layers.
fn chunks(node: &Node, layout: &Path) -> Vec<Chunk> {
    let report = node.json(&["convert", &format!("oci:{}", layout.display()), "--name", "bench.local/image:1"]);
    let mut found = Vec::new();
    for id in layers(&report) {
        let file = File::open(node.path("store/layers").join(&id[..2]).join(&id)).unwrap();
        for located in Index::of_file(&file).unwrap().chunks() {
            let mut stored = vec![0; located.entry.stored_len as usize];
            file.read_exact_at(&mut stored, located.file_offset).unwrap();
            found.push((located.entry, stored.into()));
        }
    }
    found
}

/// What a contender keeps of a chunk, and what it makes of that again.
trait Form {
    fn keep(&self, chunk: &Chunk) -> ([u8; 32], Bytes);
    fn read(&self, cache: &Cache, entry: &ChunkEntry, kept: &([u8; 32], u32)) -> Vec<u8>;
}

struct Stored;

impl Form for Stored {
    fn keep(&self, (entry, stored): &Chunk) -> ([u8; 32], Bytes) {
        std::hint::black_box(decode(stored, entry).unwrap());
        (entry.hash, stored.clone())
    }

    fn read(&self, cache: &Cache, entry: &ChunkEntry, (hash, length): &([u8; 32], u32)) -> Vec<u8> {
        decode(&cache.chunks.as_ref().unwrap().get(hash, *length).unwrap(), entry).unwrap()
    }
}

struct Decompressed;

impl Form for Decompressed {
    fn keep(&self, (entry, stored): &Chunk) -> ([u8; 32], Bytes) {
        let content = decode(stored, entry).unwrap();
        (*blake3::hash(&content).as_bytes(), content.into())
    }

    fn read(&self, cache: &Cache, _: &ChunkEntry, (hash, length): &([u8; 32], u32)) -> Vec<u8> {
        let content = cache.chunks.as_ref().unwrap().get(hash, *length).unwrap();
        assert_eq!(blake3::hash(&content).as_bytes(), hash);
        content
    }
}

/// Seconds of a step with processor seconds and bytes written, both of this process.
fn cost(step: impl FnOnce()) -> (f64, f64, f64) {
    let cpu = || processor_time(std::process::id());
    let written = || -> f64 {
        let io = fs::read_to_string("/proc/self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap()
    };
    let (begun, cpu_before, written_before) = (Instant::now(), cpu(), written());
    step();
    (begun.elapsed().as_secs_f64(), cpu() - cpu_before, written() - written_before)
}

/// One round: filling, cold reads, warm reads.
fn round(form: &dyn Form, chunks: &[Chunk]) -> [(f64, f64, f64); 3] {
    let dir = tempfile::tempdir_in(target().join("bench")).unwrap();
    let options = Options { reserve: Reserve::Bytes(0), queue_bytes: 256 << 20, ..Options::new(8 << 30) };
    let cache = Cache::open(dir.path(), &options, &Meter::default()).unwrap();
    let mut kept = Vec::new();
    let filled = cost(|| {
        let cached = cache.chunks.as_ref().unwrap();
        for (n, chunk) in chunks.iter().enumerate() {
            let (hash, bytes) = form.keep(chunk);
            kept.push((hash, bytes.len() as u32));
            assert!(cached.put(hash, bytes));
            if n % 64 == 0 {
                cached.flush();
            }
        }
        cached.flush();
        rustix::fs::sync();
    });
    let sample = || (0..SAMPLE.min(chunks.len())).map(|n| n * 7919 % chunks.len());
    let read = || cost(|| sample().for_each(|n| drop(std::hint::black_box(form.read(&cache, &chunks[n].0, &kept[n])))));
    drop_caches();
    [filled, read(), read()]
}

fn main() {
    fs::create_dir_all(target().join("bench")).unwrap();
    let chunks = chunks(&Node::default(), &image("python-image"));
    let mut report = Report::new("kept", STORED);
    let forms: [(&str, &dyn Form); 2] = [(STORED, &Stored), ("decompressed", &Decompressed)];
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..if tiny() { 1 } else { ROUNDS } {
        for ((_, form), rounds) in forms.iter().zip(&mut rounds) {
            rounds.push(round(*form, &chunks));
        }
    }
    let reads = SAMPLE.min(chunks.len());
    let tasks = ["fill".to_owned(), format!("{reads} reads, disk"), format!("{reads} reads, page cache")];
    for (step, task) in tasks.iter().enumerate() {
        for ((name, _), rounds) in forms.iter().zip(&rounds) {
            let of = |value: fn(&(f64, f64, f64)) -> f64| rounds.iter().map(|r| value(&r[step])).collect::<Vec<f64>>();
            let note = |name: &str, value: f64| (name.to_owned(), format!("{value:.2}"));
            let notes = vec![note("CPU s", median(&of(|r| r.1))), note("MB written", median(&of(|r| r.2)) / 1e6)];
            report.rows.push(Row { task: task.clone(), name: (*name).to_owned(), seconds: of(|r| r.0), notes });
        }
    }
    report.finish();
}
