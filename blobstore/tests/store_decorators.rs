//! Decorators forward everything, and do what they add.

use blobstore::store::{Action, Delay, Fault, FileStore, Metered, Op, Retry, Store, StoreError, conformance};
use bytes::Bytes;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn files() -> (tempfile::TempDir, Arc<FileStore>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::new(dir.path()));
    (dir, store)
}

#[tokio::test]
async fn a_decorated_store_is_a_store() {
    let (_dir, store) = files();
    let delayed = Arc::new(Delay::new(store.clone(), Duration::from_micros(100)));
    let faulty = Arc::new(Fault::script(delayed, []));
    let metered = Metered::new(Arc::new(Retry::new(faulty.clone())));
    conformance::run(&metered).await;
    assert_eq!(metered.url(), store.url());
    assert_eq!(metered.counts().requests.load(Relaxed), faulty.requests());
}

#[tokio::test(start_paused = true)]
async fn short_troubles_are_tried_again_and_lasting_ones_told() {
    let (_dir, store) = files();
    store.create("a", Bytes::from_static(b"hello")).await.unwrap();
    let reset = || Action::Error(ErrorKind::ConnectionReset);
    let faulty = Arc::new(Fault::script(store, [reset(), reset(), Action::Pass, Action::NotFound]));
    let retry = Retry::new(faulty.clone());
    assert_eq!(retry.get("a").await.unwrap(), &b"hello"[..]);
    assert_eq!(faulty.requests(), 3);
    assert!(matches!(retry.get("a").await, Err(StoreError::NotFound { .. })));
    assert_eq!(faulty.requests(), 4, "what is not there is not asked for again");
    let down = Arc::new(Fault::new(faulty, move |_| reset()));
    assert!(matches!(Retry::new(down.clone()).get_range("a", 0..1).await, Err(StoreError::Io { .. })));
    assert_eq!(down.requests(), 4, "there is an end to it");
}

#[tokio::test(start_paused = true)]
async fn a_range_is_waited_for_some_seconds_and_then_whoever_reads_is_told() {
    let (_dir, store) = files();
    store.create("a", Bytes::from_static(b"hello")).await.unwrap();
    let later = |seconds| Action::Busy(Some(Duration::from_secs(seconds)));
    for (asked, requests) in [(2, 4), (4, 2), (6, 1)] {
        let busy = Arc::new(Fault::new(store.clone(), move |_| later(asked)));
        let begun = tokio::time::Instant::now();
        let error = Retry::new(busy.clone()).read("a", 0..1).await.map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Busy { after: Some(after), .. } if after.as_secs() == asked), "{error}");
        assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
        assert_eq!(busy.requests(), requests);
    }
    // Others wait for each try.
    let busy = Arc::new(Fault::script(store, [later(4), later(4), later(4)]));
    assert_eq!(Retry::new(busy).get("a").await.unwrap(), &b"hello"[..]);
}

#[tokio::test]
async fn what_goes_through_is_counted() {
    let (_dir, store) = files();
    let store = Metered::new(store);
    store.create("a", Bytes::from(vec![1; 1000])).await.unwrap();
    store.create("a", Bytes::from(vec![1; 1000])).await.unwrap_err();
    store.put("a", Bytes::from(vec![1; 500])).await.unwrap();
    let local = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(local.path(), [0; 77]).unwrap();
    store.upload("b", local.path()).await.unwrap();
    store.get("a").await.unwrap();
    store.get_range("a", 10..30).await.unwrap();
    store.get_range("a", 10..3000).await.unwrap_err();
    store.stat("a").await.unwrap();
    store.list("").await.unwrap();
    store.delete("a").await.unwrap();
    let counts = store.counts();
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    assert_eq!((of(&counts.requests), of(&counts.reads), of(&counts.errors)), (10, 3, 2));
    assert_eq!((of(&counts.bytes_read), of(&counts.bytes_written)), (520, 1577));
}

#[tokio::test(start_paused = true)]
async fn a_delayed_store_answers_after_its_time_and_requests_do_not_queue() {
    let (_dir, store) = files();
    store.create("a", Bytes::from_static(b"x")).await.unwrap();
    let store = Delay::new(store, Duration::from_secs(5));
    let start = tokio::time::Instant::now();
    let (a, b) = tokio::join!(store.get("a"), store.get_range("a", 0..1));
    assert_eq!((a.unwrap(), b.unwrap()), (Bytes::from_static(b"x"), Bytes::from_static(b"x")));
    assert!((5..10).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_script_of_faults_is_followed() {
    let (_dir, store) = files();
    store.create("a", Bytes::from_static(b"hello")).await.unwrap();
    let store = Fault::script(
        store,
        [
            Action::Error(ErrorKind::TimedOut),
            Action::NotFound,
            Action::WrongByte(6),
            Action::Short(2),
            Action::Pass,
            Action::ErrorAfter(ErrorKind::ConnectionReset),
        ],
    );
    let answer = store.get("a").await;
    assert!(
        matches!(&answer, Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::TimedOut),
        "{answer:?}"
    );
    assert!(matches!(store.get("a").await, Err(StoreError::NotFound { .. })));
    assert_eq!(store.get("a").await.unwrap(), &[b'h', !b'e', b'l', b'l', b'o'][..]);
    assert_eq!(store.get_range("a", 0..5).await.unwrap(), &b"he"[..]);
    assert_eq!(store.get("a").await.unwrap(), &b"hello"[..]);
    assert!(matches!(store.create("b", Bytes::new()).await, Err(StoreError::Io { .. })));
    assert_eq!(store.get("b").await.unwrap(), &b""[..], "it was done, only the answer was lost");
    assert_eq!(store.requests(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_injector_sees_each_request() {
    let (_dir, store) = files();
    store.create("a", Bytes::from_static(b"hello")).await.unwrap();
    let store = Fault::new(store, |request| match (request.op, request.key.as_str(), &request.range) {
        (Op::GetRange, "a", Some(range)) if range.start == 3 => Action::Never,
        (Op::Get, _, None) if request.number == 1 => Action::Stall(Duration::from_secs(60)),
        _ => Action::Pass,
    });
    assert!(tokio::time::timeout(Duration::from_secs(1000), store.get_range("a", 3..4)).await.is_err());
    let start = tokio::time::Instant::now();
    store.get("a").await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(60));
    store.get("a").await.unwrap();
}
