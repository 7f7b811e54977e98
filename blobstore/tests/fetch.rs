//! The fetcher against stores that fail in every way: right bytes, or an error in time; never wrong bytes.
//!
//! Time stands still while anything can still happen, so that no test depends on how fast the machine is.

use crate::support::node;
use blobstore::fetch::{FetchKind, Fetcher, Layer, OnOutage, Options};
use blobstore::layer::Index;
use blobstore::meter::Source;
use blobstore::refs::StackEntry;
use blobstore::store::{Action, Fault, Store};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A store with one layer, and a node.
struct Setup {
    dir: TempDir,
    layer: Layer,
    entry: StackEntry,
    contents: Vec<Vec<u8>>,
}

impl Setup {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<_> = (0..8).map(node::content).collect();
        let (layer, entry) = node::add(dir.path(), &contents, &[5; 8192]).await;
        Self { dir, layer, entry, contents }
    }

    /// Another layer, with two chunks of the first.
    async fn other(&self) -> Layer {
        node::add(self.dir.path(), &self.contents[2..4], &[6; 4096]).await.0
    }

    fn store(&self) -> Arc<dyn Store> {
        node::store(self.dir.path())
    }

    fn script(&self, actions: impl IntoIterator<Item = Action>) -> Arc<Fault> {
        Arc::new(Fault::script(self.store(), actions))
    }

    fn fetcher(&self, store: Arc<dyn Store>, options: Options) -> Fetcher {
        node::fetcher(self.dir.path(), store, options)
    }

    fn no_chunk_cache(&self, store: Arc<dyn Store>, options: Options) -> Fetcher {
        node::uncached(self.dir.path(), store, options)
    }
}

fn quick() -> Options {
    Options { pause: Duration::from_millis(1), ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn sixty_four_waiters_make_one_request() {
    let setup = Setup::new().await;
    let store = setup.script([Action::Stall(Duration::from_millis(50))]);
    let fetcher = setup.fetcher(store.clone(), quick());
    let waiters: Vec<_> = (0..64)
        .map(|_| {
            let (fetcher, layer) = (fetcher.clone(), setup.layer.clone());
            tokio::spawn(async move { fetcher.get(&layer, 3).await.unwrap() })
        })
        .collect();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap()[..], setup.contents[3]);
    }
    assert_eq!(fetcher.get(&setup.layer, 3).await.unwrap()[..], setup.contents[3]);
    assert_eq!(store.requests(), 1);
    let stored = setup.layer.index.chunk(3).unwrap().stored_len;
    assert_eq!(fetcher.meter().fetched_bytes(), u64::from(stored));
    // A request is over a moment after its chunks were handed out.
    while fetcher.meter().fetches() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fetcher.meter().fetches(), 1);
    // What a reader asked for is counted when it has been read, by where it had to wait for it.
    let at = std::time::Instant::now();
    fetcher.was_read(&setup.layer, 5..12, Some(Source::Store), at);
    fetcher.was_read(&setup.layer, 7..8, Some(Source::Memory), at);
    fetcher.was_read(&setup.layer, 0..100, None, at);
    let read = [Source::Memory, Source::Cache, Source::Store].map(|source| fetcher.meter().read_bytes(source));
    assert_eq!(read, [1, 0, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_takes_nobody_with_it() {
    let setup = Setup::new().await;
    let store = setup.script([Action::Stall(Duration::from_millis(100))]);
    let fetcher = setup.fetcher(store.clone(), quick());
    let first = tokio::spawn({
        let (fetcher, layer) = (fetcher.clone(), setup.layer.clone());
        async move { fetcher.get(&layer, 0).await }
    });
    while store.requests() == 0 {
        tokio::task::yield_now().await;
    }
    let second = tokio::spawn({
        let (fetcher, layer) = (fetcher.clone(), setup.layer.clone());
        async move { fetcher.get(&layer, 0).await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(second.await.unwrap().unwrap()[..], setup.contents[0]);
    assert_eq!(store.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn passing_faults_end_in_the_right_bytes() {
    let setup = Setup::new().await;
    let faults = [
        vec![Action::Short(100)],
        vec![Action::Short(0), Action::Short(1)],
        vec![Action::WrongByte(0)],
        vec![Action::WrongByte(5000), Action::WrongByte(17)],
        vec![Action::Error(ErrorKind::ConnectionReset); 7],
        vec![Action::ErrorAfter(ErrorKind::TimedOut), Action::WrongByte(1), Action::Short(9)],
    ];
    for (chunk, actions) in faults.into_iter().enumerate() {
        let wrong = actions.iter().filter(|a| matches!(a, Action::WrongByte(_))).count() as u64;
        let failed = actions.len() as u64;
        let store = setup.script(actions.clone());
        let fetcher = setup.no_chunk_cache(store.clone(), quick());
        let got = fetcher.get(&setup.layer, chunk as u32).await.unwrap();
        assert_eq!(got[..], setup.contents[chunk], "{actions:?}");
        assert_eq!(store.requests(), failed + 1);
        assert_eq!((fetcher.meter().verify_failures(), fetcher.meter().fetch_errors()), (wrong, failed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_wrong_is_an_error_after_some_attempts() {
    let setup = Setup::new().await;
    for (action, kind) in [(Action::WrongByte(70), FetchKind::Verify), (Action::Short(70), FetchKind::Answer)] {
        let store = Arc::new(Fault::new(setup.store(), move |_| action.clone()));
        let fetcher = setup.fetcher(store.clone(), quick());
        let error = fetcher.get(&setup.layer, 2).await.unwrap_err();
        assert_eq!((error.kind, error.attempts, error.chunk), (kind, 4, Some(2)));
        assert_eq!(store.requests(), 4);
        let text = error.to_string();
        for part in [setup.layer.id.to_string(), "chunk 2".into(), setup.store().url().into(), "attempts: 4".into()] {
            assert!(text.contains(&part), "{part} in {text}");
        }
        assert!(fetcher.cached(&setup.layer, 2).is_none());
        assert_eq!(fetcher.chunks().unwrap().stats().chunks, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_an_error_at_once() {
    let setup = Setup::new().await;
    let store = setup.script([Action::NotFound]);
    let fetcher = setup.fetcher(store.clone(), quick());
    let error = fetcher.get(&setup.layer, 0).await.unwrap_err();
    assert_eq!((error.kind, store.requests()), (FetchKind::NotFound, 1));
    let error = fetcher.get(&setup.layer, 8).await.unwrap_err();
    assert!(error.to_string().contains("no such chunk"), "{error}");
    assert!(fetcher.cached(&setup.layer, 8).is_none());
    // An error is remembered by nobody.
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap()[..], setup.contents[0]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_an_error_at_the_deadline() {
    for (action, kind) in
        [(Action::Never, FetchKind::Timeout), (Action::Error(ErrorKind::ConnectionRefused), FetchKind::Transport)]
    {
        let setup = Setup::new().await;
        let store = Arc::new(Fault::new(setup.store(), move |_| action.clone()));
        let options = Options {
            deadline: Duration::from_millis(400),
            attempt: Duration::from_millis(100),
            pause: Duration::from_millis(10),
            ..Options::default()
        };
        let fetcher = setup.fetcher(store.clone(), options);
        let error = fetcher.get(&setup.layer, 0).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.attempts > 1, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_is_asked_for_again_waits_for_one_deadline_however_often() {
    let setup = Setup::new().await;
    let out = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_out = out.clone();
    let store = Arc::new(Fault::new(setup.store(), move |_| match is_out.load(std::sync::atomic::Ordering::Relaxed) {
        true => Action::Never,
        false => Action::Pass,
    }));
    let seconds = Duration::from_secs;
    let options = Options { attempt: seconds(3), deadline: seconds(10), coalesce: 0, ..quick() };
    let fetcher = setup.no_chunk_cache(store.clone(), options);
    let begun = tokio::time::Instant::now();
    // As the kernel does: what it wanted to read ahead it asks for again, chunk by chunk, for each reader who waits.
    let first = fetcher.get_all(&setup.layer, &[0, 1, 2], &[]).await.unwrap_err();
    let asked = store.requests();
    for chunk in [0, 0, 1, 2, 0] {
        let again = fetcher.get(&setup.layer, chunk).await.unwrap_err();
        assert_eq!((again.kind, again.attempts), (first.kind, first.attempts), "{again}");
    }
    assert_eq!(store.requests(), asked, "the store is not asked again");
    assert!(begun.elapsed() < seconds(11), "{:?}", begun.elapsed());
    // Another one has a deadline of its own, and so has who comes a moment later.
    let other = tokio::time::Instant::now();
    fetcher.get(&setup.layer, 3).await.unwrap_err();
    assert!(other.elapsed() >= seconds(10));
    let later = tokio::time::Instant::now();
    fetcher.get(&setup.layer, 0).await.unwrap_err();
    assert!(later.elapsed() >= seconds(10) && store.requests() > asked);
    out.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(fetcher.get(&setup.layer, 0).await.is_err(), "it has waited for its deadline");
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap()[..], setup.contents[0]);
}

#[tokio::test(start_paused = true)]
async fn what_failed_soon_is_tried_again_within_the_same_deadline() {
    let setup = Setup::new().await;
    let seconds = Duration::from_secs;
    // Wrong once more than is tried, and then it does not answer.
    let wrong = vec![Action::WrongByte(1); 4];
    let store = setup.script(wrong.into_iter().chain(vec![Action::Never; 9]));
    let options = Options { attempt: seconds(20), deadline: seconds(10), ..quick() };
    let fetcher = setup.no_chunk_cache(store.clone(), options);
    let begun = tokio::time::Instant::now();
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap_err().kind, FetchKind::Verify);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap_err().kind, FetchKind::Timeout);
    assert!(begun.elapsed() < seconds(11) && store.requests() == 5, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_begins_just_before_the_deadline_hides_no_cause() {
    let setup = Setup::new().await;
    let actions = [Action::Error(ErrorKind::ConnectionRefused), Action::Never];
    let options = Options { deadline: Duration::from_millis(10), ..quick() };
    let error = setup.fetcher(setup.script(actions), options).get(&setup.layer, 0).await.unwrap_err();
    assert_eq!((error.kind, error.attempts), (FetchKind::Transport, 2), "{error}");
    assert!(error.to_string().contains("injected fault; then the deadline passed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_asks_to_come_back_later_is_asked_then_and_not_before() {
    let setup = Setup::new().await;
    let seconds = |n| Some(Duration::from_secs(n));
    let store = setup.script([Action::Busy(seconds(7)), Action::Busy(seconds(3)), Action::Busy(None)]);
    let begun = tokio::time::Instant::now();
    let fetcher = setup.fetcher(store.clone(), quick());
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap()[..], setup.contents[0]);
    assert!(begun.elapsed() >= Duration::from_secs(10) && begun.elapsed() < Duration::from_secs(11));
    assert_eq!(store.requests(), 4);
    // Later than a reader can wait: one more try, at the end.
    let setup = Setup::new().await;
    let store = Arc::new(Fault::new(setup.store(), move |_| Action::Busy(seconds(120))));
    let begun = tokio::time::Instant::now();
    let error = setup.fetcher(store.clone(), quick()).get(&setup.layer, 1).await.unwrap_err();
    assert_eq!((error.kind, error.attempts, store.requests()), (FetchKind::Transport, 2, 2), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(29) && begun.elapsed() < Duration::from_secs(30));
    // Where outages are waited for: as long as it takes.
    let setup = Setup::new().await;
    let store = setup.script(vec![Action::Busy(seconds(600)); 5]);
    let options = Options { on_outage: OnOutage::Wait, ..quick() };
    let content = setup.fetcher(store, options).get(&setup.layer, 2).await.unwrap();
    assert_eq!(content[..], setup.contents[2]);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_attempt_is_given_up_for_another() {
    let setup = Setup::new().await;
    let store = setup.script([Action::Never, Action::Never]);
    let options = Options { attempt: Duration::from_millis(30), ..quick() };
    let fetcher = setup.fetcher(store.clone(), options);
    assert_eq!(fetcher.get(&setup.layer, 0).await.unwrap()[..], setup.contents[0]);
    assert_eq!(store.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_requests_in_flight_are_bounded() {
    let setup = Setup::new().await;
    let store = Arc::new(Fault::new(setup.store(), |_| Action::Never));
    let options = Options { concurrency: 3, ..quick() };
    let fetcher = setup.fetcher(store.clone(), options);
    for n in 0..8 {
        let (fetcher, layer) = (fetcher.clone(), setup.layer.clone());
        tokio::spawn(async move { fetcher.get(&layer, n).await });
    }
    while store.requests() < 3 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(store.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_fetched_once_is_read_without_the_store_after_a_restart() {
    let setup = Setup::new().await;
    let fetcher = setup.fetcher(setup.store(), quick());
    assert!(fetcher.cached(&setup.layer, 0).is_none());
    for n in 0..8 {
        fetcher.get(&setup.layer, n).await.unwrap();
        assert_eq!(fetcher.cached(&setup.layer, n).unwrap()[..], setup.contents[n as usize]);
    }
    fetcher.chunks().unwrap().flush();
    drop(fetcher);
    let store = setup.script(vec![Action::NotFound; 100]);
    let fetcher = setup.fetcher(store.clone(), quick());
    // While the cache is still being read, or not any more.
    for n in (1..8).step_by(2) {
        assert_eq!(fetcher.get(&setup.layer, n).await.unwrap()[..], setup.contents[n as usize]);
    }
    fetcher.chunks().unwrap().flush();
    for n in (0..8).step_by(2) {
        let (content, source) = fetcher.cached_from(&setup.layer, n).unwrap();
        assert_eq!((&content[..], source), (&setup.contents[n as usize][..], Source::Cache));
    }
    assert_eq!(store.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_chunk_cache_misses_go_to_the_store() {
    let setup = Setup::new().await;
    let store = setup.script([]);
    let fetcher = setup.no_chunk_cache(store.clone(), Options { decoded: 0, ..quick() });
    for _ in 0..2 {
        assert_eq!(fetcher.get(&setup.layer, 1).await.unwrap()[..], setup.contents[1]);
        assert!(fetcher.cached(&setup.layer, 1).is_none());
    }
    assert_eq!((store.requests(), fetcher.decoded_bytes()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn flipped_bits_on_disk_are_found_and_fetched_again() {
    let setup = Setup::new().await;
    let fetcher = setup.fetcher(setup.store(), quick());
    for n in 0..8 {
        fetcher.get(&setup.layer, n).await.unwrap();
    }
    fetcher.chunks().unwrap().flush();
    drop(fetcher);
    let segment = setup.dir.path().join("cache/chunks/0000000000000001.seg");
    let whole = std::fs::read(&segment).unwrap();
    let mut found = 0;
    for seed in 0..60u64 {
        let hash = blake3::hash(&seed.to_le_bytes());
        let at = u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap()) as usize % whole.len();
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (seed % 8);
        std::fs::write(&segment, damaged).unwrap();
        let store = setup.script([]);
        let fetcher = setup.fetcher(store.clone(), quick());
        for n in 0..8 {
            if let Some(local) = fetcher.cached(&setup.layer, n) {
                assert_eq!(local[..], setup.contents[n as usize], "seed {seed}");
            }
            assert_eq!(fetcher.get(&setup.layer, n).await.unwrap()[..], setup.contents[n as usize], "seed {seed}");
        }
        assert!(store.requests() > 0, "seed {seed}");
        found += fetcher.meter().verify_failures();
    }
    assert!(found > 30, "most flips are in chunks' bytes: {found}");
}

#[tokio::test(start_paused = true)]
async fn equal_chunks_of_two_layers_are_fetched_once() {
    let setup = Setup::new().await;
    let other = setup.other().await;
    let store = setup.script([]);
    let fetcher = setup.fetcher(store.clone(), quick());
    fetcher.get(&setup.layer, 2).await.unwrap();
    assert_eq!(fetcher.get(&other, 0).await.unwrap()[..], setup.contents[2]);
    assert_eq!(store.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_does_not_fail_with_another_layers_fetch() {
    let setup = Setup::new().await;
    let other = setup.other().await;
    let gone = setup.layer.key.clone();
    let store = Arc::new(Fault::new(setup.store(), move |request| match request.key == gone {
        true => Action::NotFound,
        false => Action::Pass,
    }));
    let fetcher = setup.fetcher(store, quick());
    let (fails, works) = tokio::join!(fetcher.get(&setup.layer, 2), fetcher.get(&other, 0));
    assert_eq!(fails.unwrap_err().kind, FetchKind::NotFound);
    assert_eq!(works.unwrap()[..], setup.contents[2]);
}

#[tokio::test(start_paused = true)]
async fn a_head_is_one_request_and_then_none() {
    let setup = Setup::new().await;
    let store = setup.script([Action::Stall(Duration::from_millis(20))]);
    let fetcher = setup.fetcher(store.clone(), quick());
    let open = || {
        fetcher.open_head(&setup.entry, |metadata, index| {
            assert_eq!((metadata.len() as u64, metadata[0]), (index.metadata_len(), 5));
            metadata[0] = 6;
            Ok(())
        })
    };
    let (one, two) = tokio::join!(open(), open());
    let (one, _) = (one.unwrap(), two.unwrap());
    let again = open().await.unwrap();
    assert_eq!(store.requests(), 1);
    assert_eq!(fetcher.meter().fetched_bytes(), setup.entry.head);
    assert_eq!((again.metadata_len, &again.path, again.layer.id), (8192, &one.path, setup.layer.id));
    let file = std::fs::read(&again.path).unwrap();
    assert_eq!((file[0], file[1]), (6, 5));
    assert_eq!(fetcher.get(&again.layer, 7).await.unwrap()[..], setup.contents[7]);
}

#[tokio::test(start_paused = true)]
async fn a_head_whose_length_is_told_wrong_or_not_at_all_is_found_anyway() {
    let setup = Setup::new().await;
    for head in [0, 1, 100, setup.entry.head - 1, setup.entry.head + 10, 1 << 40] {
        let store = setup.script([]);
        let fetcher = setup.no_chunk_cache(store, quick());
        let entry = StackEntry { head, ..setup.entry.clone() };
        let opened = fetcher.open_head(&entry, |_, _| Ok(())).await.unwrap();
        assert_eq!(opened.layer.index.id(), setup.layer.id, "{head}");
        fetcher.heads().remove(&setup.layer.id).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn faulty_heads_are_fetched_again_and_damaged_ones_too() {
    let setup = Setup::new().await;
    for at in (0..setup.entry.head as usize).step_by(7) {
        let store = setup.script([Action::WrongByte(at), Action::Short(at), Action::WrongByte(3)]);
        let fetcher = setup.no_chunk_cache(store.clone(), quick());
        let opened = fetcher.open_head(&setup.entry, |_, _| Ok(())).await.unwrap();
        assert_eq!(std::fs::read(&opened.path).unwrap()[..8192], [5; 8192], "byte {at}");
        let mut damaged = std::fs::read(&opened.path).unwrap();
        let place = at * 13 % damaged.len();
        damaged[place] ^= 4;
        std::fs::remove_file(&opened.path).unwrap();
        std::fs::write(&opened.path, damaged).unwrap();
        let before = store.requests();
        let opened = fetcher.open_head(&setup.entry, |_, _| Ok(())).await.unwrap();
        assert_eq!(store.requests(), before + 1);
        assert_eq!(std::fs::read(&opened.path).unwrap()[..8192], [5; 8192], "byte {at}");
        fetcher.heads().remove(&setup.layer.id).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_that_the_caller_refuses_is_not_kept() {
    let setup = Setup::new().await;
    let fetcher = setup.fetcher(setup.store(), quick());
    let refuse = |_: &mut [u8], _: &Index| Err("an inode out of bounds".to_owned());
    let error = fetcher.open_head(&setup.entry, refuse).await.unwrap_err();
    assert_eq!(error.kind, FetchKind::Refused);
    assert!(error.to_string().contains("an inode out of bounds"), "{error}");
    assert_eq!(fetcher.heads().list().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_the_store_does_not_have_is_an_error_at_once() {
    let setup = Setup::new().await;
    let store = setup.script([]);
    let fetcher = setup.fetcher(store.clone(), quick());
    let missing = blobstore::layer::LayerId::from_bytes([9; 32]);
    let error = fetcher.open_head(&StackEntry::bare(missing), |_, _| Ok(())).await.unwrap_err();
    assert_eq!((error.kind, store.requests(), error.chunk), (FetchKind::NotFound, 1, None));
}
