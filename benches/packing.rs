//! Which files share a chunk, by evidence: for images of four kinds, several ways to pack files into chunks and sizes of
//! chunks, what the data would take in the store, and what of them a program's cold start would fetch.
//!
//! Computed, not run: each program starts cold in the image, mounted by Lamina, and the pages that the kernel read for it
//! are noted, readahead included; then each way cuts the files, zstd compresses the chunks, and those that hold a noted
//! page count as fetched. All layers of an image are one tree here, and files with holes are plain ones. The converter's
//! own way is `benches/chunk_size`'s, which runs it. In the test pass a busybox image takes the place of the others.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{STARTS, Start, image, run_program, unpack};
use benches::lazy::{Contender, Lamina};
use benches::resident::{PAGE, resident};
use benches::{target, tiny};
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// zstd's level, the converter's default.
const LEVEL: i32 = 3;

/// A file whose contents no file before it has.
struct File {
    path: PathBuf,
    size: u64,
    pages: usize,
    hash: [u8; 32],
    /// For each start, the pages that it had read.
    touched: Vec<Vec<bool>>,
}

/// A way to pack.
struct Way {
    /// How packs of small files end.
    name: &'static str,
    /// Whether files of a directory are packed by their suffix first, and not by their names alone.
    by_suffix: bool,
    /// When a pack of small files ends.
    end: End,
    /// KiB of a pack.
    pack: usize,
    /// KiB of the pieces of a large file.
    cut: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// Before a file that would take it past its size, or by chance that hangs on the contents once it is half full.
    Content,
    /// Before a file that would take it past its size.
    Full,
    /// With the directory too, once it is half full.
    Directory,
    /// After each file.
    File,
}

/// KiB of packs and pieces, as the rule of the converter has them.
const BY_CONTENT: &[(usize, usize)] = &[
    (256, 256),
    (64, 64),
    (128, 128),
    (512, 512),
    (1024, 1024),
    (2048, 2048),
    (4096, 4096),
    (512, 128),
    (512, 256),
    (1024, 256),
    (128, 256),
    (256, 512),
    (128, 512),
];

/// All ways; the first is what the others are compared with.
fn ways() -> Vec<Way> {
    let way = |name, end, by_suffix| Way { name, by_suffix, end, pack: 256, cut: 256 };
    let by_content = || way("by content", End::Content, false);
    let mut ways: Vec<_> = BY_CONTENT.iter().map(|&(pack, cut)| Way { pack, cut, ..by_content() }).collect();
    ways.push(way("when they are full", End::Full, false));
    ways.push(way("by content, or with their directory", End::Directory, false));
    ways.push(way("by content, in the order of suffixes", End::Content, true));
    ways.push(way("after each file", End::File, false));
    ways
}

/// Pages of a file that stand in a chunk.
struct Piece {
    file: usize,
    from: usize,
    pages: usize,
}

/// The regular files of a tree in path order, each once.
fn files(tree: &Path) -> Vec<File> {
    fn walk(at: &Path, files: &mut Vec<File>, known: &mut HashSet<[u8; 32]>) {
        let mut entries: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap()).collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                walk(&path, files, known);
            } else if kind.is_file() {
                let bytes = fs::read(&path).unwrap();
                let hash = *blake3::hash(&bytes).as_bytes();
                if !bytes.is_empty() && known.insert(hash) {
                    let (size, pages) = (bytes.len() as u64, bytes.len().div_ceil(PAGE));
                    files.push(File { path, size, pages, hash, touched: Vec::new() });
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(tree, &mut found, &mut HashSet::new());
    found
}

/// Starts a program cold, and notes what was read for it of the files of the tree.
fn note(image: &mut Lamina, tree: &Path, start: &Start, files: &mut [File]) {
    let root = image.begin();
    run_program(&root, start.program);
    for file in files {
        let path = root.join(file.path.strip_prefix(tree).unwrap());
        file.touched.push(resident(&path).unwrap());
    }
    image.end();
}

/// Each chunk's pieces, in the order of the files given.
fn chunks(files: &[File], order: &[usize], way: &Way) -> Vec<Vec<Piece>> {
    let (pack, cut) = ((way.pack << 10) / PAGE, (way.cut << 10) / PAGE);
    let mut chunks = Vec::new();
    let (mut open, mut length): (Vec<Piece>, usize) = (Vec::new(), 0);
    let mut parent = None;
    for &number in order {
        let file = &files[number];
        if file.pages >= pack.min(cut) {
            chunks.extend((length > 0).then(|| std::mem::take(&mut open)));
            length = 0;
            let mut from = 0;
            while from < file.pages {
                let left = file.pages - from;
                let pages = if left < cut + cut / 4 { left } else { cut };
                chunks.push(vec![Piece { file: number, from, pages }]);
                from += pages;
            }
            continue;
        }
        let by_end = match way.end {
            End::Content => length >= pack / 2 && file.hash[0] & 3 == 0,
            End::Full => false,
            End::Directory => length >= pack / 2 && file.path.parent() != parent,
            End::File => true,
        };
        if length > 0 && (by_end || length + file.pages > pack) {
            chunks.push(std::mem::take(&mut open));
            length = 0;
        }
        open.push(Piece { file: number, from: 0, pages: file.pages });
        length += file.pages;
        parent = file.path.parent();
    }
    chunks.extend((length > 0).then_some(open));
    chunks
}

/// Stored bytes of each chunk.
fn compress(files: &[File], chunks: &[Vec<Piece>]) -> Vec<u64> {
    let next = AtomicUsize::new(0);
    let sizes: Vec<_> = chunks.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let mut compressor = zstd::bulk::Compressor::new(LEVEL).unwrap();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(chunk) = chunks.get(number) else { return };
                    let stored = compressor.compress(&content(files, chunk)).unwrap().len();
                    sizes[number].store(stored as u64, Ordering::Relaxed);
                }
            });
        }
    });
    sizes.into_iter().map(AtomicU64::into_inner).collect()
}

/// What a chunk holds: each file from a page on, filled up with zeros.
fn content(files: &[File], chunk: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in chunk {
        let file = &files[piece.file];
        let (start, from, length) = (bytes.len(), (piece.from * PAGE) as u64, piece.pages * PAGE);
        bytes.resize(start + length, 0);
        let here = length.min((file.size - from) as usize);
        fs::File::open(&file.path).unwrap().read_exact_at(&mut bytes[start..start + here], from).unwrap();
    }
    bytes
}

/// Number and stored bytes of the chunks that hold what a start had read.
fn fetched(files: &[File], chunks: &[Vec<Piece>], sizes: &[u64], start: usize) -> (usize, u64) {
    let needed = |piece: &Piece| {
        files[piece.file].touched[start][piece.from..piece.from + piece.pages].iter().any(|touched| *touched)
    };
    let fetched = chunks.iter().zip(sizes).filter(|(chunk, _)| chunk.iter().any(needed));
    fetched.fold((0, 0), |(count, bytes), (_, size)| (count + 1, bytes + size))
}

fn order(files: &[File], way: &Way) -> Vec<usize> {
    let mut order: Vec<_> = (0..files.len()).collect();
    if way.by_suffix {
        // Stable: within a suffix the order of the paths remains, and directories keep theirs.
        order.sort_by_key(|&number| {
            let path = &files[number].path;
            (path.parent().map(Path::to_owned), path.extension().map(|suffix| suffix.to_owned()))
        });
    }
    order
}

/// The geometric mean of the ratios of one figure of the starts.
fn mean(of: &[[f64; 3]], to: &[[f64; 3]], figure: usize) -> f64 {
    let logarithms = of.iter().zip(to).map(|(of, to)| (of[figure] / to[figure]).ln());
    (logarithms.sum::<f64>() / of.len() as f64).exp()
}

fn main() {
    if !tests::possible("packing") {
        return;
    }
    let bench = target().join("bench");
    let ways = ways();
    let name = |way: &Way| format!("{}; packs {} KiB, pieces {} KiB", way.name, way.pack, way.cut);
    let mut rows = Vec::new();
    // Of each way and start: stored bytes, fetched bytes, fetched chunks.
    let mut figures: Vec<Vec<[f64; 3]>> = vec![Vec::new(); ways.len()];
    let starts = if tiny() { &STARTS[..1] } else { STARTS };
    for starts in starts.chunk_by(|a, b| a.builder == b.builder) {
        let layout = image(starts[0].builder);
        let tree = tempfile::tempdir_in(&bench).unwrap();
        unpack(&layout, tree.path());
        let mut files = files(tree.path());
        let mut mounted = Lamina::new("noted".to_owned(), &layout, &[], "0s");
        starts.iter().for_each(|start| note(&mut mounted, tree.path(), start, &mut files));
        let bytes: u64 = files.iter().map(|file| file.size).sum();
        println!("{}: {} different files, {:.1} MB", starts[0].builder, files.len(), bytes as f64 / 1e6);
        for (way, figures) in ways.iter().zip(&mut figures) {
            let chunks = chunks(&files, &order(&files, way), way);
            let sizes = compress(&files, &chunks);
            let stored: u64 = sizes.iter().sum();
            println!("  {:<66} {:>6} chunks {:>7.1} MB stored", name(way), chunks.len(), stored as f64 / 1e6);
            for (number, start) in starts.iter().enumerate() {
                let (count, fetched) = fetched(&files, &chunks, &sizes, number);
                println!("    {:<64} {count:>6} chunks {:>7.1} MB fetched", start.task, fetched as f64 / 1e6);
                figures.push([stored as f64, fetched as f64, count as f64]);
                rows.push(json!({
                    "image": start.builder, "task": start.task, "way": name(way), "files_bytes": bytes,
                    "chunks": chunks.len(), "stored": stored, "fetched_chunks": count, "fetched": fetched,
                }));
            }
        }
    }
    println!("means of the starts, as multiples of the first:{:>23} stored, fetched, chunks", "");
    for (way, of) in ways.iter().zip(&figures) {
        let [stored, fetched, chunks] = [0, 1, 2].map(|figure| mean(of, &figures[0], figure));
        println!("  {:<66} {stored:.3}, {fetched:.3}, {chunks:.3}", name(way));
    }
    let file = bench.join("packing.json");
    fs::write(&file, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
    println!("figures: {}", file.display());
}
