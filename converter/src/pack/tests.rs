//! Contents to the data space and back: what shares blocks, where chunks end, and that it does not matter how bytes come.

use super::*;
use crate::tar::{Extent, Shape};
use erofs::{Attributes, Content, Kind, Node};
use std::fs::File;

const T: usize = 64 << 10;

struct Layer {
    tree: Tree,
    files: Vec<(NodeId, u32)>,
    spool: Spool,
}

impl Layer {
    fn new() -> Self {
        let spool = Spool::new(&std::env::temp_dir()).unwrap();
        Self { tree: Tree::new(Attributes::default()), files: Vec::new(), spool }
    }

    fn add(&mut self, name: &str, shape: &Shape, mut bytes: &[u8]) -> NodeId {
        let number =
            self.spool.add(shape, |buffer| std::io::Read::read(&mut bytes, buffer).map_err(|_| unreachable!()));
        let node = Node { attributes: Attributes::default(), kind: Kind::File(Content::EMPTY) };
        let id = self.tree.add(Tree::ROOT, name.as_bytes(), node).unwrap();
        self.files.push((id, number.unwrap()));
        id
    }

    fn file(&mut self, name: &str, bytes: &[u8]) -> NodeId {
        self.add(name, &Shape { size: bytes.len() as u64, map: None }, bytes)
    }

    /// The plan of what came so far.
    fn plan(&mut self, first: Option<&First>) -> Plan {
        let spool = std::mem::replace(&mut self.spool, Spool::new(&std::env::temp_dir()).unwrap());
        plan(&mut self.tree, &self.files, spool.complete().unwrap(), T as u32, first).unwrap()
    }

    fn pack(&mut self) -> (Plan, Vec<Vec<u8>>) {
        let plan = self.plan(None);
        let chunks = read(&plan);
        assert!(chunks.iter().all(|c| !c.is_empty() && c.len() % BLOCK == 0 && c.len() <= 8 << 20));
        assert_eq!(chunks.iter().map(Vec::len).sum::<usize>() as u64, plan.blocks * BLOCK as u64);
        (plan, chunks)
    }

    /// A file's bytes as a reader of the image would put them together.
    fn read(&self, id: NodeId, data: &[u8]) -> Vec<u8> {
        let Kind::File(content) = &self.tree.node(id).kind else { panic!() };
        let mut out = vec![0; content.size().next_multiple_of(BLOCK as u64) as usize];
        match content {
            Content::Plain { start, .. } => {
                let from = *start as usize * BLOCK;
                let length = out.len();
                out.copy_from_slice(&data[from..from + length]);
            }
            Content::Sparse { chunk_bits, chunks, .. } => {
                let chunk = BLOCK << chunk_bits;
                for (to, start) in out.chunks_mut(chunk).zip(chunks) {
                    if let Some(start) = start {
                        let length = to.len();
                        to.copy_from_slice(&data[*start as usize * BLOCK..][..length]);
                    }
                }
            }
        }
        out.truncate(content.size() as usize);
        out
    }
}

fn read(plan: &Plan) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut emit = |chunk| {
        chunks.push(chunk);
        Ok(())
    };
    plan.read(&mut emit).unwrap();
    chunks
}

fn noise(seed: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

#[test]
fn every_file_is_found_again_in_the_data_space() {
    let mut layer = Layer::new();
    let sizes = [0, 1, 4095, 4096, 4097, T - 1, T, T + 1, T + T / 4 - 4096, T + T / 4, 5 * T + 77];
    let files: Vec<_> = sizes
        .iter()
        .map(|&n| (noise(&n.to_string(), n), layer.file(&format!("{n:07}"), &noise(&n.to_string(), n))))
        .collect();
    let (_, chunks) = layer.pack();
    let data = chunks.concat();
    for (bytes, id) in files {
        assert!(layer.read(id, &data) == bytes, "{} bytes", bytes.len());
    }
}

#[test]
fn equal_files_share_blocks() {
    let mut layer = Layer::new();
    let a = layer.file("a", &noise("x", 10_000));
    let b = layer.file("b", &noise("x", 10_000));
    let (packed, _) = layer.pack();
    assert_eq!(layer.tree.node(a).kind, layer.tree.node(b).kind);
    assert_eq!((packed.blocks, packed.deduplicated), (3, 10_000));
}

#[test]
fn large_files_start_chunks_and_short_tails_stay() {
    let mut layer = Layer::new();
    layer.file("a", &noise("a", 5000));
    layer.file("b", &noise("b", 2 * T + 4096));
    layer.file("c", &noise("c", 5000));
    let (_, chunks) = layer.pack();
    assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [8192, T, T + 4096, 8192]);
}

#[test]
fn cuts_resynchronise_behind_a_change() {
    let chunks = |change: bool| {
        let mut layer = Layer::new();
        for n in 0..400 {
            let size = 1000 + n * 37 % 9000;
            layer.file(&format!("f{n:04}"), &noise(&format!("{n}{}", change && n == 7), size));
        }
        layer.pack().1
    };
    let (before, after) = (chunks(false), chunks(true));
    let same = before.iter().filter(|chunk| after.contains(chunk)).count();
    assert!(before.len() > 20 && same > before.len() * 3 / 4, "{same} of {}", before.len());
    assert!(chunks(false) == before);
}

#[test]
fn sparse_files_store_their_data_and_zeros_cost_few_chunks() {
    let mut layer = Layer::new();
    let map = vec![
        Extent { offset: 10, length: 100 },
        Extent { offset: 5000, length: 8000 },
        Extent { offset: 1 << 20, length: 3 },
    ];
    let shape = Shape { size: (1 << 20) + 3, map: Some(map.clone()) };
    let bytes = noise("s", 8103);
    let id = layer.add("s", &shape, &bytes);
    let (packed, chunks) = layer.pack();
    let mut want = vec![0; (1 << 20) + 3];
    let mut at = 0;
    for extent in map {
        want[extent.offset as usize..(extent.offset + extent.length) as usize]
            .copy_from_slice(&bytes[at..at + extent.length as usize]);
        at += extent.length as usize;
    }
    assert!(layer.read(id, &chunks.concat()) == want);
    assert!(packed.blocks <= 64, "{}", packed.blocks);

    let mut layer = Layer::new();
    let tail = Extent { offset: 1_250_000_000_000 - 292, length: 292 };
    layer.add("lastlog", &Shape { size: 1_250_000_000_000, map: Some(vec![tail]) }, &noise("l", 292));
    let plan = layer.plan(None);
    assert!(plan.chunks() < 100, "{}", plan.chunks());
}

#[test]
fn long_runs_of_zeros_are_chunks_of_their_own_wherever_they_come_from() {
    let mut bytes = vec![0; 1 << 20];
    bytes[0] = 1;
    bytes[(1 << 20) - 1] = 1;
    let map = vec![Extent { offset: 0, length: 1 }, Extent { offset: (1 << 20) - 1, length: 1 }];
    let lengths = |map: Option<Vec<Extent>>, bytes: &[u8]| {
        let mut layer = Layer::new();
        layer.add("z", &Shape { size: 1 << 20, map }, bytes);
        layer.pack().1.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(lengths(None, &bytes), [T, (1 << 20) - T - 4096, 4096]);
    // The same, but for a layout that leaves the zeros out.
    assert!(lengths(Some(map), &[1, 1]).iter().sum::<usize>() < 256 << 10);
}

#[test]
fn a_source_is_read_again_and_must_be_what_it_was() {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile().unwrap();
    let bytes = noise("s", 3 * T);
    file.write_all_at(&bytes, 1000).unwrap();
    let mut layer = Layer::new();
    layer.spool.read_again(file.try_clone().unwrap(), 600, false);
    for (name, at, size) in [("a", 400, T), ("b", 400 + T as u64, 2 * T)] {
        let mut from = &bytes[at as usize - 400..][..size];
        let mut read = |buffer: &mut [u8]| std::io::Read::read(&mut from, buffer).map_err(|_| unreachable!());
        let shape = Shape { size: size as u64, map: None };
        let number = layer.spool.add_in_place(&shape, at, &mut read).unwrap();
        let node = Node { attributes: Attributes::default(), kind: Kind::File(Content::EMPTY) };
        layer.files.push((layer.tree.add(Tree::ROOT, name.as_bytes(), node).unwrap(), number));
    }
    assert_eq!(layer.spool.stored(), 0);
    let (plan, chunks) = layer.pack();
    assert!(chunks.concat() == bytes);
    file.write_all_at(b"x", 1000 + 2 * T as u64).unwrap();
    let error = plan.read(&mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("again") && !error.is_refusal(), "{error}");
}

#[test]
fn what_is_to_come_first_lies_together_in_its_order_and_the_rest_as_ever() {
    let layer = || {
        let mut layer = Layer::new();
        let ids: Vec<NodeId> = (0..40u8).map(|n| layer.file(&format!("{n:02}"), &vec![n + 1; 9000])).collect();
        (layer, ids)
    };
    let first = First::parse(b"30\n07\nnot-there\n21\n").unwrap();
    let (mut listed, ids) = layer();
    let chunks = read(&listed.plan(Some(&first)));
    assert_eq!(chunks[0].len(), 3 * 12288);
    assert_eq!([0, 12288, 24576].map(|at| chunks[0][at]), [31, 8, 22]);
    let data = chunks.concat();
    for (n, id) in ids.iter().enumerate() {
        assert!(listed.read(*id, &data)[..9000] == vec![n as u8 + 1; 9000]);
    }
    let cuts = |first: Option<&First>| {
        let planned = layer().0.plan(first);
        (planned.cuts, planned.list.numbers())
    };
    assert_eq!(cuts(Some(&First::parse(b"not-there").unwrap())), cuts(None));
    assert_eq!(cuts(Some(&first)), cuts(Some(&first)));
}

/// Where the input begins in its file.
const SOURCE: u64 = 77;

/// A layer of these files, spooled, or read again where they lie one behind the other: in the file that is given back. And
/// how many bytes were spooled.
fn layer_of(files: &[(String, Shape, Vec<u8>)], fixed: Option<bool>) -> (Layer, File, u64) {
    use std::os::unix::fs::FileExt;
    let (file, mut at) = (tempfile::tempfile().unwrap(), 0);
    let mut layer = Layer::new();
    if let Some(fixed) = fixed {
        layer.spool.read_again(file.try_clone().unwrap(), SOURCE, fixed);
    }
    for (name, shape, bytes) in files {
        file.write_all_at(bytes, SOURCE + at).unwrap();
        let mut from = &bytes[..];
        let mut read = |buffer: &mut [u8]| std::io::Read::read(&mut from, buffer).map_err(|_| unreachable!());
        let number = layer.spool.add_in_place(shape, at, &mut read).unwrap();
        at += bytes.len() as u64;
        let node = Node { attributes: Attributes::default(), kind: Kind::File(Content::EMPTY) };
        layer.files.push((layer.tree.add(Tree::ROOT, name.as_bytes(), node).unwrap(), number));
    }
    let stored = layer.spool.stored();
    (layer, file, stored)
}

#[test]
fn contents_that_pass_and_those_that_are_read_later_give_the_same_chunks() {
    let mut files = Vec::new();
    let mut add = |map: Option<Vec<Extent>>, size: usize, bytes: Vec<u8>| {
        files.push((format!("{}", files.len()), Shape { size: size as u64, map }, bytes));
    };
    for n in 0..200usize {
        let size = [0, 1, 100, 5000, 5000, T - 1, T + 1, 300 << 10][n % 8];
        // Some of a size are equal, some are not.
        add(None, size, noise(&format!("{}", n % 24), size));
    }
    for start in [0usize, 4095, 4097, 100_000, 131_072, 200_000] {
        for length in [250 << 10, 260 << 10, 270 << 10, 400 << 10, 700 << 10] {
            let mut bytes = noise("around", 950_001);
            bytes[start..start + length].fill(0);
            add(None, bytes.len(), bytes);
        }
    }
    for size in [256 << 10, (256 << 10) - 1, (256 << 10) - 4096, 1 << 20, (1 << 20) + 5] {
        add(None, size, vec![0; size]);
    }
    let extent = |offset, length| Extent { offset, length };
    add(Some(vec![extent(0, 10), extent(1 << 20, 10)]), 2 << 20, noise("h", 20));
    add(Some(vec![extent(0, 10), extent(1 << 20, 10)]), 2 << 20, noise("h", 20));
    add(Some(vec![extent(0, 5000)]), 5000, noise("3", 5000));
    let mut results = Vec::new();
    for fixed in [None, Some(false), Some(true)] {
        let (mut layer, _, stored) = layer_of(&files, fixed);
        assert_eq!(stored == 0, fixed.is_some());
        let (plan, chunks) = layer.pack();
        let contents: Vec<_> = layer.files.iter().map(|(id, _)| layer.tree.node(*id).kind.clone()).collect();
        results.push((plan.blocks, plan.deduplicated, chunks, contents));
    }
    assert!(results[0].1 > 1_000_000, "some are equal");
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_plan_is_read_again_though_most_of_what_it_was_made_of_is_forgotten() {
    let mut layer = Layer::new();
    layer.file("a", b"plain");
    let map = vec![Extent { offset: 8192, length: 4 }, Extent { offset: 1 << 20, length: 3 }];
    layer.add("b", &Shape { size: 2 << 20, map: Some(map) }, b"hole-->");
    let (plan, chunks) = layer.pack();
    assert!(read(&plan) == chunks && !chunks.is_empty());
}

#[test]
fn more_contents_than_hashes_fit_into_memory_are_each_checked_when_they_are_read_again() {
    use std::os::unix::fs::FileExt;
    let size = 8;
    let files: Vec<_> =
        (0..17_000u64).map(|n| (format!("{n:05}"), Shape { size, map: None }, n.to_le_bytes().to_vec())).collect();
    let (mut layer, file, _) = layer_of(&files, Some(false));
    let plan = layer.plan(None);
    let mut blocks = 0;
    let mut count = |chunk: Vec<u8>| {
        for block in chunk.chunks(BLOCK) {
            assert_eq!(block[..8], files[blocks].2);
            blocks += 1;
        }
        Ok(())
    };
    plan.read(&mut count).unwrap();
    assert_eq!(blocks, files.len());
    // One whose hash went to the file, and one of those that are still in memory.
    for changed in [5, 16_900] {
        let place = SOURCE + changed * size;
        file.write_all_at(b"\xff", place).unwrap();
        let error = plan.read(&mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("changed"), "{error}");
        file.write_all_at(&files[changed as usize].2, place).unwrap();
        plan.read(&mut |_| Ok(())).unwrap();
    }
}
