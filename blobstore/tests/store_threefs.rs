//! The 3FS backend, on a directory of any file system: the suite that every store passes, and what direct reads can get wrong.
use blobstore::store::{Settings, Store, StoreError, ThreeFsStore, conformance, open};
use bytes::Bytes;

#[tokio::test]
async fn a_directory_is_a_store() {
    // On the disk that holds the clone, and in memory, where direct reads are not always to be had.
    for place in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let Ok(dir) = tempfile::tempdir_in(place) else {
            println!("SKIPPED: needs {place}");
            continue;
        };
        let store = ThreeFsStore::new(dir.path().join("not/yet/there"), &Settings::default()).unwrap();
        conformance::run(&store).await;
        conformance::run(&*open(&format!("3fs://{}/x", dir.path().display())).unwrap()).await;
    }
}

#[tokio::test]
async fn an_object_that_another_process_replaced_or_removed_is_seen_at_the_next_read() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = ThreeFsStore::new(dir.path(), &Settings::default()).unwrap();
    store.create("a", Bytes::from_static(b"old")).await.unwrap();
    assert_eq!(store.get_range("a", 0..3).await.unwrap(), &b"old"[..]);
    std::fs::write(dir.path().join("new"), b"newer").unwrap();
    std::fs::rename(dir.path().join("new"), dir.path().join("a")).unwrap();
    assert_eq!(store.get_range("a", 0..5).await.unwrap(), &b"newer"[..]);
    std::fs::remove_file(dir.path().join("a")).unwrap();
    assert!(matches!(store.get_range("a", 0..1).await, Err(StoreError::NotFound { .. })));
}
