//! From a tar to a layer, as the converter goes.

use crate::scratch;
use converter::error::{Error, Result};
use converter::pack::{Spool, plan};
use converter::read_entries;
use converter::tar::{Entry, Kind, Reader, Shape, TreePath};
use converter::tree::{Merged, Upper};
use erofs::{Attributes, BLOCK, Expect, Tree, check, read_tree};
use std::fs::File;
use std::io::{Cursor, Write};

const HEADER: usize = 512;

/// Headers that are found one by one, because the quick way did not see them.
const REPAIRS: usize = 8;

/// More data than is of use here: files with far-apart pieces may be large, and that is another test's matter.
const DATA_MAX: usize = 16 << 20;

/// A tar with a right checksum in each header that its reader comes to.
pub fn repair_tar(data: &[u8]) -> Vec<u8> {
    let mut tar = data.to_vec();
    let mut at = 0;
    while at + HEADER <= tar.len() {
        let header = &mut tar[at..at + HEADER];
        at += HEADER;
        if header.iter().any(|&byte| byte != 0) {
            seal(header);
            at = at.saturating_add(stored(header).next_multiple_of(HEADER));
        }
    }
    for _ in 0..REPAIRS {
        let Some(header) = unsealed(&tar).and_then(|at| tar.get_mut(at..at + HEADER)) else { break };
        seal(header);
    }
    tar
}

/// A tar of files.
pub fn sealed_tar<'a>(files: impl Iterator<Item = (&'a str, Vec<u8>)>) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, content) in files {
        let mut header = [0; HEADER];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        seal(&mut header);
        tar.extend_from_slice(&header);
        tar.extend_from_slice(&content);
        tar.resize(tar.len().next_multiple_of(HEADER), 0);
    }
    tar.resize(tar.len() + 2 * HEADER, 0);
    tar
}

/// Where the reader meets a wrong checksum.
fn unsealed(tar: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(Cursor::new(tar));
    loop {
        match reader.next_entry() {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) if error.to_string().contains("wrong checksum") => {
                return (reader.input().position() as usize).checked_sub(HEADER);
            }
            Err(_) => return None,
        }
    }
}

fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Bytes behind a header, by its size field, where that is in octal digits.
fn stored(header: &[u8]) -> usize {
    if matches!(header[156], b'1'..=b'6') {
        return 0;
    }
    let digits = header[124..136].iter().take_while(|byte| matches!(byte, b'0'..=b'7'));
    digits.fold(0, |size: usize, digit| size.saturating_mul(8).saturating_add(usize::from(digit - b'0')))
}

/// Converts a tar over a small tree; what was accepted must hold together. Read where it lies in a file, it gives the same.
pub fn convert_tar(tar: &[u8]) {
    let made = convert(tar, Spool::new(&scratch()).expect("a spool"));
    let mut spool = Spool::new(&scratch()).expect("a spool");
    // Whether somebody can have changed it meanwhile: then it is hashed both times.
    spool.read_again(file(tar), 0, tar.len().is_multiple_of(2));
    match (made, convert(tar, spool)) {
        (Ok(made), Ok(in_place)) => assert!(made == in_place, "in place it is another layer"),
        (Err(error), Err(in_place)) => {
            assert!(error.is_refusal() && in_place.is_refusal(), "not refusals: {error}; in place: {in_place}")
        }
        (made, in_place) => panic!("read as it comes: {made:?}; in place: {in_place:?}"),
    }
}

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile_in(scratch()).expect("a file");
    file.write_all(content).expect("room for it");
    file
}

/// A layer's metadata, and the hash of its data.
type Made = (Vec<u8>, blake3::Hash);

/// `None`: what was accepted cannot be written as metadata.
fn convert(tar: &[u8], mut spool: Spool) -> Result<Option<Made>> {
    let below = below();
    let mut upper = Upper::new();
    read_entries(&mut Reader::new(tar), &mut upper, &mut spool)?;
    let mut settled = upper.settle(&below)?;
    for assumption in &settled.assumes {
        assert!(below.holds(assumption) || assumption.found == converter::tree::Found::Copied, "{assumption:?}");
    }
    let mut files = std::mem::take(&mut settled.contents);
    for (node, _) in &settled.copies {
        files.push((*node, spool.add(&Shape { size: 0, map: None }, |_| Ok(0))?));
    }
    let contents = spool.complete()?;
    let (mut data, mut hasher) = (0, blake3::Hasher::new());
    let plan = plan(&mut settled.tree, &files, contents, 256 << 10, None).expect("a plan");
    plan.read(&mut |chunk: Vec<u8>| {
        assert!(!chunk.is_empty() && chunk.len().is_multiple_of(BLOCK) && chunk.len() <= 8 << 20);
        data += chunk.len();
        hasher.update(&chunk);
        if data > DATA_MAX { Err(Error::refused("large")) } else { Ok(()) }
    })?;
    assert_eq!(plan.blocks, (data / BLOCK) as u64);
    let Ok(metadata) = erofs::write(&settled.tree, plan.blocks) else { return Ok(None) };
    let first_data_block = metadata.first_data_block();
    let expect = Expect { image_blocks: first_data_block + plan.blocks, first_data_block };
    let checked = check(metadata.bytes(), &expect).expect("what was written is accepted");
    assert!(read_tree(checked.image()).expect("and read") == settled.tree, "as what was written");
    let mut merged = below;
    merged.overlay(&settled.tree, settled.root_opaque).expect("names that can be");
    Ok(Some((metadata.bytes().to_vec(), hasher.finalize())))
}

/// A tree below that short names hit: directories, a file, links to a directory, out of the root, and in a circle.
fn below() -> Merged {
    let mut upper = Upper::new();
    let entries: [(&str, Kind); 10] = [
        ("a", Kind::Directory),
        ("a/b", Kind::Directory),
        ("a/f", Kind::File(Shape { size: 0, map: None })),
        ("a/g", Kind::HardLink(TreePath::clean(b"a/f").expect("a path"))),
        ("f", Kind::File(Shape { size: 0, map: None })),
        ("l", Kind::Symlink(b"a".to_vec())),
        ("a/l", Kind::Symlink(b"../../a/b".to_vec())),
        ("m", Kind::Symlink(b"/n".to_vec())),
        ("n", Kind::Symlink(b"m".to_vec())),
        ("z", Kind::Fifo),
    ];
    for (number, (path, kind)) in entries.into_iter().enumerate() {
        let path = TreePath::clean(path.as_bytes()).expect("a path");
        let attributes = Attributes { mode: 0o755, uid: 7, ..Attributes::default() };
        let contents = matches!(kind, Kind::File(_)).then_some(number as u32);
        upper.add(Entry { path, kind, attributes }, contents).expect("an entry");
    }
    let settled = upper.settle(&Merged::new()).expect("a layer");
    let mut merged = Merged::new();
    let tree: &Tree = &settled.tree;
    merged.overlay(tree, false).expect("names that can be");
    merged
}
