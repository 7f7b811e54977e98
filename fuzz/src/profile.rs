//! What starts read: profiles as nodes write them, and lists of paths as people do.
//!
//! A profile's sums, names and order are made right first, if the first byte asks for it. What is accepted must hold what its
//! readers count on: chunks that the layer has, a plan within its bytes, one more run. A list changes where contents stand,
//! and nothing else of them.

use crate::layer::sealed_tar;
use crate::scratch;
use blobstore::layer::{Flags, Front, Index, Options, Writer};
use blobstore::profile::{Profile, Run, plan};
use converter::First;
use converter::pack::{Spool, plan as lay_out};
use converter::read_entries;
use converter::tar::Reader;
use converter::tree::{Merged, Upper};
use erofs::{BLOCK, Content, Kind, NodeId, Tree};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

const HEADER: usize = 56;
const CHUNK: usize = 28;
const HASH: usize = 32;
/// Blocks of the layer's chunks.
const BLOCKS: [usize; 7] = [1, 2, 128, 1, 200, 3, 64];

/// A profile's bytes, of a small layer.
pub fn profile(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let index = index();
    let mut bytes = rest.to_vec();
    if how & 1 == 0 {
        repair(&mut bytes, index);
    }
    let Ok(profile) = Profile::decode(&bytes, index) else { return };
    assert_eq!(Profile::decode(&profile.encode(), index).as_ref(), Ok(&profile), "and read again");
    for part in profile.bytes(index) {
        assert!(part.start < part.end && part.end <= index.data_len() && part.start.is_multiple_of(BLOCK as u64));
    }
    let run = run(rest, index);
    let mut more = profile.clone();
    (0..usize::from(how) % 40).for_each(|_| more.add(&run));
    assert_eq!(Profile::decode(&more.encode(), index).as_ref(), Ok(&more), "with more runs");
    let room = u64::from(how) << 12;
    let all = [profile, more, Profile::new(index.id(), run)];
    let steps = plan(index, &all, room);
    assert!(steps.iter().map(|step| u64::from(step.stored)).sum::<u64>() <= room);
    assert!(steps.is_sorted_by_key(|step| (step.after, step.chunk)));
    let chunks: BTreeSet<u32> = steps.iter().map(|step| step.chunk).collect();
    assert!(chunks.len() == steps.len() && chunks.iter().all(|chunk| *chunk < index.chunk_count()));
    assert!(steps.iter().all(|step| step.share > 0.0 && step.share <= 1.0 + 1e-9));
}

/// The layer that the profiles are of.
fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let file = tempfile::tempfile_in(scratch()).expect("a file");
        let front = Front { metadata: &[1; BLOCK], flags: Flags::empty(), sections: &[], chunks: BLOCKS.len() as u32 };
        let out = file.try_clone().expect("a file");
        let mut writer = Writer::new(&Options { level: 1, threads: 1 }, &front, out).expect("a writer");
        for (number, blocks) in (0..).zip(BLOCKS) {
            writer.push(vec![number; blocks * BLOCK]).expect("a chunk");
        }
        writer.finish().expect("a layer");
        Index::of_file(&file).expect("its index")
    })
}

/// Profiles of that layer, to begin with.
pub fn profiles() -> Vec<(&'static str, Vec<u8>)> {
    let index = index();
    let one = Profile::new(index.id(), run(&[0; 6], index));
    let mut many = Profile::new(index.id(), run(&[1, 0, 0, 9, 9, 9, 0, 2, 200, 200, 1, 1], index));
    (0..20).for_each(|n| many.add(&run(&[n, n * 7, n, n, 3, n], index)));
    let whole = Profile::new(index.id(), Run::default());
    [("none", whole), ("one", one), ("many", many)].map(|(name, profile)| (name, profile.encode())).into()
}

/// Reads that the bytes stand for, six each: where, how long, when.
fn run(data: &[u8], index: &Index) -> Run {
    let mut run = Run::default();
    for read in data.chunks_exact(6).take(64) {
        let number = |at: usize| u64::from(u16::from_le_bytes([read[at], read[at + 1]]));
        let start = number(0) * 64 % index.data_len();
        let bytes: Range<u64> = start..start + 1 + number(2);
        run.read(index, bytes, Duration::from_millis(number(4) * 100));
    }
    run
}

/// Makes right what is over other bytes, or must be in order.
fn repair(bytes: &mut Vec<u8>, index: &Index) {
    let chunks = bytes.len().saturating_sub(HEADER + HASH) / CHUNK;
    bytes.resize(HEADER + chunks * CHUNK, 0);
    bytes[..8].copy_from_slice(b"LAMINAPR");
    bytes[8..10].copy_from_slice(&1u16.to_le_bytes());
    bytes[16..48].copy_from_slice(index.id().as_bytes());
    bytes[48..52].copy_from_slice(&(chunks as u32).to_le_bytes());
    let entries = bytes[HEADER..].chunks_exact_mut(CHUNK);
    for (number, entry) in (0u32..).zip(entries).filter(|(number, _)| *number < BLOCKS.len() as u32) {
        entry[..4].copy_from_slice(&number.to_le_bytes());
    }
    let hash = blake3::hash(bytes);
    bytes.extend_from_slice(hash.as_bytes());
}

/// The files of a small layer: their names, and bytes that no other has.
const FILES: [(&str, usize); 6] = [("a", 1), ("b", 5000), ("d/e", 4096), ("d/f", 0), ("d/g", 300_000), ("z", 9000)];

/// A list of paths to begin a layer with.
pub fn list(data: &[u8]) {
    let Ok(first) = First::parse(data) else { return };
    let (mut plain, plain_data) = laid_out(None);
    let (mut listed, listed_data) = laid_out(Some(&first));
    assert_eq!(plain_data.len(), listed_data.len());
    let (mut before, mut after) = (contents(&mut plain, &plain_data), contents(&mut listed, &listed_data));
    before.sort();
    after.sort();
    assert!(before == after && before.len() == FILES.len(), "every file has its bytes");
}

/// The layer's tree, and its data.
fn laid_out(first: Option<&First>) -> (Tree, Vec<u8>) {
    static TAR: OnceLock<Vec<u8>> = OnceLock::new();
    let tar =
        TAR.get_or_init(|| sealed_tar(FILES.iter().zip(1..).map(|((name, size), byte)| (*name, vec![byte; *size]))));
    let mut spool = Spool::new(&scratch()).expect("a spool");
    let mut upper = Upper::new();
    read_entries(&mut Reader::new(&tar[..]), &mut upper, &mut spool).expect("a tar");
    let mut settled = upper.settle(&Merged::new()).expect("a tree");
    let contents = spool.complete().expect("its contents");
    let files = std::mem::take(&mut settled.contents);
    let plan = lay_out(&mut settled.tree, &files, contents, 64 << 10, first).expect("a plan");
    let mut data = Vec::new();
    let read = plan.read(&mut |chunk: Vec<u8>| {
        data.extend_from_slice(&chunk);
        Ok(())
    });
    read.expect("its data");
    (settled.tree, data)
}

/// What the tree's files hold.
fn contents(tree: &mut Tree, data: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, mut open) = (Vec::new(), vec![Tree::ROOT]);
    while let Some(id) = open.pop() {
        let children: Vec<NodeId> = tree.children(id).map(|(_, child)| child).collect();
        for child in children {
            match &tree.node(child).kind {
                Kind::Directory => open.push(child),
                Kind::File(Content::Plain { size, start }) => {
                    let start = *start as usize * BLOCK;
                    found.push(data[start..start + *size as usize].to_vec());
                }
                other => panic!("no file: {other:?}"),
            }
        }
    }
    found
}
