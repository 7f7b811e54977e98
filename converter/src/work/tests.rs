use super::*;
use crate::build::{Input, Settings, build};
use crate::chunk_size::ChunkSize;
use blobstore::refs::Digest;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KEY: Key = Key { diff_id: Digest::from_bytes([7; 32]), level: 3, chunk_size: 4096 };

fn made(stage: &Stage) -> crate::build::Made {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("a"), [1; 5000]).unwrap();
    let chunk_size = ChunkSize::new(4096).unwrap();
    let settings = Settings { level: 3, threads: 1, chunk_size, stage: stage.path().to_owned() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    build(Input::Directory(tree.path().to_owned()), &Default::default(), &settings, runtime.handle()).unwrap()
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
    sweep::sweep(&work, sweep::GRACE, sweep::WEEK);
    assert!(dead.exists(), "too young to be judged");
    sweep::sweep(&work, Duration::ZERO, sweep::WEEK);
    assert!(living.path().exists() && other.exists() && !dead.exists());
}

#[test]
fn a_kept_layer_is_taken_over_when_it_is_whole_and_made_anew_when_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let first = work.stage().unwrap();
    let made = made(&first);
    work.slot(&KEY, || {}).unwrap().keep(&made, first.path());
    drop(first);

    let second = work.stage().unwrap();
    let slot = work.slot(&KEY, || {}).unwrap();
    let found = slot.found();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].entry.clone(), found[0].chunks), (made.entry.clone(), made.chunks));
    assert!(slot.adopt(&found[0], second.path()));
    drop((slot, second));

    // A byte in the middle of the data: nothing but a hash of every byte finds it.
    let slot = work.slot(&KEY, || {}).unwrap();
    let file = work.kept().join(KEY.name()).join(made.entry.layer.to_string());
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let third = work.stage().unwrap();
    assert!(!slot.adopt(&found[0], third.path()) && slot.found().is_empty() && !file.exists());
    drop(slot);
    assert!(!work.kept().join(KEY.name()).exists(), "an empty slot leaves nothing behind");
}

#[test]
fn a_torn_record_is_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let slot = work.slot(&KEY, || {}).unwrap();
    fs::write(slot_file(&work, "x.json"), b"{\"entry\":").unwrap();
    assert!(slot.found().is_empty());
}

fn slot_file(work: &Work, name: &str) -> PathBuf {
    work.kept().join(KEY.name()).join(name)
}

#[test]
fn one_makes_a_layer_and_others_wait_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let stage = work.stage().unwrap();
    let made = made(&stage);
    let slot = work.slot(&KEY, || {}).unwrap();
    let (waits, other) = (std::sync::Arc::new(AtomicBool::new(false)), work.clone());
    let told = waits.clone();
    let waiter = std::thread::spawn(move || {
        let slot = other.slot(&KEY, || told.store(true, Ordering::SeqCst)).unwrap();
        slot.found().len()
    });
    while !waits.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    slot.keep(&made, stage.path());
    drop(slot);
    assert_eq!(waiter.join().unwrap(), 1);
    let other = Key { level: 4, ..KEY };
    let _held = work.slot(&KEY, || {}).unwrap();
    work.slot(&other, || panic!("another level is another layer")).unwrap();
}

#[test]
fn a_slot_whose_file_is_removed_while_somebody_waits_is_taken_anew() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    for _ in 0..50 {
        let all: Vec<_> = (0..4)
            .map(|_| {
                let work = work.clone();
                std::thread::spawn(move || drop(work.slot(&KEY, || {}).unwrap()))
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    }
    assert!(!work.kept().join(KEY.name()).exists());
}

#[test]
fn kept_layers_go_when_they_are_old_and_when_a_store_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let work = Work::open(directory.path()).unwrap();
    let stage = work.stage().unwrap();
    let made = made(&stage);
    work.slot(&KEY, || {}).unwrap().keep(&made, stage.path());
    sweep::sweep(&work, sweep::GRACE, Duration::ZERO);
    assert!(slot_file(&work, LOCK).exists(), "the conversion that made it is under way");
    drop(stage);
    sweep::sweep(&work, sweep::GRACE, sweep::WEEK);
    assert!(slot_file(&work, LOCK).exists(), "too young");
    sweep::sweep(&work, sweep::GRACE, Duration::ZERO);
    assert!(!slot_file(&work, LOCK).exists());

    let stage = work.stage().unwrap();
    let made = self::made(&stage);
    work.slot(&KEY, || {}).unwrap().keep(&made, stage.path());
    work.forget(&KEY, &made.entry.layer);
    assert!(!slot_file(&work, LOCK).exists());
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
