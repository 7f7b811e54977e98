//! Trees to convert, and their comparison.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that do not compress, the same for the same seed (SplitMix64).
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(length);
    out
}

/// Writes `path` with its parents.
pub fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Files below a directory, with their contents.
pub fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                // One that has gone meanwhile is none.
                false => drop(
                    fs::read(entry.path())
                        .map(|bytes| found.insert(entry.path().strip_prefix(directory).unwrap().to_owned(), bytes)),
                ),
            }
        }
    }
    found
}

/// Every name below `root` with its type and content, sorted: what two equal trees have in common.
pub fn listing(root: &Path) -> Vec<(String, String)> {
    let mut out = Vec::new();
    walk(root, root, &mut out);
    out.sort();
    out
}

fn walk(root: &Path, at: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let meta = fs::symlink_metadata(&path).unwrap();
        let what = if meta.is_dir() {
            walk(root, &path, out);
            "directory".to_owned()
        } else if meta.is_symlink() {
            format!("link to {}", fs::read_link(&path).unwrap().display())
        } else if meta.is_file() {
            String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
        } else {
            "special".to_owned()
        };
        out.push((name, what));
    }
}
