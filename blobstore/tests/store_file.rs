//! The directory backend: the suite that every store passes, and what only a directory can get wrong.
use blobstore::store::{FileStore, Store, StoreError, conformance, open};
use bytes::Bytes;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn store() -> (tempfile::TempDir, FileStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path().join("not/yet/there"));
    (dir, store)
}

#[tokio::test]
async fn a_directory_is_a_store() {
    let (_dir, store) = store();
    conformance::run(&store).await;
}

#[tokio::test]
async fn an_opened_url_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&format!("file://{}", dir.path().display())).unwrap();
    conformance::run(&*store).await;
}

#[tokio::test]
async fn what_is_being_written_is_not_listed() {
    let (dir, store) = store();
    store.create("a/b", Bytes::from_static(b"x")).await.unwrap();
    let root = dir.path().join("not/yet/there");
    std::fs::write(root.join("a/.tmp-left-by-a-crash"), b"half").unwrap();
    std::fs::create_dir(root.join(".tmp-folder")).unwrap();
    std::fs::write(root.join(".tmp-folder/x"), b"half").unwrap();
    assert_eq!(store.list("").await.unwrap(), ["a/b"]);
    assert!(matches!(store.get("a/.tmp-left-by-a-crash").await, Err(StoreError::Unsupported { .. })));
}

#[tokio::test]
async fn writing_leaves_no_temporary_names_behind() {
    let (dir, store) = store();
    store.create("a/b", Bytes::from_static(b"x")).await.unwrap();
    store.put("a/b", Bytes::from_static(b"y")).await.unwrap();
    store.create("a/b", Bytes::from_static(b"z")).await.unwrap_err();
    let names = std::fs::read_dir(dir.path().join("not/yet/there/a")).unwrap().count();
    assert_eq!(names, 1);
}

#[tokio::test]
async fn objects_have_the_mode_of_ordinary_files() {
    let (dir, store) = store();
    store.create("a", Bytes::from_static(b"x")).await.unwrap();
    std::fs::write(dir.path().join("ordinary"), b"x").unwrap();
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode();
    assert_eq!(mode("not/yet/there/a"), mode("ordinary"));
}

#[tokio::test]
async fn an_object_that_another_process_replaced_or_removed_is_seen_at_the_next_read() {
    let (dir, store) = store();
    let path = dir.path().join("not/yet/there/a");
    store.create("a", Bytes::from_static(b"old")).await.unwrap();
    assert_eq!(store.get_range("a", 0..3).await.unwrap(), &b"old"[..]);
    let new = dir.path().join("new");
    std::fs::write(&new, b"newer").unwrap();
    std::fs::rename(&new, &path).unwrap();
    assert_eq!(store.get_range("a", 0..5).await.unwrap(), &b"newer"[..]);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(store.get_range("a", 0..1).await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_file_on_the_same_file_system_is_adopted_as_it_is_and_a_link_to_one_is_copied() {
    let (dir, store) = store();
    let local = dir.path().join("local");
    std::fs::write(&local, b"x").unwrap();
    std::os::unix::fs::symlink(&local, dir.path().join("link")).unwrap();
    store.adopt("a", &local).await.unwrap();
    store.adopt("b", &dir.path().join("link")).await.unwrap();
    let inode = |path: &str| std::fs::symlink_metadata(dir.path().join(path)).unwrap().ino();
    assert_eq!(inode("local"), inode("not/yet/there/a"));
    assert!(![inode("local"), inode("link")].contains(&inode("not/yet/there/b")));
    assert_eq!(store.get("b").await.unwrap(), &b"x"[..]);
}

#[tokio::test]
async fn a_file_is_copied_where_the_directory_gives_new_files_another_group() {
    let (dir, store) = store();
    let parent = dir.path().join("not/yet/there");
    std::fs::create_dir_all(&parent).unwrap();
    if std::os::unix::fs::chown(&parent, None, Some(4242)).is_err() {
        println!("SKIPPED: needs root");
        return;
    }
    std::fs::set_permissions(&parent, PermissionsExt::from_mode(0o2775)).unwrap();
    let local = dir.path().join("local");
    std::fs::write(&local, b"x").unwrap();
    store.adopt("a", &local).await.unwrap();
    assert_eq!(std::fs::metadata(parent.join("a")).unwrap().gid(), 4242);
    assert_ne!(std::fs::metadata(&local).unwrap().gid(), 4242);
}

#[tokio::test]
async fn more_objects_than_descriptors_are_kept_can_be_read() {
    let (_dir, store) = store();
    let key = |n: u32| format!("many/{n}");
    for n in 0..300u32 {
        store.put(&key(n), Bytes::from(n.to_le_bytes().to_vec())).await.unwrap();
    }
    for n in (0..300u32).chain(0..300) {
        assert_eq!(store.get_range(&key(n), 0..4).await.unwrap(), &n.to_le_bytes()[..]);
    }
    let kept = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(kept < 300, "{kept} descriptors open");
}

#[tokio::test]
async fn a_fifo_in_the_directory_is_no_object_and_nobody_waits_for_it() {
    let (dir, store) = store();
    store.create("a", Bytes::from_static(b"x")).await.unwrap();
    let path = dir.path().join("not/yet/there/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(store.get("fifo").await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.get_range("fifo", 0..1).await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.list("").await.unwrap(), ["a"]);
}

#[tokio::test]
async fn what_is_no_file_where_an_object_is_to_be_is_told_and_is_not_taken_for_one() {
    let (dir, store) = store();
    store.create("d/a", Bytes::from_static(b"x")).await.unwrap();
    let root = dir.path().join("not/yet/there");
    std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
    let local = dir.path().join("local");
    std::fs::write(&local, b"y").unwrap();
    for key in ["d", "link"] {
        assert!(matches!(store.get(key).await, Err(StoreError::NotFound { .. })), "{key}");
        for error in [
            store.create(key, Bytes::from_static(b"y")).await.unwrap_err(),
            store.upload(key, &local).await.unwrap_err(),
            store.adopt(key, &local).await.unwrap_err(),
        ] {
            let StoreError::Io { source, .. } = error else { panic!("{key}: {error}") };
            assert!(source.to_string().contains("no file"), "{key}: {source}");
        }
    }
    // A link to a file is an object.
    std::os::unix::fs::symlink("d/a", root.join("good")).unwrap();
    assert_eq!(store.get("good").await.unwrap(), &b"x"[..]);
    let taken = store.create("good", Bytes::from_static(b"y")).await;
    assert!(matches!(taken, Err(StoreError::AlreadyExists { .. })), "{taken:?}");
}

#[tokio::test]
async fn an_upload_whose_caller_goes_away_is_given_up_and_leaves_nothing() {
    let (dir, store) = store();
    // Gives its bytes when it is told to.
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let (begun, go_on) = (tokio::sync::oneshot::channel(), std::sync::mpsc::channel::<()>());
    let (path, told, wait) = (pipe.clone(), begun.0, go_on.1);
    let writer = std::thread::spawn(move || {
        use std::io::Write;
        let mut pipe = std::fs::File::options().write(true).open(path).unwrap();
        let piece = vec![1; 1 << 20];
        pipe.write_all(&piece).unwrap();
        told.send(()).unwrap();
        wait.recv().unwrap();
        // Ends with an error when nobody reads any more.
        while pipe.write_all(&piece).is_ok() {}
    });
    let upload = store.upload("a/layer", &pipe);
    tokio::select! {
        done = upload => panic!("{done:?}"),
        begun = begun.1 => begun.unwrap(),
    }
    go_on.0.send(()).unwrap();
    store.settle().await;
    writer.join().unwrap();
    let root = dir.path().join("not/yet/there");
    assert_eq!(std::fs::read_dir(root.join("a")).unwrap().count(), 0);
    assert_eq!(store.list("").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn directories_that_were_left_empty_are_tidied_away_once_they_are_old() {
    let (dir, store) = store();
    let root = dir.path().join("not/yet/there");
    store.create("node/leases/here/mounts", Bytes::from_static(b"x")).await.unwrap();
    for empty in ["node/leases/convert-a", "node/profiles/b/c", "else/where/it/is/empty"] {
        std::fs::create_dir_all(root.join(empty)).unwrap();
    }
    let hour = std::time::Duration::from_secs(3600);
    let now = std::time::SystemTime::now();
    store.tidy("node/", now - hour).await.unwrap();
    assert!(root.join("node/leases/convert-a").is_dir());
    store.tidy("node/", now + hour).await.unwrap();
    assert!(!root.join("node/leases/convert-a").exists() && !root.join("node/profiles/b").exists());
    assert!(root.join("node/profiles").is_dir() && root.join("else/where/it/is/empty").is_dir());
    assert_eq!(store.list("").await.unwrap(), ["node/leases/here/mounts"]);
}

#[test]
fn writers_make_a_directory_again_that_vanishes_under_them() {
    let (dir, store) = store();
    let local = dir.path().join("local");
    std::fs::write(&local, b"x").unwrap();
    let (store, local) = (&store, &local);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tidy = || runtime().block_on(store.tidy("node/", later)).unwrap();
    // A collector that follows each object that was written. One that never rests could keep any writer from its directory.
    let (written, collector) = std::sync::mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let written = written.clone();
            scope.spawn(move || {
                runtime().block_on(async {
                    for n in 0..100 {
                        let key = format!("node/leases/deep/er/{writer}-{n}");
                        match n % 3 {
                            0 => store.create(&key, Bytes::from_static(b"x")).await.unwrap(),
                            1 => store.put(&key, Bytes::from_static(b"x")).await.unwrap(),
                            _ => store.adopt(&key, local).await.unwrap(),
                        }
                        assert_eq!(store.get(&key).await.unwrap(), &b"x"[..]);
                        store.delete(&key).await.unwrap();
                        written.send(()).unwrap();
                    }
                });
            });
        }
        drop(written);
        collector.iter().for_each(|()| tidy());
    });
    tidy();
    assert_eq!(std::fs::read_dir(dir.path().join("not/yet/there/node/leases")).unwrap().count(), 0);
}
