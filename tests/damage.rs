//! Flipped bits, in the store and in the cache: an error, a refetch or a refusal, with a word in the log; never data.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::image::layer_file;
use tests::node::Node;
use tests::tree::{noise, write};

const FILES: usize = 40;
/// A chunk.
const FILE: usize = 512 << 10;

/// A node with one layer of FILES files, each a chunk of its own; gives the layer's id and the contents.
fn node_with_layer(name: &str) -> Option<(Node, String, Vec<Vec<u8>>)> {
    if !tests::possible(name) {
        return None;
    }
    let node = Node::with_daemon("", "[fetch]\ndecoded = \"1MiB\"\n");
    let source = node.new_dir("source");
    let contents: Vec<Vec<u8>> = (0..FILES as u64).map(|i| noise(i, FILE)).collect();
    for (i, content) in contents.iter().enumerate() {
        write(&source.join(format!("f{i:03}")), content);
    }
    let id = node.convert_dir(&source, "base/files:1");
    Some((node, id, contents))
}

fn flip(path: &Path, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).unwrap();
}

/// Positions of bits, the same in every run.
fn positions(seed: u64, count: usize, bits: std::ops::Range<u64>) -> Vec<u64> {
    let random = noise(seed, count * 8);
    random.chunks(8).map(|c| bits.start + u64::from_le_bytes(c.try_into().unwrap()) % (bits.end - bits.start)).collect()
}

fn mounted(node: &Node) -> PathBuf {
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/files:1", target.to_str().unwrap()]);
    target
}

/// Reads every file, all at once, for a damaged chunk is tried several times. Gives how many reads failed.
fn read_all(target: &Path, contents: &[Vec<u8>], round: usize) -> usize {
    let read = |i: usize| match fs::read(target.join(format!("f{i:03}"))) {
        Ok(data) => {
            assert!(data == contents[i], "round {round}: file {i} has wrong bytes");
            0
        }
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(5), "{e}");
            1
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..contents.len()).map(|i| scope.spawn(move || read(i))).collect();
        readers.into_iter().map(|r| r.join().unwrap()).sum()
    })
}

fn unmount(node: &Node) {
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}

/// Where each chunk lies in the layer's file, as bit ranges.
fn chunks(node: &Node, id: &str) -> Vec<std::ops::Range<u64>> {
    let report = node.json(&["inspect", &format!("layer:{id}"), "--chunks"]);
    let table = report["layers"][0]["chunk_table"].as_array().unwrap();
    let range = |c: &serde_json::Value| {
        let start = c["file_offset"].as_u64().unwrap();
        start * 8..(start + c["bytes"].as_u64().unwrap()) * 8
    };
    table.iter().map(range).collect()
}

#[test]
fn flipped_bits_in_stored_chunks_are_an_error_with_a_word_about_it_and_never_data() {
    let Some((mut node, id, contents)) = node_with_layer("damage to the store") else { return };
    let file = layer_file(&node.path("store"), &id);
    let chunks = chunks(&node, &id);
    assert!(chunks.len() >= FILES, "{} chunks", chunks.len());
    node.start_daemon();
    let target = mounted(&node);
    let (rounds, mut errors) = (1000 / FILES, 0);
    for round in 0..rounds {
        let bits: Vec<u64> =
            chunks.iter().enumerate().map(|(i, r)| positions((round * 1000 + i) as u64, 1, r.clone())[0]).collect();
        bits.iter().for_each(|bit| flip(&file, *bit));
        errors += read_all(&target, &contents, round);
        bits.iter().for_each(|bit| flip(&file, *bit));
    }
    assert_eq!(errors, rounds * FILES, "each damaged chunk is an error");
    // The damage is gone, and so are the errors.
    assert_eq!(read_all(&target, &contents, rounds), 0);
    let log = node.log("laminad");
    assert!(log.contains(&id) && log.contains("chunk"), "the log names layer and chunk:\n{log}");
    unmount(&node);
}

#[test]
fn flipped_bits_in_the_cache_are_fetched_again() {
    let Some((mut node, id, contents)) = node_with_layer("damage to the cache") else { return };
    node.start_daemon();
    let target = mounted(&node);
    for (i, content) in contents.iter().enumerate() {
        assert!(fs::read(target.join(format!("f{i:03}"))).unwrap() == *content);
    }
    let filled = node.status().unwrap()["cache_bytes"].as_u64().unwrap();
    assert!(filled > (FILES * FILE) as u64 / 2, "the cache holds {filled} bytes");
    assert!(node.stop_daemon());

    // A damaged "format" is a refusal to start, which names the file: a directory that is no cache is never cleaned out.
    let mut cache = files_below(&node.path("cache"));
    cache.retain(|path| path.file_name().unwrap() != "format");
    for (n, path) in cache.iter().enumerate() {
        let bits = fs::metadata(path).unwrap().len() * 8;
        let share = 1000 * bits / cache.iter().map(|p| fs::metadata(p).unwrap().len() * 8).sum::<u64>().max(1);
        if bits > 0 {
            positions(n as u64, share as usize + 1, 0..bits).into_iter().for_each(|bit| flip(path, bit));
        }
    }
    node.start_daemon();
    let target = mounted(&node);
    for (i, content) in contents.iter().enumerate() {
        assert!(fs::read(target.join(format!("f{i:03}"))).unwrap() == *content, "file {i} has wrong bytes");
    }
    let fetched = node.status().unwrap()["fetched_bytes"].as_u64().unwrap();
    assert!(fetched > FILE as u64, "{fetched} bytes were fetched: more than references");
    let log = node.log("laminad");
    assert!(log.contains(&id), "the log names the layer:\n{log}");
    unmount(&node);
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Every byte of a small layer's index and metadata, one at a time: `lamina verify` and `lamina mount` refuse it.
#[test]
fn a_flipped_bit_anywhere_in_a_head_is_refused() {
    if !tests::possible("damage to a head") {
        return;
    }
    let mut node = Node::default();
    let source = node.new_dir("source");
    write(&source.join("a"), "a small file");
    let id = node.convert_dir(&source, "base/tiny:1");
    let file = layer_file(&node.path("store"), &id);
    let whole = fs::read(&file).unwrap();
    let report = node.json(&["inspect", "base/tiny:1"]);
    let head = report["layers"][0]["head_bytes"].as_u64().unwrap();
    node.start_daemon();
    let target = node.new_dir("mnt");
    // Each byte is tried in the unit tests of the layer format; here, through the daemon, a sample of them.
    for byte in (0..head).step_by(usize::try_from(head / 48).unwrap().max(1)) {
        flip(&file, byte * 8 + byte % 8);
        let error = node.fail(3, &["mount", "base/tiny:1", target.to_str().unwrap()]);
        assert!(error.contains(&id), "byte {byte}: the error names the layer: {error}");
        flip(&file, byte * 8 + byte % 8);
    }
    assert!(fs::read(&file).unwrap() == whole);
    node.run(&["mount", "base/tiny:1", target.to_str().unwrap()]);
    let mut text = String::new();
    File::open(target.join("a")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "a small file");
    node.run(&["umount", target.to_str().unwrap()]);
}
