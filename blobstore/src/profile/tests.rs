//! Merging, bounds and hostile bytes; a store that is far, read-only or full of others' profiles.

use super::*;
use crate::layer::{Flags, Front, Options, Writer};
use crate::store::{Action, Fault, FileStore, Op, Store};
use std::sync::Arc;

const CHUNK: u64 = 16 << 10;
const MS: Duration = Duration::from_millis(1);

/// The index of a layer of so many chunks of 16 KiB.
fn index(chunks: u32) -> Arc<Index> {
    let file = tempfile::tempfile().unwrap();
    let front = Front { metadata: &[1; 4096], flags: Flags::empty(), sections: &[], chunks };
    let mut writer = Writer::new(&Options { level: 1, threads: 1 }, &front, file.try_clone().unwrap()).unwrap();
    (0..chunks).for_each(|n| writer.push(vec![n as u8; CHUNK as usize]).unwrap());
    writer.finish().unwrap();
    Arc::new(Index::of_file(&file).unwrap())
}

/// A run that read the first block of these chunks, ten milliseconds apart.
fn run(index: &Index, chunks: &[u32]) -> Run {
    let mut run = Run::default();
    for (n, chunk) in chunks.iter().enumerate() {
        let at = u64::from(*chunk) * CHUNK;
        run.read(index, at..at + 1, MS * 10 * n as u32);
    }
    run
}

fn order(steps: &[Step]) -> Vec<u32> {
    steps.iter().map(|step| step.chunk).collect()
}

#[test]
fn a_run_knows_which_parts_of_which_chunks_were_read_and_when_first() {
    let index = index(4);
    let mut run = Run::default();
    run.read(&index, 3 * 4096 + 1..CHUNK + 4097, 5 * MS);
    run.read(&index, CHUNK..CHUNK + 1, 9 * MS);
    run.read(&index, 9 * CHUNK..10 * CHUNK, MS);
    let profile = Profile::new(index.id(), run);
    assert_eq!(profile.chunks[&0], Seen { runs: 1, after: 5, parts: 0b1000 });
    assert_eq!(profile.chunks[&1], Seen { runs: 1, after: 5, parts: 0b11 });
    assert_eq!(profile.chunks.len(), 2);
    let bytes = profile.bytes(&index);
    assert_eq!(bytes, [3 * 4096..CHUNK, CHUNK..CHUNK + 4096, CHUNK + 4096..CHUNK + 8192]);
}

#[test]
fn runs_are_merged_and_what_they_no_longer_read_is_forgotten() {
    let index = index(8);
    let mut profile = Profile::new(index.id(), run(&index, &[7, 1]));
    profile.add(&run(&index, &[1, 2]));
    assert_eq!((profile.runs, profile.chunks[&1].runs, profile.chunks[&1].after), (2, 2, 5));
    for _ in 0..100 {
        profile.add(&run(&index, &[1, 2]));
    }
    assert!(!profile.chunks.contains_key(&7) && profile.runs < MEMORY);
    assert!(profile.chunks.values().all(|seen| seen.runs <= profile.runs));
}

#[test]
fn a_plan_has_what_starts_are_likely_to_read_in_the_order_in_which_they_read_it() {
    let index = index(8);
    let mut mine = Profile::new(index.id(), run(&index, &[3, 0, 5]));
    (0..4).for_each(|_| mine.add(&run(&index, &[3, 0])));
    let theirs = Profile::new(index.id(), run(&index, &[3, 6]));
    // 5 was read by one of five runs of one of two nodes.
    let steps = plan(&index, &[mine.clone(), theirs], u64::MAX);
    assert_eq!(order(&steps), [3, 0, 6]);
    let stored = u64::from(index.chunk(0).unwrap().stored_len);
    assert_eq!(order(&plan(&index, &[mine], stored)), [3], "most of the starts first");
    assert!(plan(&index, &[], u64::MAX).is_empty());
}

#[test]
fn a_nodes_many_runs_are_one_vote() {
    let index = index(8);
    let loud = Profile { runs: 65535, ..Profile::new(index.id(), run(&index, &[1])) };
    let loud = Profile { chunks: loud.chunks.iter().map(|(c, s)| (*c, Seen { runs: 65535, ..*s })).collect(), ..loud };
    let others = (0..4).map(|_| Profile::new(index.id(), run(&index, &[2])));
    let all: Vec<Profile> = others.chain([loud]).collect();
    assert_eq!(order(&plan(&index, &all, u64::MAX)), [2]);
}

#[test]
fn a_profile_survives_its_bytes_and_any_change_to_them_is_an_error() {
    let index = index(8);
    let profile = Profile::new(index.id(), run(&index, &[3, 0, 5]));
    let bytes = profile.encode();
    assert_eq!(Profile::decode(&bytes, &index).as_ref(), Ok(&profile));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x40;
        assert!(Profile::decode(&changed, &index).is_err(), "byte {at}");
        assert!(Profile::decode(&bytes[..at], &index).is_err(), "cut at {at}");
    }
    assert!(Profile::decode(&[&bytes[..], &[0]].concat(), &index).is_err());
    assert!(Profile::decode(&bytes, &super::tests::index(9)).is_err(), "another layer's");
}

fn insert(profile: &mut Profile, chunk: u32, seen: Seen) {
    profile.chunks.insert(chunk, seen);
}

#[test]
fn a_hostile_profile_with_a_right_checksum_is_refused() {
    let index = index(8);
    let good = Profile::new(index.id(), run(&index, &[3, 5]));
    let with = |change: &dyn Fn(&mut Profile)| {
        let mut profile = good.clone();
        change(&mut profile);
        Profile::decode(&profile.encode(), &index)
    };
    assert!(with(&|_| {}).is_ok());
    let seen = good.chunks[&3];
    assert!(with(&|p| insert(p, 8, seen)).is_err(), "a chunk that is not there");
    assert!(with(&|p| insert(p, u32::MAX, seen)).is_err());
    assert!(with(&|p| p.runs = 0).is_err());
    assert!(with(&|p| p.runs = 1 << 16).is_err());
    assert!(with(&|p| insert(p, 3, Seen { runs: 2, ..seen })).is_err());
    assert!(with(&|p| insert(p, 3, Seen { runs: 0, ..seen })).is_err());
    assert!(with(&|p| insert(p, 3, Seen { after: u32::MAX, ..seen })).is_err());
    assert!(
        with(&|p| insert(p, 3, Seen { parts: u128::MAX, ..seen }))
            .is_ok_and(|p| { p.bytes(&index).iter().all(|b| b.end <= index.data_len()) })
    );
    // The same chunk twice, and chunks in another order.
    let (bytes, header) = (good.encode(), 56);
    for order in [[0, 0], [1, 0]] {
        let entry = |n: usize| &bytes[header + n * 28..header + (n + 1) * 28];
        let content = [&bytes[..header], entry(order[0]), entry(order[1])].concat();
        let hash = blake3::hash(&content);
        assert!(Profile::decode(&[&content[..], hash.as_bytes()].concat(), &index).is_err());
    }
}

struct Nodes {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Nodes {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::new(dir.path().join("store")));
        Self { dir, store }
    }

    fn keep(&self, name: &str, share: Share) -> Keep {
        Keep::open(&self.dir.path().join(name), self.store.clone(), share, name).unwrap()
    }
}

#[tokio::test]
async fn what_one_node_recorded_another_finds_and_asks_for_once() {
    let (nodes, index) = (Nodes::new(), index(8));
    nodes.keep("a", Share::Store).add(&index, run(&index, &[4, 2])).await.unwrap();
    nodes.keep("c", Share::Node).add(&index, run(&index, &[7])).await.unwrap();
    let found = nodes.keep("b", Share::Store).of(&index).await;
    assert_eq!(order(&plan(&index, &found, u64::MAX)), [4, 2]);
    // From now on from its own disk, whatever the store does.
    std::fs::remove_dir_all(nodes.dir.path().join("store")).unwrap();
    assert_eq!(nodes.keep("b", Share::Store).of(&index).await, found);
    assert_eq!(nodes.keep("c", Share::Node).of(&index).await.len(), 1);
}

#[tokio::test]
async fn a_node_that_lost_its_cache_goes_on_with_its_profile_of_the_store() {
    let (nodes, index) = (Nodes::new(), index(8));
    nodes.keep("a", Share::Store).add(&index, run(&index, &[4, 2])).await.unwrap();
    std::fs::remove_dir_all(nodes.dir.path().join("a")).unwrap();
    let keep = nodes.keep("a", Share::Store);
    assert_eq!(keep.of(&index).await.len(), 1);
    assert_eq!(keep.add(&index, run(&index, &[4])).await.unwrap().runs, 2);
}

#[tokio::test]
async fn runs_that_say_nothing_new_are_not_written_to_the_store_each_time() {
    let (nodes, index) = (Nodes::new(), index(8));
    let keep = nodes.keep("a", Share::Store);
    for _ in 0..7 {
        keep.add(&index, run(&index, &[4, 2])).await.unwrap();
    }
    let stored = nodes.store.get(&format!("node/profiles/{}/a", index.id())).await.unwrap();
    assert_eq!(Profile::decode(&stored, &index).unwrap().runs, 4);
}

#[tokio::test]
async fn wrong_profiles_names_and_lengths_in_the_store_are_passed_over() {
    let (nodes, index) = (Nodes::new(), index(8));
    let put = async |name: &str, bytes: Vec<u8>| {
        nodes.store.put(&format!("node/profiles/{}/{name}", index.id()), bytes.into()).await.unwrap();
    };
    put("garbage", vec![7; 200]).await;
    put("huge", vec![0; format::MAX_LEN + 1]).await;
    put("empty", Vec::new()).await;
    put("b/c", Profile::new(index.id(), run(&index, &[1])).encode()).await;
    put("good", Profile::new(index.id(), run(&index, &[6])).encode()).await;
    let keep = nodes.keep("a", Share::Store);
    assert_eq!(order(&plan(&index, &keep.of(&index).await, u64::MAX)), [6]);
    for name in ["", ".asked", "a/b", "ä", &"x".repeat(65)] {
        assert!(Keep::open(nodes.dir.path(), nodes.store.clone(), Share::Store, name).is_err(), "{name}");
    }
    assert!(is_named(&node_name()));
}

fn is_named(name: &str) -> bool {
    name.len() == 16 && name == node_name()
}

#[tokio::test]
async fn of_a_crowd_a_node_follows_some_and_does_not_join_it() {
    let (nodes, index) = (Nodes::new(), index(8));
    for n in 0..20 {
        nodes.keep(&format!("n{n:02}"), Share::Store).add(&index, run(&index, &[n % 8])).await.unwrap();
    }
    let prefix = format!("node/profiles/{}/", index.id());
    assert_eq!(nodes.store.list(&prefix).await.unwrap().len(), 16);
    assert_eq!(nodes.keep("new", Share::Store).of(&index).await.len(), 8);
}

#[tokio::test]
async fn a_store_that_cannot_be_written_leaves_profiles_on_the_node() {
    let (mut nodes, index) = (Nodes::new(), index(8));
    nodes.store = Arc::new(Fault::new(nodes.store.clone(), |request| match request.op {
        Op::Put => Action::Error(std::io::ErrorKind::PermissionDenied),
        _ => Action::Pass,
    }));
    let keep = nodes.keep("a", Share::Store);
    keep.add(&index, run(&index, &[4, 2])).await.unwrap();
    assert_eq!(order(&plan(&index, &keep.of(&index).await, u64::MAX)), [4, 2]);
}
