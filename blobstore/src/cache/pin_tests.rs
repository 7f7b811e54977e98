//! Pins on disks that fail, and what else failing disks must not do.

use super::crash_tests::{SIZE, check, chunk, layer, listed, open, options, put, read, there};
use super::sim_disk::{Loss, SimDisk};
use super::{Chunks, Options};
use crate::meter::Meter;
use std::sync::Arc;

/// A disk with a cache in which chunks 1 to 3 are pinned, with others between them: their segments may be dropped.
fn pinned() -> (SimDisk, Chunks) {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    [1, 20, 21, 22, 2, 23, 24, 25, 3, 26, 27, 28].iter().for_each(|n| put(&chunks, *n));
    assert_eq!(chunks.pin(&layer(1), listed(&[1, 2, 3])).unwrap().len(), 0);
    (disk, chunks)
}

fn all_there(chunks: &Chunks) -> bool {
    chunks.is_pinned(&layer(1)) && (1..4).all(|n| there(chunks, n))
}

fn puts(chunks: &Chunks, numbers: std::ops::Range<u64>) {
    let last = numbers.end - 1;
    numbers.for_each(|n| put(chunks, n));
    assert!(chunks.contains(&chunk(last).0), "caching goes on");
}

#[test]
fn pins_outlive_reads_that_fail_while_segments_are_dropped() {
    let (disk, chunks) = pinned();
    disk.fail_reads_of(Some(".seg"));
    puts(&chunks, 100..300);
    // A reader meets it too, and what is pinned is brought again.
    assert!((1..4).all(|n| !read(&chunks, n)));
    put(&chunks, 1);
    disk.fail_reads_of(None);
    puts(&chunks, 300..500);
    assert!(all_there(&chunks) && disk.peak() <= SIZE);
    drop(chunks);
    let chunks = open(&disk.after(Loss::All, 1));
    chunks.flush();
    assert!(all_there(&chunks), "after a loss of power");
}

#[test]
fn pins_outlive_a_start_at_which_their_segment_cannot_be_read() {
    let (disk, chunks) = pinned();
    drop(chunks);
    disk.fail_reads_of(Some("0000000000000001.seg"));
    let chunks = open(&disk);
    puts(&chunks, 100..200);
    drop(chunks);
    let chunks = open(&disk);
    puts(&chunks, 200..300);
    assert!(chunks.is_pinned(&layer(1)) && !there(&chunks, 1));
    disk.fail_reads_of(None);
    puts(&chunks, 300..400);
    assert!(all_there(&chunks));
    drop(chunks);
    check(&disk, &[(1, vec![1, 2, 3])].into(), "after all");
}

#[test]
fn a_segment_that_stays_unreadable_and_has_nothing_pinned_gives_its_space_back() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    (0..3).for_each(|n| put(&chunks, n));
    drop(chunks);
    disk.fail_reads_of(Some("0000000000000001.seg"));
    let chunks = open(&disk);
    puts(&chunks, 100..200);
    assert!(disk.files().iter().all(|(name, _)| name != "0000000000000001.seg"));
}

#[test]
fn pins_outlive_a_start_at_which_they_cannot_be_read_themselves() {
    let (disk, chunks) = pinned();
    drop(chunks);
    disk.fail_reads_of(Some(".pin"));
    let chunks = open(&disk);
    puts(&chunks, 100..300);
    assert!(!chunks.is_pinned(&layer(1)));
    assert!(chunks.pin(&layer(1), listed(&[299])).is_err(), "what it would replace is not known");
    disk.fail_reads_of(None);
    puts(&chunks, 300..400);
    assert!(all_there(&chunks));
    drop(chunks);
    check(&disk, &[(1, vec![1, 2, 3])].into(), "after all");
}

#[test]
fn pinning_again_takes_nothing_from_what_is_pinned() {
    let (disk, chunks) = pinned();
    let more = listed(&[2, 3, 50]);
    assert_eq!(chunks.pin(&layer(1), more.clone()).unwrap(), [chunk(50).0]);
    assert!(all_there(&chunks), "as durably as before");
    // One that turns out wrong is as durable as before once it has come again.
    let (file, record) = chunks.shared.find(&chunk(1).0, false).unwrap();
    chunks.shared.map_mut().forget_at(&file, &record);
    put(&chunks, 1);
    let after = open(&disk.after(Loss::All, 1));
    after.flush();
    assert!(all_there(&after) && chunks.shared.map().segment_of(&chunk(1).0).is_some());
    put(&chunks, 50);
    assert_eq!(chunks.pin(&layer(1), more).unwrap().len(), 0);
    puts(&chunks, 100..300);
    assert!(all_there(&chunks) && there(&chunks, 50));
}

#[test]
fn who_met_a_wrong_copy_does_not_forget_the_right_one() {
    let disk = SimDisk::new(1 << 20);
    // A segment for each chunk, so that all stand at the same place of theirs.
    let options = Options { segment: 1, ..options() };
    let chunks = Chunks::on(Arc::new(disk.clone()), &options, &Meter::default(), None).unwrap();
    put(&chunks, 1);
    let (file, record) = chunks.shared.find(&chunk(1).0, false).unwrap();
    disk.damage("0000000000000001.seg", 60);
    assert!(!read(&chunks, 1), "one reader forgets it");
    put(&chunks, 1);
    // Two others read the wrong copy before that, and say so now.
    assert!(chunks.shared.verified(&file, &record).is_none());
    chunks.forget(&chunk(1).0);
    assert!(chunks.contains(&chunk(1).0) && read(&chunks, 1));
}

#[test]
fn segments_that_cannot_be_finished_or_gone_on_with_are_left_as_they_are() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    put(&chunks, 0);
    drop(chunks);
    disk.fail_footers(true);
    let chunks = open(&disk);
    puts(&chunks, 1..60);
    assert_eq!(chunks.stats().failed, 0);
    assert!(there(&chunks, 0) || chunks.stats().evicted_bytes > 0);
    drop(chunks);
    disk.fail_footers(false);
    let chunks = open(&disk);
    puts(&chunks, 60..120);
    drop(chunks);
    check(&disk, &[].into(), "after all");
}

#[test]
fn the_quota_holds_while_pinned_and_wanted_chunks_are_carried_over() {
    let disk = SimDisk::new(1 << 20);
    let chunks = open(&disk);
    let mut pins = 0;
    for n in 0..600 {
        put(&chunks, n);
        (0..3).for_each(|_| _ = read(&chunks, n));
        // Everywhere, as many as may be.
        if n % 3 == 0 && chunks.pin(&layer((n / 3 % 8) as u8), listed(&[n])).is_ok() {
            pins += 1;
        }
        assert!(disk.peak() <= SIZE, "{n}: {}", disk.peak());
        if n % 100 == 99 {
            (0..4).for_each(|name| _ = chunks.unpin(&layer(name)).unwrap());
        }
    }
    assert!(pins > 20 && chunks.stats().carried_bytes > 0, "{pins}");
}
