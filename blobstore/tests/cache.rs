//! The node's cache from outside: torn, damaged, full, and used by readers who verify.

use crate::support::Input;
use blobstore::cache::{Cache, Chunks, Options, Reserve, Stats};
use blobstore::layer::{Index, LayerId};
use blobstore::meter::Meter;
use std::fs;
use std::path::{Path, PathBuf};

fn options(size: u64) -> Options {
    Options { reserve: Reserve::Bytes(0), ..Options::new(size) }
}

fn open(dir: &Path, options: &Options) -> Cache {
    let cache = Cache::open(dir, options, &Meter::default()).unwrap();
    chunks(&cache).flush();
    cache
}

fn chunks(cache: &Cache) -> &Chunks {
    cache.chunks.as_ref().unwrap()
}

/// A chunk that no other number has, and its hash.
fn chunk(n: u32, length: usize) -> ([u8; 32], Vec<u8>) {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
    (*blake3::hash(&bytes).as_bytes(), bytes)
}

fn put(chunks: &Chunks, n: u32, length: usize) -> bool {
    let (hash, bytes) = chunk(n, length);
    chunks.put(hash, bytes.into())
}

/// What a reader gets who verifies.
fn verified(chunks: &Chunks, n: u32, length: usize) -> bool {
    let (hash, bytes) = chunk(n, length);
    match chunks.get(&hash, length as u32) {
        Some(found) if *blake3::hash(&found).as_bytes() == hash => {
            assert_eq!(found, bytes);
            true
        }
        _ => false,
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir.join("chunks")).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

fn random(seed: u64, below: usize) -> usize {
    let hash = blake3::hash(&seed.to_le_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap()) as usize % below
}

#[test]
fn chunks_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    for n in 0..10 {
        assert!(put(chunks(&cache), n, 100 + n as usize));
    }
    chunks(&cache).flush();
    let before = chunks(&cache).stats();
    drop(cache);
    let cache = open(dir.path(), &options(1 << 20));
    let footer = 10 * 44 + 48;
    let after = chunks(&cache).stats();
    // What else goes on on the file system is not the cache's.
    assert_eq!(after, Stats { bytes: before.bytes + footer, free: after.free, ..before });
    assert_eq!((before.chunks, before.segments, before.bytes), (10, 1, 10 * 140 + 45));
    assert!((0..10).all(|n| verified(chunks(&cache), n, 100 + n as usize)));
    // Another length than the index of a layer tells is not that chunk.
    assert_eq!(chunks(&cache).get(&chunk(0, 100).0, 99), None);
    assert!(put(chunks(&cache), 10, 100));
    chunks(&cache).flush();
    assert_eq!(segments(dir.path()).len(), 1, "the last segment is gone on with");
    assert!(verified(chunks(&cache), 10, 100));
}

#[test]
fn a_segment_torn_at_any_byte_keeps_what_is_whole_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    let lengths = [1usize, 30, 50];
    for (n, length) in lengths.iter().enumerate() {
        put(chunks(&cache), n as u32, *length);
    }
    chunks(&cache).flush();
    drop(cache);
    let segment = segments(dir.path()).remove(0);
    let whole = fs::read(&segment).unwrap();
    let ends = [41, 41 + 70, 41 + 70 + 90];
    assert_eq!(whole.len(), ends[2] + 3 * 44 + 48, "the records, and the footer");
    for cut in 0..whole.len() {
        // A crash can leave a shorter file, or one whose end was never written.
        for tail in [0, 100] {
            let mut torn = whole[..cut].to_vec();
            torn.resize(cut + tail, 0);
            fs::write(&segment, &torn).unwrap();
            let cache = open(dir.path(), &options(1 << 20));
            for (n, length) in lengths.iter().enumerate() {
                let there = verified(chunks(&cache), n as u32, *length);
                assert_eq!(there, ends[n] <= cut, "cut at {cut}+{tail}: chunk {n}");
            }
            put(chunks(&cache), 9, 77);
            chunks(&cache).flush();
            drop(cache);
            let cache = open(dir.path(), &options(1 << 20));
            assert!(verified(chunks(&cache), 9, 77), "cut at {cut}+{tail}");
        }
    }
}

#[test]
fn flipped_bits_never_pass_for_a_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    for n in 0..8 {
        put(chunks(&cache), n, 200);
    }
    chunks(&cache).flush();
    drop(cache);
    let segment = segments(dir.path()).remove(0);
    let whole = fs::read(&segment).unwrap();
    for seed in 0..300 {
        let mut damaged = whole.clone();
        let at = random(seed, whole.len());
        damaged[at] ^= 1 << (seed % 8);
        fs::write(&segment, &damaged).unwrap();
        let cache = open(dir.path(), &options(1 << 20));
        let there = (0..8).filter(|n| verified(chunks(&cache), *n, 200)).count();
        let in_a_chunk = at < 8 * 240 && at % 240 >= 40;
        assert_eq!(there, if in_a_chunk { 7 } else { 8 }, "seed {seed}: headers and footer say the same");
        // A reader that found it damaged forgets it, and the next copy counts, here and after a restart.
        for n in 0..8 {
            if !verified(chunks(&cache), n, 200) {
                chunks(&cache).forget(&chunk(n, 200).0);
                put(chunks(&cache), n, 200);
            }
        }
        chunks(&cache).flush();
        assert!((0..8).all(|n| verified(chunks(&cache), n, 200)), "seed {seed}");
        drop(cache);
        let cache = open(dir.path(), &options(1 << 20));
        assert!((0..8).all(|n| verified(chunks(&cache), n, 200)), "seed {seed} after a restart");
    }
}

#[test]
fn the_quota_holds_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment: 1000, ..options(3000) };
    let meter = Meter::default();
    let cache = Cache::open(dir.path(), &options, &meter).unwrap();
    for n in 0..100 {
        put(chunks(&cache), n, 260);
        chunks(&cache).flush();
        assert!(chunks(&cache).stats().bytes <= 3000);
        assert!(verified(chunks(&cache), n, 260));
    }
    let stats = chunks(&cache).stats();
    let on_disk: u64 = segments(dir.path()).iter().map(|s| fs::metadata(s).unwrap().len()).sum();
    assert_eq!(on_disk, stats.bytes);
    assert!(stats.evicted_bytes > 0 && stats.carried_bytes > 0, "what was read was carried over once");
    assert_eq!(stats.bytes + stats.evicted_bytes + stats.carried_bytes, meter.cache_written_bytes());
    assert_eq!((meter.cache_bytes(), meter.cache_evicted_bytes()), (stats.bytes, stats.evicted_bytes));
    // What an administrator drops is counted apart, once it is free.
    assert_eq!(chunks(&cache).evict((0..99).map(|n| chunk(n, 260).0)), stats.chunks - 1);
    let after = chunks(&cache).stats();
    assert_eq!((after.evicted_bytes, stats.let_go_bytes), (stats.evicted_bytes, 0));
    assert_eq!(after.let_go_bytes, stats.bytes - after.bytes);
    assert!(after.let_go_bytes > 0 && verified(chunks(&cache), 99, 260));
    drop(cache);
    // A smaller quota holds from the start on.
    let options = Options { segment: 1000, ..self::options(2000) };
    let cache = open(dir.path(), &options);
    assert!(chunks(&cache).stats().bytes <= 2000);
    assert!(verified(chunks(&cache), 99, 260));
    // What can never fit is given up.
    put(chunks(&cache), 1000, 2000);
    chunks(&cache).flush();
    assert_eq!((chunks(&cache).stats().failed, verified(chunks(&cache), 99, 260)), (1, true));
}

#[test]
fn a_quota_that_was_made_smaller_is_reached_where_pins_lie_in_large_segments() {
    let dir = tempfile::tempdir().unwrap();
    let large = Options { segment: 1 << 20, ..options(16 << 20) };
    let cache = open(dir.path(), &large);
    assert!((0..40).all(|n| put(chunks(&cache), n, 10_000)));
    let (layer, pins) = (LayerId::from_bytes([1; 32]), || (0..40).step_by(5).map(|n| (chunk(n, 10_000).0, 10_000)));
    assert_eq!(chunks(&cache).pin(&layer, pins()).unwrap(), [[0; 32]; 0]);
    drop(cache);
    assert_eq!(segments(dir.path()).len(), 2, "all of it in one, and the pin");
    for size in [250_000, 120_000] {
        let cache = open(dir.path(), &Options { segment: 12_000, ..options(size) });
        let (_, trouble) = chunks(&cache).collect();
        assert!(trouble.is_none() && chunks(&cache).stats().bytes <= size, "{size}: {trouble:?}");
        assert!(pins().enumerate().all(|(n, _)| verified(chunks(&cache), 5 * n as u32, 10_000)), "{size}");
        assert!(chunks(&cache).is_pinned(&layer) && put(chunks(&cache), 100, 10_000), "{size}");
        chunks(&cache).flush();
        assert_eq!(chunks(&cache).stats().failed, 0, "{size}");
    }
}

#[test]
fn a_full_queue_means_not_cached() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { queue_bytes: 1000, ..options(1 << 20) };
    let cache = open(dir.path(), &options);
    assert!(!put(chunks(&cache), 0, 1001));
    let kept: Vec<u32> = (1..500).filter(|n| put(chunks(&cache), *n, 900)).collect();
    chunks(&cache).flush();
    assert!(!kept.is_empty());
    assert!(kept.iter().all(|n| verified(chunks(&cache), *n, 900)));
    let stats = chunks(&cache).stats();
    assert_eq!((stats.refused, stats.chunks), (500 - kept.len() as u64, kept.len() as u64));
}

#[test]
fn the_reserve_is_left_free() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    put(chunks(&cache), 0, 100);
    chunks(&cache).flush();
    drop(cache);
    let options = Options { reserve: Reserve::Bytes(u64::MAX), ..options(1 << 20) };
    let cache = open(dir.path(), &options);
    assert!(verified(chunks(&cache), 0, 100));
    put(chunks(&cache), 1, 100);
    chunks(&cache).flush();
    let stats = chunks(&cache).stats();
    assert_eq!((stats.failed, stats.bytes), (1, 0), "what is old goes before the reserve is touched");
}

/// A file system of 256 KiB, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(dir.path());
        match mount.output() {
            Ok(done) if done.status.success() => Some(Self(dir)),
            _ => {
                eprintln!("SKIPPED: needs to mount a tmpfs (root)");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg(self.0.path()).status().unwrap();
    }
}

#[test]
fn a_full_disk_degrades_to_less_caching_and_heads_go_first() {
    let Some(small) = Small::mount() else { return };
    let options = Options { segment: 20_000, ..options(1 << 30) };
    let cache = open(small.0.path(), &options);
    for n in 0..100 {
        put(chunks(&cache), n, 9_000);
    }
    chunks(&cache).flush();
    let stats = chunks(&cache).stats();
    assert!(stats.bytes < 256 << 10 && stats.evicted_bytes > 0);
    assert!(verified(chunks(&cache), 99, 9_000), "the newest is kept");
    // Without the cache's help there is no room for a head, with it there is.
    let (id, frame) = index(1);
    let metadata = vec![1; 60_000];
    let mut kept = cache.heads.put(&id, &metadata, &frame);
    assert!(kept.is_err());
    assert_eq!(cache.heads.list().unwrap(), []);
    for _ in 0..10 {
        if kept.is_err() && chunks(&cache).shed() {
            kept = cache.heads.put(&id, &metadata, &frame);
        }
    }
    assert_eq!(kept.unwrap().index.id(), id);
}

/// An index of some layer.
fn index(n: u8) -> (LayerId, Vec<u8>) {
    let input = Input { metadata: vec![n; 8192], chunks: vec![vec![n; 4096]], ..Input::new(2, &[]) };
    let (summary, layer) = input.write(1);
    let index = Index::parse(layer.into()).unwrap();
    (summary.id, index.frame().to_vec())
}

#[test]
fn heads_are_kept_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    let (id, frame) = index(1);
    assert!(cache.heads.get(&id).unwrap().is_none());
    let metadata = [7; 8192];
    let kept = cache.heads.put(&id, &metadata, &frame).unwrap();
    assert_eq!((kept.metadata_len, kept.index.id()), (8192, id));
    let file = fs::read(&kept.path).unwrap();
    assert_eq!(&file[..8192], metadata);
    assert_eq!(file.len(), 8192 + frame.len() + 48);
    drop(cache);
    fs::write(dir.path().join("heads/.new-left-behind"), "x").unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    assert_eq!(cache.heads.list().unwrap(), [(id, file.len() as u64)]);
    assert!(!dir.path().join("heads/.new-left-behind").exists());
    assert_eq!(cache.heads.get(&id).unwrap().unwrap().index.frame()[..], frame);
    cache.heads.remove(&id).unwrap();
    cache.heads.remove(&id).unwrap();
    assert!(cache.heads.get(&id).unwrap().is_none());
}

#[test]
fn a_head_with_any_byte_wrong_or_missing_counts_as_absent() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), &options(1 << 20));
    let (id, frame) = index(2);
    let path = cache.heads.put(&id, &[7; 4096], &frame).unwrap().path;
    let whole = fs::read(&path).unwrap();
    let (behind, middle) = (4096..whole.len(), [0, 1, 2000, 4095]);
    for at in middle.into_iter().chain(behind) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, damaged).unwrap();
        assert!(cache.heads.get(&id).unwrap().is_none(), "byte {at}");
        assert!(!path.exists(), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(cache.heads.get(&id).unwrap().is_none(), "cut at {at}");
    }
    let (other, _) = index(3);
    fs::write(cache.heads.path(&other), &whole).unwrap();
    assert!(cache.heads.get(&other).unwrap().is_none(), "a head under another layer's name");
    fs::write(&path, &whole).unwrap();
    assert!(cache.heads.get(&id).unwrap().is_some());
}
