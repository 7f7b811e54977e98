//! What every store must do, as a suite that each backend's tests run.
//!
//! It panics with what was expected. It writes below `conformance/` under names of its own, and removes them again:
//! it can be run on a store that is in use.

use super::{Result, Store, StoreError};
use bytes::Bytes;
use futures_util::StreamExt;
use std::fmt::Debug;
use std::io::Write;
use std::time::{Duration, SystemTime};

/// Runs the suite on a store that can be written.
pub async fn run(store: &dyn Store) {
    let base = new_base();
    assert_eq!(done(store.list(&base).await), Vec::<String>::new(), "nothing is listed where nothing was written");
    missing_objects_are_not_found(store, store, &base).await;
    ranges_are_exact(store, store, &base).await;
    what_another_replaced_is_read_anew(store, store, &base).await;
    creation_is_exclusive(store, &base).await;
    one_of_many_creators_wins(store, &base).await;
    put_replaces(store, &base).await;
    upload_is_exclusive(store, &base).await;
    adoption_is_exclusive(store, &base).await;
    listing_is_recursive_and_in_byte_order(store, &base).await;
    a_listing_tells_sizes_and_times(store, &base).await;
    bad_keys_are_refused(store, &base).await;
    remove_all(store, &base).await;
}

/// Runs what of the suite is about reading on a store that cannot be written; `writer` is the same store by another way.
pub async fn run_read_only(store: &dyn Store, writer: &dyn Store) {
    let base = new_base();
    missing_objects_are_not_found(store, writer, &base).await;
    ranges_are_exact(store, writer, &base).await;
    what_another_replaced_is_read_anew(store, writer, &base).await;
    bad_keys_are_refused(store, &base).await;
    unsupported(store.create(&format!("{base}new"), Bytes::new()).await);
    unsupported(store.put(&format!("{base}ranges"), Bytes::new()).await);
    let local = tempfile::NamedTempFile::new().expect("a temporary file");
    unsupported(store.upload(&format!("{base}new"), local.path()).await);
    unsupported(store.adopt(&format!("{base}new"), local.path()).await);
    unsupported(store.delete(&format!("{base}ranges")).await);
    assert_eq!(done(store.stat(&format!("{base}ranges")).await).size, 100_000, "what is read-only stays");
    not_found(store.stat(&format!("{base}new")).await);
    remove_all(writer, &base).await;
}

fn new_base() -> String {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos();
    format!("conformance/{}-{since}/", std::process::id())
}

async fn missing_objects_are_not_found(store: &dyn Store, writer: &dyn Store, base: &str) {
    let key = format!("{base}missing/object");
    not_found(store.get(&key).await);
    not_found(store.get_range(&key, 0..1).await);
    not_found(store.get_range(&key, 0..0).await);
    not_found(in_pieces(store, &key, 0..1).await);
    not_found(store.stat(&key).await);
    done(writer.delete(&key).await);
    done(writer.create(&format!("{base}folder/file"), Bytes::from_static(b"x")).await);
    not_found(store.get(&format!("{base}folder")).await);
    not_found(store.stat(&format!("{base}folder")).await);
    not_found(store.get(&format!("{base}folder/file/below")).await);
    done(writer.delete(&format!("{base}folder")).await);
    assert_eq!(done(store.get(&format!("{base}folder/file")).await), &b"x"[..], "a folder is no object to delete");
}

async fn ranges_are_exact(store: &dyn Store, writer: &dyn Store, base: &str) {
    let key = format!("{base}ranges");
    let body: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    done(writer.create(&key, body.clone().into()).await);
    for range in [0..1u64, 0..100_000, 99_999..100_000, 4096..8192, 7..7, 100_000..100_000] {
        let got = done(store.get_range(&key, range.clone()).await);
        assert_eq!(got, body[range.start as usize..range.end as usize], "bytes {range:?}");
        let got = done(in_pieces(store, &key, range.clone()).await);
        assert_eq!(got, body[range.start as usize..range.end as usize], "bytes {range:?} in pieces");
    }
    let long = format!("{base}long");
    let longer: Vec<u8> = (0..2_000_000u32).map(|n| (n % 253) as u8).collect();
    done(writer.create(&long, longer.clone().into()).await);
    let got = done(in_pieces(store, &long, 1..1_999_999).await);
    assert!(got == longer[1..1_999_999], "many pieces, in order");
    for range in [0..100_001u64, 100_000..100_001, 200_000..200_001, 0..u64::MAX] {
        let answer = store.get_range(&key, range.clone()).await;
        assert!(matches!(answer, Err(StoreError::Answer { .. })), "bytes {range:?} are past the end: {answer:?}");
        let answer = in_pieces(store, &key, range.clone()).await;
        assert!(matches!(answer, Err(StoreError::Answer { .. })), "{range:?} in pieces, past the end: {answer:?}");
    }
    assert_eq!(done(store.stat(&key).await).size, 100_000);
    assert_eq!(done(store.get(&key).await), body);
    let empty = format!("{base}empty");
    done(writer.create(&empty, Bytes::new()).await);
    assert_eq!(done(store.get(&empty).await), Bytes::new());
}

/// A reader that remembers an object must not keep to it, nor give bytes of two.
async fn what_another_replaced_is_read_anew(store: &dyn Store, writer: &dyn Store, base: &str) {
    let key = format!("{base}replaced/ä b+c:d");
    for n in 1..4u8 {
        done(writer.put(&key, Bytes::from(vec![n; 1000 * usize::from(n)])).await);
        assert_eq!(done(store.get_range(&key, 10..20).await), vec![n; 10]);
        assert_eq!(done(store.get_range(&key, 20..1000).await), vec![n; 980]);
        assert_eq!(done(in_pieces(store, &key, 30..999).await), vec![n; 969]);
        assert_eq!(done(store.stat(&key).await).size, 1000 * u64::from(n));
    }
    done(writer.delete(&key).await);
    not_found(store.get_range(&key, 0..1).await);
    not_found(in_pieces(store, &key, 0..1).await);
}

async fn in_pieces(store: &dyn Store, key: &str, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    let mut pieces = store.read(key, range).await?;
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
    }
    Ok(body)
}

async fn creation_is_exclusive(store: &dyn Store, base: &str) {
    let key = format!("{base}deep/er/created");
    done(store.create(&key, Bytes::from_static(b"first")).await);
    already_exists(store.create(&key, Bytes::from_static(b"second")).await);
    assert_eq!(done(store.get(&key).await), &b"first"[..], "a refused creation leaves the object alone");
    done(store.delete(&key).await);
    not_found(store.get(&key).await);
    done(store.create(&key, Bytes::from_static(b"third")).await);
    assert_eq!(done(store.get_range(&key, 0..5).await), &b"third"[..]);
}

async fn one_of_many_creators_wins(store: &dyn Store, base: &str) {
    let key = format!("{base}race/{}", "x".repeat(40));
    let create = |n: u8| store.create(&key, Bytes::from(vec![n; 1000]));
    let (a, b, c, d) = tokio::join!(create(0), create(1), create(2), create(3));
    let answers = [a, b, c, d];
    let winners: Vec<usize> = (0..4).filter(|n| answers[*n].is_ok()).collect();
    assert_eq!(winners.len(), 1, "one creator wins: {answers:?}");
    assert_eq!(done(store.get(&key).await), vec![winners[0] as u8; 1000], "and what it wrote is there");
    answers.into_iter().filter(|answer| answer.is_err()).for_each(already_exists);
}

async fn put_replaces(store: &dyn Store, base: &str) {
    let key = format!("{base}put");
    for body in [&b"one"[..], b"a longer body", b"", b"3"] {
        done(store.put(&key, Bytes::from_static(body)).await);
        assert_eq!(done(store.get(&key).await), body);
        // By range too: a store that keeps descriptors must not read the object that was replaced.
        assert_eq!(done(store.get_range(&key, 0..body.len() as u64).await), body);
        assert_eq!(done(store.stat(&key).await).size, body.len() as u64);
    }
}

async fn upload_is_exclusive(store: &dyn Store, base: &str) {
    let mut local = tempfile::NamedTempFile::new().expect("a temporary file");
    local.write_all(&[42; 300_000]).expect("writing it");
    let key = format!("{base}uploaded");
    done(store.upload(&key, local.path()).await);
    assert_eq!(done(store.get(&key).await), vec![42; 300_000]);
    local.write_all(b"more").expect("writing it");
    assert_eq!(done(store.stat(&key).await).size, 300_000, "the local file and the object are apart");
    already_exists(store.upload(&key, local.path()).await);
    let gone = local.path().with_extension("not-there");
    let answer = store.upload(&format!("{base}never"), &gone).await;
    assert!(
        matches!(&answer, Err(StoreError::Local { path, .. }) if *path == gone),
        "it is the local file: {answer:?}"
    );
}

async fn adoption_is_exclusive(store: &dyn Store, base: &str) {
    let mut local = tempfile::NamedTempFile::new().expect("a temporary file");
    local.write_all(&[43; 300_000]).expect("writing it");
    let old = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    local.as_file().set_modified(old).expect("setting its time");
    let key = format!("{base}adopt/ed");
    done(store.adopt(&key, local.path()).await);
    let modified = done(store.stat(&key).await).modified;
    assert!(modified > old + Duration::from_secs(24 * 3600), "it came into the store now: {modified:?}");
    already_exists(store.adopt(&key, local.path()).await);
    let gone = local.path().with_extension("not-there");
    let answer = store.adopt(&format!("{base}never"), &gone).await;
    assert!(
        matches!(&answer, Err(StoreError::Local { path, .. }) if *path == gone),
        "it is the local file: {answer:?}"
    );
    drop(local);
    assert_eq!(done(store.get(&key).await), vec![43; 300_000], "the object does not need the local file's name");
}

async fn listing_is_recursive_and_in_byte_order(store: &dyn Store, base: &str) {
    let folder = format!("{base}list/");
    let mut keys: Vec<String> = ["b/c", "a", "b-c", "b/a/x", "b0", "B", "b/.hidden", "ä"]
        .iter()
        .map(|name| format!("{folder}{name}"))
        .collect();
    for key in &keys {
        done(store.create(key, Bytes::from_static(b"x")).await);
    }
    keys.sort();
    assert_eq!(done(store.list(&folder).await), keys);
    let below: Vec<&String> = keys.iter().filter(|key| key.starts_with(&format!("{folder}b/"))).collect();
    assert_eq!(done(store.list(&format!("{folder}b/")).await).iter().collect::<Vec<_>>(), below);
    assert_eq!(done(store.list(&format!("{folder}c/")).await), Vec::<String>::new());
}

/// Times are the store's own, so those of two objects can be compared, whoever wrote them; to the second at least.
async fn a_listing_tells_sizes_and_times(store: &dyn Store, base: &str) {
    let folder = format!("{base}scan/");
    let key = |name: &str| format!("{folder}{name}");
    for (name, size) in [("b/c", 3), ("a", 0), ("b-c", 5000)] {
        done(store.create(&key(name), vec![7; size].into()).await);
    }
    let found = done(store.scan(&folder).await);
    let told: Vec<(&str, u64)> = found.iter().map(|o| (o.key.as_str(), o.stat.size)).collect();
    assert_eq!(told, [(&*key("a"), 0), (&*key("b-c"), 5000), (&*key("b/c"), 3)]);
    for object in &found {
        let stat = done(store.stat(&object.key).await);
        let apart = stat.modified.duration_since(object.stat.modified).unwrap_or_else(|e| e.duration());
        assert!(apart < Duration::from_secs(1), "{}: listed with {:?}, it has {stat:?}", object.key, object.stat);
    }
    let first = found[0].stat.modified;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    done(store.put(&key("a"), Bytes::new()).await);
    let again = done(store.scan(&folder).await)[0].stat.modified;
    assert!(again > first, "what is written again has a later time: {again:?} {first:?}");
    assert_eq!(done(store.scan(&key("nothing/")).await), Vec::new());
}

async fn bad_keys_are_refused(store: &dyn Store, base: &str) {
    for key in ["", "/", "..", "a/../b", "a//b", "/a", "a/", "a/./b", "a\0b", "a/.tmp-b"] {
        let key = if key.is_empty() { String::new() } else { format!("{base}bad/{key}") };
        unsupported(store.get(&key).await);
        unsupported(store.get_range(&key, 0..0).await);
        unsupported(store.stat(&key).await);
        unsupported(store.create(&key, Bytes::new()).await);
        unsupported(store.put(&key, Bytes::new()).await);
        unsupported(store.delete(&key).await);
    }
    unsupported(store.list("conformance").await);
    unsupported(store.list("../").await);
    unsupported(store.scan("conformance").await);
}

async fn remove_all(store: &dyn Store, base: &str) {
    for key in done(store.list(base).await) {
        done(store.delete(&key).await);
    }
    assert_eq!(done(store.list(base).await), Vec::<String>::new(), "what was deleted is not listed");
}

#[track_caller]
fn done<T>(answer: Result<T>) -> T {
    answer.unwrap_or_else(|error| panic!("it should work: {error}"))
}

#[track_caller]
fn not_found<T: Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(StoreError::NotFound { .. })), "it should not be found: {answer:?}");
}

#[track_caller]
fn already_exists<T: Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(StoreError::AlreadyExists { .. })), "it should exist already: {answer:?}");
}

#[track_caller]
fn unsupported<T: Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(StoreError::Unsupported { .. })), "it should be refused: {answer:?}");
}
