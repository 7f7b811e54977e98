//! Power lost at every change that a run makes to the disk, and what is found afterwards; and disks that fail.

use super::shared::Shared;
use super::sim_disk::{Loss, Random, SimDisk};
use super::{Chunks, Options, Reserve};
use crate::layer::LayerId;
use crate::meter::Meter;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const SIZE: u64 = 48 << 10;

pub(super) fn options() -> Options {
    Options { reserve: Reserve::Bytes(0), segment: 4 << 10, ..Options::new(SIZE) }
}

pub(super) fn open(disk: &SimDisk) -> Chunks {
    Chunks::on(Arc::new(disk.clone()), &options(), &Meter::default(), None).unwrap()
}

/// A chunk that no other number has: its hash, and 100 to 2,000 bytes.
pub(super) fn chunk(n: u64) -> ([u8; 32], Vec<u8>) {
    let mut bytes = vec![0; 100 + Random(n).below(1900)];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
    (*blake3::hash(&bytes).as_bytes(), bytes)
}

pub(super) fn put(chunks: &Chunks, n: u64) {
    let (hash, bytes) = chunk(n);
    chunks.put(hash, bytes.into());
    chunks.flush();
}

/// What a reader does: gets, verifies, forgets. Whether it was right.
pub(super) fn read(chunks: &Chunks, n: u64) -> bool {
    let (hash, bytes) = chunk(n);
    let found = chunks.get(&hash, bytes.len() as u32);
    let right = found.as_ref().is_some_and(|found| *found == bytes);
    if found.is_some() && !right {
        chunks.forget(&hash);
    }
    right
}

/// Whether a chunk is here and right. Unlike a reader's, this does not count as a use, for which it would stay anyway.
pub(super) fn there(chunks: &Chunks, n: u64) -> bool {
    chunks.shared.is_right(&chunk(n).0)
}

pub(super) fn layer(n: u8) -> LayerId {
    LayerId::from_bytes([n; 32])
}

pub(super) fn listed(numbers: &[u64]) -> Vec<([u8; 32], u32)> {
    let entry = |n: &u64| (chunk(*n).0, chunk(*n).1.len() as u32);
    numbers.iter().map(entry).collect()
}

/// Pins that were acknowledged, and that nobody has asked to take away since.
pub(super) type Pins = BTreeMap<u8, Vec<u64>>;

/// Puts, reads, pins and unpins; restarts in the middle. Stops when there is no power.
fn run(disk: &SimDisk, seed: u64, pins: &mut Pins) {
    let mut random = Random(seed);
    let mut chunks = open(disk);
    for step in 0..90 {
        match random.below(12) {
            0..7 => put(&chunks, random.below(120) as u64),
            7 | 8 => _ = read(&chunks, random.below(120) as u64),
            9 => {
                let name = random.below(4) as u8;
                // Of some length, so that pins grow; and neighbours share a chunk.
                let wanted: Vec<u64> = (0..1 + random.below(3) as u64).map(|n| u64::from(name) * 2 + n).collect();
                for _ in 0..2 {
                    match chunks.pin(&layer(name), listed(&wanted)) {
                        Ok(missing) if missing.is_empty() => pins.entry(name).or_default().extend(&wanted),
                        Ok(_) => wanted.iter().for_each(|n| put(&chunks, *n)),
                        Err(_) => {}
                    }
                }
            }
            10 => {
                let name = random.below(4) as u8;
                pins.remove(&name);
                let _ = chunks.unpin(&layer(name));
            }
            _ if step % 3 == 0 => {
                drop(chunks);
                chunks = open(disk);
            }
            _ => _ = chunks.evict([chunk(random.below(120) as u64).0]),
        }
        if !disk.has_power() {
            break;
        }
    }
}

/// What must hold of any disk that a run has left.
pub(super) fn check(disk: &SimDisk, pins: &Pins, what: &str) {
    let chunks = open(disk);
    chunks.flush();
    for (name, numbers) in pins {
        assert!(chunks.is_pinned(&layer(*name)), "{what}: pin {name}");
        assert!(numbers.iter().all(|n| there(&chunks, *n)), "{what}: pin {name}");
    }
    // After a reader has met and forgotten what is wrong, all that is there is right.
    let pinned = |n: &u64| pins.values().any(|numbers| numbers.contains(n));
    (0..120).filter(|n| !pinned(n)).for_each(|n| _ = read(&chunks, n));
    assert_eq!(chunks.verify(|_| true).wrong, 0, "{what}");
    space_is_counted(disk, &chunks, what);
    // It goes on working, past the quota.
    for n in 200..250 {
        put(&chunks, n);
        assert!(read(&chunks, n), "{what}: chunk {n}");
    }
    space_is_counted(disk, &chunks, what);
    for (name, numbers) in pins {
        assert!(numbers.iter().all(|n| there(&chunks, *n)), "{what}: pin {name} after a scan");
    }
    for name in 0..4 {
        chunks.unpin(&layer(name)).unwrap();
    }
    while chunks.shed() {}
    assert_eq!(disk.files(), [], "{what}: nothing stays that nobody drops");
}

fn space_is_counted(disk: &SimDisk, chunks: &Chunks, what: &str) {
    let segments = disk.files().into_iter().filter(|(name, _)| !name.ends_with(".pin"));
    assert_eq!(segments.map(|(_, size)| size).sum::<u64>(), chunks.stats().bytes, "{what}: {:?}", disk.files());
    assert!(disk.peak() <= SIZE, "{what}: {}", disk.peak());
}

#[test]
fn power_lost_at_any_change_loses_no_pin_and_no_space_and_serves_nothing_wrong() {
    let mut cuts = 0;
    for seed in 0..5 {
        let whole = SimDisk::new(1 << 20);
        run(&whole, seed, &mut Pins::new());
        for cut in 0..=whole.changes() {
            let disk = SimDisk::new(1 << 20);
            disk.cut_after(cut);
            let mut pins = Pins::new();
            run(&disk, seed, &mut pins);
            for loss in [Loss::All, Loss::Nothing, Loss::Tail, Loss::Any] {
                let what = format!("seed {seed}, cut {cut}, {loss:?}");
                check(&disk.after(loss, seed ^ cut << 8), &pins, &what);
                cuts += 1;
            }
        }
    }
    eprintln!("{cuts} cuts");
    assert!(cuts > 3000, "{cuts}");
}

#[test]
fn a_disk_that_fails_means_not_cached_and_is_used_again_when_it_recovers() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    (0..10).for_each(|n| put(&chunks, n));
    disk.fail(false, true);
    (10..20).for_each(|n| put(&chunks, n));
    assert!((0..10).all(|n| read(&chunks, n)), "what is there is served");
    assert!((10..20).all(|n| !read(&chunks, n)));
    assert_eq!(chunks.stats().failed, 10);
    assert!(chunks.pin(&layer(1), listed(&[1])).is_err());
    assert!(!chunks.is_pinned(&layer(1)));
    disk.fail(false, false);
    (10..20).for_each(|n| put(&chunks, n));
    assert!((0..20).all(|n| read(&chunks, n)));
    assert_eq!(chunks.pin(&layer(1), listed(&[1])).unwrap(), [[0; 32]; 0]);
    disk.fail(true, false);
    assert!((0..20).all(|n| !read(&chunks, n)), "what cannot be read is fetched");
    disk.fail(false, false);
    (0..20).for_each(|n| put(&chunks, n));
    assert!((0..20).all(|n| read(&chunks, n)));
    drop(chunks);
    // A disk that cannot be read at the start: what is on it is counted, and nothing of it is served.
    disk.fail(true, false);
    let chunks = open(&disk);
    chunks.flush();
    assert_eq!((chunks.stats().chunks, chunks.stats().bytes > 0), (0, true));
    disk.fail(false, false);
    (0..20).for_each(|n| put(&chunks, n));
    assert!((0..20).all(|n| read(&chunks, n)));
    drop(chunks);
    check(&disk, &Pins::new(), "after failures");
}

#[test]
fn a_full_disk_means_less_caching_and_pins_stay() {
    let disk = SimDisk::new(24 << 10);
    let chunks = open(&disk);
    (0..4).for_each(|n| put(&chunks, n));
    assert_eq!(chunks.pin(&layer(0), listed(&[0, 1, 2, 3])).unwrap().len(), 0);
    for n in 10..200 {
        put(&chunks, n);
        assert!((0..4).all(|n| there(&chunks, n)), "after {n}");
    }
    assert!(read(&chunks, 199) && disk.used() <= 24 << 10);
}

#[test]
fn damage_in_a_footer_costs_one_look_through_the_segment() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    (0..20).for_each(|n| put(&chunks, n));
    drop(chunks);
    for (name, size) in disk.files() {
        disk.damage(&name, size as usize - 60);
    }
    let chunks = open(&disk);
    chunks.flush();
    assert!((0..20).all(|n| read(&chunks, n)));
}

#[test]
fn before_the_segments_are_read_their_footers_are_asked() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    (0..30).for_each(|n| put(&chunks, n));
    drop(chunks);
    let shared = Shared::open(Arc::new(disk.clone()), &options(), &Meter::default(), None).unwrap();
    assert_eq!(shared.map().chunks(), 0);
    for n in 0..30 {
        let (hash, bytes) = chunk(n);
        let (file, record) = shared.find(&hash, true).unwrap();
        assert_eq!(shared.read(&file, &record).unwrap(), bytes);
    }
    assert!(shared.find(&chunk(30).0, true).is_none());
    shared.load();
    assert_eq!(shared.map().chunks(), 30);
}

#[test]
fn who_must_not_wait_for_the_disk_asks_the_memory_alone_while_the_segments_are_read() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    (0..30).for_each(|n| put(&chunks, n));
    drop(chunks);
    disk.hold_reads(true);
    let before = disk.reads();
    let chunks = open(&disk);
    for n in 0..31 {
        let (hash, bytes) = chunk(n);
        assert!(!chunks.contains(&hash) && chunks.may_have(&hash));
        assert!(chunks.get_known(&hash, bytes.len() as u32).is_none());
    }
    assert!(disk.reads() <= before + 1, "the writer's own read waits");
    disk.hold_reads(false);
    chunks.flush();
    for n in 0..30 {
        let (hash, bytes) = chunk(n);
        assert!(chunks.contains(&hash) && chunks.may_have(&hash));
        assert_eq!(chunks.get_known(&hash, bytes.len() as u32).unwrap(), bytes);
    }
    assert!(!chunks.may_have(&chunk(30).0));
}

#[test]
fn what_was_put_under_one_domain_is_not_found_under_another() {
    let disk = SimDisk::new(1 << 20);
    let under = |domain: &str| {
        let options = Options { domain: domain.to_owned(), ..options() };
        Chunks::on(Arc::new(disk.clone()), &options, &Meter::default(), None).unwrap()
    };
    let a = under("a");
    put(&a, 1);
    assert_eq!(a.pin(&layer(1), listed(&[1])).unwrap().len(), 0);
    assert!(read(&a, 1) && a.verify(|_| true).chunks == 1);
    drop(a);
    for other in ["b", ""] {
        let b = under(other);
        b.flush();
        assert!(!read(&b, 1) && !b.is_pinned(&layer(1)) && !b.unpin(&layer(1)).unwrap());
        put(&b, 1);
        assert!(read(&b, 1));
    }
    let a = under("a");
    a.flush();
    assert!(read(&a, 1) && a.is_pinned(&layer(1)));
}

#[test]
fn pins_stay_in_a_scan_count_against_the_quota_and_can_be_taken_away() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    assert_eq!(chunks.pin(&layer(1), listed(&[1, 2, 3])).unwrap().len(), 3);
    assert!(!chunks.is_pinned(&layer(1)));
    (1..4).for_each(|n| put(&chunks, n));
    (100..200).for_each(|n| put(&chunks, n));
    assert_eq!(chunks.pin(&layer(1), listed(&[1, 2, 3])).unwrap().len(), 0, "what is held stays until it is pinned");
    (200..300).for_each(|n| put(&chunks, n));
    assert_eq!(chunks.usage(listed(&[1, 2, 3, 150])).chunks, 3);
    assert_eq!(chunks.evict([chunk(1).0, chunk(299).0]), 1, "what is pinned is not evicted");
    let error = chunks.pin(&layer(2), listed(&(0..40).collect::<Vec<_>>())).unwrap_err();
    assert!(error.to_string().contains("2/5"), "{error}");
    assert!(chunks.unpin(&layer(1)).unwrap() && !chunks.unpin(&layer(1)).unwrap());
    (300..400).for_each(|n| put(&chunks, n));
    assert_eq!(chunks.usage(listed(&[1, 2, 3])).chunks, 0);
}
