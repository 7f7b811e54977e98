//! What conversions that share a work directory leave, find, wait for and take over.

use super::*;
use crate::build::{Input, Settings, build};
use crate::chunk_size::ChunkSize;
use blobstore::layer::LayerId;
use blobstore::refs::Digest;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

const KEY: Key = Key { diff_id: Digest::from_bytes([7; 32]), level: 3, chunk_size: 4096, first: None };

fn made(stage: &Stage) -> crate::build::Made {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("a"), [1; 5000]).unwrap();
    let chunk_size = ChunkSize::new(4096).unwrap();
    let settings = Settings { level: 3, threads: 1, chunk_size, first: None, stage: stage.path().to_owned() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    build(Input::Directory(tree.path().to_owned()), &Default::default(), &settings, runtime.handle()).unwrap().0
}

/// Makes the files in a directory, and itself, so much older.
fn age(directory: &Path, by: Duration) {
    let then = SystemTime::now() - by;
    for entry in fs::read_dir(directory).unwrap() {
        File::options().write(true).open(entry.unwrap().path()).unwrap().set_modified(then).unwrap();
    }
    File::open(directory).unwrap().set_modified(then).unwrap();
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A key of its own for each number.
fn key(number: u8) -> Key {
    Key { diff_id: Digest::from_bytes([number; 32]), ..KEY }
}

impl Work {
    fn take(&self, key: &Key) -> Slot {
        self.slot(key, Path::new("/nowhere"), || panic!("nobody has it")).unwrap().unwrap()
    }

    fn slot_directory(&self, key: &Key) -> PathBuf {
        self.kept().join(key.name())
    }

    /// Keeps a new layer of a conversion that has ended.
    fn keep(&self, key: &Key) -> LayerId {
        let stage = self.stage().unwrap();
        let made = made(&stage);
        self.take(key).keep(&made, stage.path());
        made.entry.layer
    }
}

#[test]
fn what_a_killed_conversion_left_is_removed_and_what_lives_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let living = work.stage().unwrap();
    let dead = work.root.join("run-dead");
    fs::create_dir_all(dead.join("layers")).unwrap();
    let other = work.root.join("other");
    fs::create_dir(&other).unwrap();
    sweep::sweep(&work, u64::MAX);
    assert!(dead.exists(), "too young to be judged");
    for directory in [living.path(), &dead, &other] {
        File::open(directory).unwrap().set_modified(SystemTime::now() - HOUR).unwrap();
    }
    sweep::sweep(&work, u64::MAX);
    assert!(living.path().exists() && other.exists() && !dead.exists());
}

#[test]
fn a_kept_layer_is_taken_over_when_it_is_whole_and_made_anew_when_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let first = work.stage().unwrap();
    let made = made(&first);
    work.take(&KEY).keep(&made, first.path());
    drop(first);

    let second = work.stage().unwrap();
    let slot = work.take(&KEY);
    let found = slot.found();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].entry.clone(), found[0].chunks), (made.entry.clone(), made.chunks));
    assert_eq!(slot.adopt(&found[0], second.path()), Adopted::Yes);
    drop((slot, second));

    // A byte in the middle of the data: nothing but a hash of every byte finds it.
    let slot = work.take(&KEY);
    let file = work.slot_directory(&KEY).join(made.entry.layer.to_string());
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let third = work.stage().unwrap();
    assert_eq!(slot.adopt(&found[0], third.path()), Adopted::Damaged);
    assert!(slot.found().is_empty() && !file.exists());
    drop(slot);
    assert!(!work.slot_directory(&KEY).exists(), "an empty slot leaves nothing behind");
}

#[test]
fn a_kept_layer_that_was_published_since_it_was_found_is_gone_and_not_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    work.keep(&KEY);
    let slot = work.take(&KEY);
    let found = slot.found();
    // Who made it has no slot any more, and needs none.
    work.forget(&KEY, &found[0].entry.layer);
    let stage = work.stage().unwrap();
    assert_eq!(slot.adopt(&found[0], stage.path()), Adopted::Gone);
}

#[test]
fn a_kept_layer_that_cannot_be_taken_over_stays_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    work.keep(&KEY);
    let slot = work.take(&KEY);
    let found = slot.found();
    let stage = work.stage().unwrap();
    // No directory can be made below it.
    fs::write(stage.path().join("layers"), b"").unwrap();
    assert_eq!(slot.adopt(&found[0], stage.path()), Adopted::Not);
    let other = work.stage().unwrap();
    assert_eq!(slot.adopt(&found[0], other.path()), Adopted::Yes);
}

#[test]
fn a_torn_record_is_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let slot = work.take(&KEY);
    fs::write(work.slot_directory(&KEY).join("x.json"), b"{\"entry\":").unwrap();
    assert!(slot.found().is_empty());
}

#[test]
fn one_makes_a_layer_and_others_wait_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let stage = work.stage().unwrap();
    let made = made(&stage);
    let slot = work.take(&KEY);
    let (waits, other) = (Arc::new(AtomicBool::new(false)), work.clone());
    let told = waits.clone();
    let waiter = std::thread::spawn(move || {
        let slot = other.slot(&KEY, Path::new("/nowhere"), || told.store(true, Ordering::SeqCst)).unwrap();
        slot.unwrap().found().len()
    });
    while !waits.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    slot.keep(&made, stage.path());
    drop(slot);
    assert_eq!(waiter.join().unwrap(), 1);
    let other = Key { level: 4, ..KEY };
    let (_held, _another_level) = (work.take(&KEY), work.take(&other));
}

#[test]
fn who_shows_no_progress_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let stage = work.stage().unwrap();
    let held = work.slot(&KEY, stage.path(), || {}).unwrap().unwrap();
    let still = || lock::Holder::of(&work.slot_directory(&KEY)).still();
    assert!(still() < HOUR);
    age(&work.slot_directory(&KEY), HOUR);
    assert!(still() >= HOUR);
    assert!(work.slot(&KEY, Path::new("/nowhere"), || {}).unwrap().is_none());
    let holder = lock::Holder::of(&work.slot_directory(&KEY)).to_string();
    assert!(holder.starts_with(&format!("process {} on ", std::process::id())), "{holder}");

    // It reads on, or writes on.
    let mut input = held.signing(&[1; 100][..]);
    io::Read::read_exact(&mut input, &mut [0; 100]).unwrap();
    assert!(still() < HOUR);
    age(&work.slot_directory(&KEY), HOUR);
    fs::write(stage.path().join(crate::build::PART), b"").unwrap();
    assert!(still() < HOUR);
    age(stage.path(), HOUR);
    assert!(still() >= HOUR);
    drop(held);
    work.take(&KEY);
}

#[test]
fn a_slot_whose_file_is_removed_while_somebody_waits_is_taken_anew() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    for _ in 0..50 {
        let all: Vec<_> = (0..4)
            .map(|_| {
                let work = work.clone();
                std::thread::spawn(move || drop(work.slot(&KEY, Path::new("/nowhere"), || {}).unwrap()))
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    }
    assert!(!work.slot_directory(&KEY).exists());
}

#[test]
fn a_kept_layer_goes_when_it_is_a_week_old_and_when_a_store_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let stage = work.stage().unwrap();
    let made = made(&stage);
    work.take(&KEY).keep(&made, stage.path());
    age(&work.slot_directory(&KEY), 8 * DAY);
    sweep::sweep(&work, u64::MAX);
    assert!(work.slot_directory(&KEY).exists(), "the conversion that made it is under way");
    drop(stage);
    age(&work.slot_directory(&KEY), 6 * DAY);
    sweep::sweep(&work, u64::MAX);
    assert!(work.slot_directory(&KEY).exists(), "too young");
    age(&work.slot_directory(&KEY), 8 * DAY);
    drop(work.take(&KEY));
    sweep::sweep(&work, u64::MAX);
    assert!(!work.slot_directory(&KEY).exists(), "that somebody looked at it does not make it younger");

    work.forget(&KEY, &work.keep(&KEY));
    assert!(!work.slot_directory(&KEY).exists());
}

#[test]
fn where_room_is_short_the_oldest_of_the_kept_layers_that_are_a_day_old_go() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let keys: Vec<Key> = (0..5).map(key).collect();
    for key in &keys {
        work.keep(key);
    }
    let bytes = || {
        let files = keys.iter().filter_map(|key| fs::read_dir(work.slot_directory(key)).ok()).flatten();
        files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    for (key, age_of) in keys.iter().zip([5 * DAY, 4 * DAY, 3 * DAY, 23 * HOUR, HOUR]) {
        age(&work.slot_directory(key), age_of);
    }
    let left = || keys.iter().map(|key| work.slot_directory(key).exists()).collect::<Vec<_>>();
    sweep::sweep(&work, bytes());
    assert_eq!(left(), [true; 5], "there is room for as much again");
    // Somebody makes the layer of the oldest anew just now.
    let held = work.take(&keys[0]);
    age(&work.slot_directory(&keys[0]), 5 * DAY);
    sweep::sweep(&work, bytes() - 1);
    assert_eq!(left(), [true, false, true, true, true], "one is enough, and the oldest is in use");
    drop(held);
    sweep::sweep(&work, bytes() - 1);
    assert_eq!(left(), [false, false, true, true, true]);
    sweep::sweep(&work, 0);
    assert_eq!(left(), [false, false, false, true, true], "what is younger than a day stays however full it is");
}

#[test]
fn a_directory_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let root = Work::open(directory.path()).unwrap().root;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o770)).unwrap();
    let error = Work::open(directory.path()).unwrap_err();
    assert!(!error.is_refusal() && error.to_string().contains("not this user's alone"), "{error}");
}
