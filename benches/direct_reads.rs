//! Cold reads of a directory store: direct, as on a 3FS mount, against ordinary ones through the page cache, and against
//! what io_uring would give in their place.
//!
//! One file of noise on the disk that holds the clone. Two tasks: its chunks (256 KiB, in an order without order, 16 requests at
//! once) and all of it in requests of 8 MiB, one after the other. The baseline is plain pread by one thread, in the same
//! pieces and order. `LAMINA_BENCH_DIR=DIR` reads elsewhere, on a 3FS mount for one.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::{Report, Row, target, tiny};
use blobstore::store::{FileStore, Settings, Store, ThreeFsStore};
use io_uring::{IoUring, opcode, types};
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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

/// Direct reads by one thread that asks io_uring: so many ranges at once as the others, each in pieces and into new memory, as a
/// 3FS store does it.
#[allow(unsafe_code)]
fn uring(path: &Path, task: &Task) {
    const BLOCK: usize = 4096;
    const PIECE: usize = 2 << 20;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let length = (task.ranges[0].end - task.ranges[0].start) as usize;
    let mut ring = IoUring::new((task.at_once * length.div_ceil(PIECE)) as u32).unwrap();
    // Of each range under way its memory, and how many pieces have not come.
    let mut slots: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0); task.at_once];
    let mut ranges = task.ranges.iter();
    loop {
        let free = slots.iter_mut().enumerate().filter(|(_, (_, missing))| *missing == 0);
        for ((slot, (memory, missing)), range) in free.zip(&mut ranges) {
            *memory = vec![0; length + BLOCK];
            let first = memory.as_ptr().align_offset(BLOCK);
            for (n, piece) in memory[first..first + length].chunks_mut(PIECE).enumerate() {
                let read = opcode::Read::new(types::Fd(file.as_raw_fd()), piece.as_mut_ptr(), piece.len() as u32);
                let read = read.offset(range.start + (n * PIECE) as u64).build().user_data(slot as u64);
                // SAFETY: the slot keeps its memory until all of its pieces have come, and the file stays open.
                unsafe { ring.submission().push(&read).unwrap() };
                *missing += 1;
            }
        }
        if slots.iter().all(|(_, missing)| *missing == 0) {
            return;
        }
        ring.submit_and_wait(1).unwrap();
        for completion in ring.completion() {
            assert_eq!(completion.result() as usize, length.min(PIECE));
            slots[completion.user_data() as usize].1 -= 1;
        }
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
        let mut names = vec![BASELINE, "file://", "3fs://"];
        match IoUring::new(1) {
            Ok(_) => names.push("io_uring, direct"),
            Err(error) => println!("SKIPPED: io_uring: {error}"),
        }
        let mut seconds = vec![Vec::new(); names.len()];
        for _ in 0..if tiny() { 1 } else { ROUNDS } {
            for (n, seconds) in seconds.iter_mut().enumerate() {
                evict(&dir.path().join(NAME));
                let begun = Instant::now();
                match n {
                    0 => pread(&dir.path().join(NAME), &task),
                    1 => runtime.block_on(through(Arc::new(FileStore::new(dir.path())), &task)),
                    2 => {
                        let store = ThreeFsStore::new(dir.path(), &Settings::default()).unwrap();
                        runtime.block_on(through(Arc::new(store), &task));
                    }
                    _ => uring(&dir.path().join(NAME), &task),
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
