//! Cold reads of a directory store: direct, as on a 3FS mount, against ordinary ones through the page cache.
//!
//! One file of noise on the disk that holds the clone. Two tasks: its chunks (256 KiB, in an order without order, 16 requests at
//! once) and all of it in requests of 8 MiB, one after the other. The baseline is plain pread by one thread, in the same
//! pieces and order. `LAMINA_BENCH_DIR=DIR` reads elsewhere, on a 3FS mount for one.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::{Report, Row, target, tiny};
use blobstore::store::{FileStore, Settings, Store, ThreeFsStore};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tests::tree::noise;
use tokio::task::JoinSet;

const ROUNDS: usize = 7;
const BASELINE: &str = "pread, one thread";
const NAME: &str = "noise";

/// Ranges of the file, and how many are asked for at once.
struct Task {
    name: &'static str,
    ranges: Vec<Range<u64>>,
    at_once: usize,
}

fn tasks(length: u64) -> [Task; 2] {
    let pieces = |size: u64| (0..length / size).map(move |n| n * size..(n + 1) * size);
    let mut chunks: Vec<_> = pieces(256 << 10).collect();
    // Any fixed order without runs will do.
    chunks.sort_by_key(|range| range.start.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    [
        Task { name: "chunks, 16 at once", ranges: chunks, at_once: 16 },
        Task { name: "whole, 8 MiB a request", ranges: pieces(8 << 20).collect(), at_once: 1 },
    ]
}

/// Takes the file out of the page cache, and nothing else.
fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn pread(path: &Path, task: &Task) {
    let file = File::open(path).unwrap();
    for range in &task.ranges {
        let mut piece = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut piece, range.start).unwrap();
    }
}

async fn through(store: Arc<dyn Store>, task: &Task) {
    let mut under_way = JoinSet::new();
    for range in task.ranges.iter().cloned() {
        if under_way.len() == task.at_once {
            under_way.join_next().await.unwrap().unwrap();
        }
        let store = store.clone();
        under_way.spawn(async move {
            assert_eq!(store.get_range(NAME, range.clone()).await.unwrap().len() as u64, range.end - range.start)
        });
    }
    while let Some(done) = under_way.join_next().await {
        done.unwrap();
    }
}

fn main() {
    if !tests::possible("direct reads") {
        return;
    }
    let at = std::env::var_os("LAMINA_BENCH_DIR").map(PathBuf::from).unwrap_or_else(|| target().join("bench"));
    fs::create_dir_all(&at).unwrap();
    let dir = tempfile::tempdir_in(at).unwrap();
    let length = if tiny() { 16 << 20 } else { 512 << 20 };
    fs::write(dir.path().join(NAME), noise(1, length)).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut report = Report::new("direct_reads", BASELINE);
    for task in tasks(length as u64) {
        let names = [BASELINE, "file://", "3fs://"];
        let mut seconds = vec![Vec::new(); names.len()];
        for _ in 0..if tiny() { 1 } else { ROUNDS } {
            for (n, seconds) in seconds.iter_mut().enumerate() {
                evict(&dir.path().join(NAME));
                let begun = Instant::now();
                match n {
                    0 => pread(&dir.path().join(NAME), &task),
                    1 => runtime.block_on(through(Arc::new(FileStore::new(dir.path())), &task)),
                    _ => {
                        let store = ThreeFsStore::new(dir.path(), &Settings::default()).unwrap();
                        runtime.block_on(through(Arc::new(store), &task));
                    }
                }
                seconds.push(begun.elapsed().as_secs_f64());
            }
        }
        let rows = names.into_iter().zip(seconds);
        report.rows.extend(rows.map(|(name, seconds)| Row {
            task: task.name.into(),
            name: name.into(),
            seconds,
            notes: vec![],
        }));
    }
    report.finish();
}
