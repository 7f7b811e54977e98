//! The 3FS backend through a user-space library: one that has the interface of 3FS's, compiled here from `usrbio.c`.
use blobstore::store::{Settings, Store, StoreError, ThreeFsStore, conformance};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A store in a directory that the library takes for a mount; `None` after saying so where there is no C compiler.
fn store() -> Option<(tempfile::TempDir, Arc<ThreeFsStore>)> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = compiled(dir.path())?;
    let root = dir.path().join("mount");
    std::fs::create_dir(&root).unwrap();
    let settings = Settings { usrbio: Some(library), ..Settings::default() };
    let store = Arc::new(ThreeFsStore::new(root, &settings).unwrap());
    Some((dir, store))
}

/// The library, which is told by its own compilation what its mount is: tests do not change their process's environment.
fn compiled(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/usrbio.c"), dir.join("usrbio.so"));
    let mount = format!("-DMOUNT=\"{}\"", dir.join("mount").display());
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-pthread", &mount, "-o"]).arg(&library).arg(source);
    match command.status() {
        Ok(status) => {
            assert!(status.success());
            Some(library)
        }
        Err(_) => {
            println!("SKIPPED: needs cc");
            None
        }
    }
}

#[tokio::test]
async fn a_mount_read_through_the_library_is_a_store() {
    let Some((_dir, store)) = store() else { return };
    conformance::run(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_readers_than_rings_and_ranges_longer_than_their_memory_get_what_the_file_has() {
    let Some((_dir, store)) = store() else { return };
    let content: Vec<u8> = (0..(20 << 20) + 77u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for name in ["plain", "half.short"] {
        store.create(name, Bytes::from(content.clone())).await.unwrap();
        let whole = store.get_range(name, 0..content.len() as u64).await.unwrap();
        assert!(whole == content, "{name}");
        let mut readers = tokio::task::JoinSet::new();
        for n in 0..64u64 {
            let (store, start) = (store.clone(), n * 311_111);
            readers.spawn(async move { (start, store.get_range(name, start..start + 700_001).await.unwrap()) });
        }
        while let Some(read) = readers.join_next().await {
            let (start, body) = read.unwrap();
            assert!(body == content[start as usize..][..700_001], "{name} from {start}");
        }
    }
}

#[tokio::test]
async fn an_error_of_the_library_is_one_of_the_read_and_others_go_on() {
    let Some((_dir, store)) = store() else { return };
    store.create("x.broken", Bytes::from(vec![1; 2 << 20])).await.unwrap();
    store.create("y", Bytes::from(vec![2; 2 << 20])).await.unwrap();
    for _ in 0..20 {
        let answer = store.get_range("x.broken", 0..2 << 20).await;
        assert!(
            matches!(&answer, Err(StoreError::Io { source, .. }) if source.raw_os_error() == Some(5)),
            "{answer:?}"
        );
        assert_eq!(store.get_range("y", 5..10).await.unwrap(), vec![2; 5]);
    }
}

#[tokio::test]
async fn a_directory_that_is_on_no_mount_is_told_and_a_library_that_is_none_too() {
    let Some((dir, store)) = store() else { return };
    drop(store);
    let settings = Settings { usrbio: Some(dir.path().join("usrbio.so")), ..Settings::default() };
    let elsewhere = ThreeFsStore::new(dir.path().join("elsewhere"), &settings).unwrap();
    elsewhere.create("a", Bytes::from_static(b"x")).await.unwrap();
    let error = elsewhere.get_range("a", 0..1).await.unwrap_err().to_string();
    assert!(error.contains("no 3FS mount"), "{error}");
    std::fs::write(dir.path().join("text.so"), "not a library").unwrap();
    let settings = Settings { usrbio: Some(dir.path().join("text.so")), ..Settings::default() };
    let error = ThreeFsStore::new(dir.path(), &settings).unwrap_err().to_string();
    assert!(error.contains("text.so"), "{error}");
}
