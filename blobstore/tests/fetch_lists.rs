//! Lists that are fetched before anybody asks, and what is told to those who watch.

use crate::support::{self, Input};
use blobstore::cache::{Cache, Options as CacheOptions, Reserve};
use blobstore::fetch::{Cause, Fetcher, Layer, Options, Starts};
use blobstore::layer::Index;
use blobstore::meter::{Meter, Source};
use blobstore::refs::layer_key;
use blobstore::store::{FileStore, Metered, Store};
use futures_util::future::join;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const CHUNK: u64 = 64 << 10;

/// A fetcher of a store with a layer of so many chunks; its cache keeps nothing unless `cached`.
async fn setup(
    dir: &std::path::Path,
    chunks: usize,
    options: Options,
    cached: bool,
) -> (Fetcher, Arc<Layer>, Arc<Metered>) {
    let store = FileStore::new(dir.join("store"));
    let (summary, bytes) = Input::new(1, &vec![CHUNK as usize / 4096; chunks]).write(2);
    store.create(&layer_key(&summary.id), bytes.clone().into()).await.unwrap();
    let store = Arc::new(Metered::new(Arc::new(store)));
    let meter = Meter::default();
    let size = if cached { 64 << 20 } else { 1 << 20 };
    let mut cache = Cache::open(
        &dir.join("cache"),
        &CacheOptions { reserve: Reserve::Bytes(0), ..CacheOptions::new(size) },
        &meter,
    )
    .unwrap();
    if !cached {
        cache.chunks = None;
    }
    let layer = Layer::new(Arc::new(Index::parse(bytes.into()).unwrap()));
    (Fetcher::new(store.clone(), cache, options, meter), Arc::new(layer), store)
}

/// Bytes that no start here comes to.
const ALL: u64 = 1 << 30;

/// All chunks, in order.
fn whole(layer: &Layer) -> Vec<(Duration, u32)> {
    (0..layer.index.chunk_count()).map(|chunk| (Duration::from_millis(chunk.into()), chunk)).collect()
}

async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A start of all 64 chunks, as far as it goes without a reader where 16 are kept decoded.
async fn begun(fetcher: &Fetcher, layer: &Arc<Layer>) -> Starts {
    let starts = fetcher.starts(ALL, Duration::from_secs(60));
    starts.add("one", Instant::now(), layer, whole(layer));
    until(|| fetcher.meter().prefetched_chunks().0 == 64 && fetcher.decoded_bytes() == 8 * CHUNK).await;
    starts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_larger_than_what_is_kept_decoded_is_fetched_once_and_decoded_as_the_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { decoded: 16 * CHUNK, ..Options::default() };
    let (fetcher, layer, store) = setup(dir.path(), 64, options, false).await;
    let starts = begun(&fetcher, &layer).await;
    let fetched = store.counts().bytes_read.load(Relaxed);
    for chunk in 0..64 {
        // As a reader does: what it has read makes room for what comes next.
        fetcher.noticed(&layer, u64::from(chunk) * CHUNK..(u64::from(chunk) + 1) * CHUNK);
        let (content, source) = fetcher.cached_from(&layer, chunk).unwrap();
        assert_eq!(
            (content[..] == support::content(u64::from(chunk) + 1, CHUNK as usize)[..], source),
            (true, Source::Memory)
        );
    }
    until(|| starts.left() == (0, 0)).await;
    assert_eq!(fetcher.meter().prefetched_chunks(), (64, 64));
    assert_eq!(store.counts().bytes_read.load(Relaxed), fetched, "nothing came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_nobody_makes_takes_half_of_what_is_kept_decoded_and_can_be_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { decoded: 16 * CHUNK, ..Options::default() };
    let (fetcher, layer, _) = setup(dir.path(), 64, options, true).await;
    let starts = begun(&fetcher, &layer).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(fetcher.decoded_bytes(), 8 * CHUNK);
    assert_eq!(starts.left(), (0, 56));
    starts.remove(&layer.id);
    assert_eq!(starts.left(), (0, 0));
    // Whoever reads something else gets it all the same, and what was for nobody goes in the end.
    for chunk in (0..64).rev() {
        fetcher.get(&layer, chunk).await.unwrap();
    }
    assert!(fetcher.decoded_bytes() <= 16 * CHUNK);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_read_in_time_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { decoded: 16 * CHUNK, ..Options::default() };
    let (fetcher, layer, _) = setup(dir.path(), 64, options, true).await;
    let starts = fetcher.starts(ALL, Duration::from_millis(1));
    starts.add("one", Instant::now(), &layer, whole(&layer));
    until(|| starts.left() == (0, 0)).await;
    assert!(fetcher.decoded_bytes() <= 8 * CHUNK);
}

/// A layer of 8 chunks that no other number has, in the store.
async fn numbered(dir: &std::path::Path, n: u64) -> Arc<Layer> {
    let chunks = (0..8).map(|chunk| support::content(1000 * (n + 1) + chunk, CHUNK as usize)).collect();
    let (summary, bytes) = Input { chunks, ..Input::new(1, &[]) }.write(2);
    let store = FileStore::new(dir.join("store"));
    store.create(&layer_key(&summary.id), bytes.clone().into()).await.unwrap();
    Arc::new(Layer::new(Arc::new(Index::parse(bytes.into()).unwrap())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stack_of_layers_that_all_have_profiles_fetches_what_one_start_may_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, _, store) = setup(dir.path(), 1, Options::default(), true).await;
    let layers = futures_util::future::join_all((0..40).map(|n| numbered(dir.path(), n))).await;
    let stored = |layer: &Layer, chunk: u32| u64::from(layer.index.chunk(chunk).unwrap().stored_len);
    // Of each layer the first chunk is read early; the layers' profiles come one after the other.
    let most: u64 = layers.iter().map(|layer| stored(layer, 0)).sum();
    let starts = fetcher.starts(most, Duration::from_secs(60));
    let begun = Instant::now();
    let read = |chunk: u32| (Duration::from_millis(u64::from(chunk) * 1000), chunk);
    for layer in &layers {
        starts.add("stack", begun, layer, (0..8).map(read));
    }
    until(|| starts.left() == (0, 0)).await;
    let fetched = store.counts().bytes_read.load(Relaxed);
    // What lies between two wanted chunks may be read through.
    assert!(fetched <= most + most / 2, "{fetched} of {most}");
    assert!(fetcher.meter().prefetched_chunks().0 >= 30, "and no less: {:?}", fetcher.meter().prefetched_chunks());
    // Another start has bytes of its own.
    let (other, before) = (numbered(dir.path(), 40).await, store.counts().bytes_read.load(Relaxed));
    starts.add("another", Instant::now(), &other, (0..8).map(read));
    until(|| starts.left() == (0, 0)).await;
    let all: u64 = (0..8).map(|chunk| stored(&other, chunk)).sum();
    assert_eq!(store.counts().bytes_read.load(Relaxed) - before, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_cache_or_past_the_end_is_not_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, layer, store) = setup(dir.path(), 8, Options::default(), true).await;
    for chunk in 0..4 {
        fetcher.get(&layer, chunk).await.unwrap();
    }
    let before = store.counts().bytes_read.load(Relaxed);
    fetcher.prefetch(&layer, vec![0, 1, 2, 3, 4, 99, u32::MAX]).finished().await;
    let entry = layer.index.chunk(4).unwrap();
    assert_eq!(store.counts().bytes_read.load(Relaxed) - before, u64::from(entry.stored_len));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_is_told_of_reads_and_of_what_came_ahead_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, layer, _) = setup(dir.path(), 4, Options::default(), false).await;
    let mut watch = fetcher.watch(16);
    fetcher.prefetch(&layer, vec![2]).finished().await;
    let event = watch.next().await.unwrap();
    assert_eq!((event.layer, event.cause, event.source), (layer.id, Cause::Prefetch, Some(Source::Store)));
    assert_eq!(event.bytes, 2 * CHUNK..3 * CHUNK);
    let at = Instant::now();
    let (_, source) = fetcher.get_all_from(&layer, &[1, 2], &[]).await.unwrap();
    fetcher.was_read(&layer, CHUNK + 5..2 * CHUNK + 7, Some(source), at);
    let event = watch.next().await.unwrap();
    assert_eq!((event.cause, event.source, event.bytes), (Cause::Read, Some(Source::Store), CHUNK + 5..2 * CHUNK + 7));
    fetcher.fetch_ahead(&layer, &[3]);
    let event = watch.next().await.unwrap();
    assert_eq!((event.cause, event.bytes), (Cause::Readahead, 3 * CHUNK..4 * CHUNK));
}

#[tokio::test]
async fn what_fills_the_cache_takes_no_memory_but_what_a_reader_came_to_want() {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, layer, store) = setup(dir.path(), 8, Options::default(), true).await;
    let mut watch = fetcher.watch(16);
    // One thread: the readers come while nothing has begun to come.
    let (filled, read) = join(fetcher.fill(&layer, &[0, 1, 2, 3, 99]), fetcher.get_all(&layer, &[1, 2], &[])).await;
    filled.unwrap();
    for (chunk, content) in (1..).zip(read.unwrap()) {
        assert!(content[..] == support::content(chunk + 1, CHUNK as usize)[..]);
    }
    let chunks = fetcher.chunks().unwrap();
    chunks.flush();
    let entries: Vec<_> = (0..8).map(|n| layer.index.chunk(n).unwrap()).collect();
    assert!(entries.iter().enumerate().all(|(n, entry)| chunks.contains(&entry.hash) == (n < 4)));
    let bytes: u64 = entries[..4].iter().map(|entry| u64::from(entry.stored_len)).sum();
    assert_eq!(store.counts().bytes_read.load(Relaxed), bytes, "each came once");
    assert_eq!((fetcher.decoded_bytes(), fetcher.meter().prefetched_chunks()), (2 * CHUNK, (0, 0)));
    for _ in 0..4 {
        let event = watch.next().await.unwrap();
        assert_eq!((event.cause, event.source), (Cause::Fill, Some(Source::Store)));
    }
    // What is in memory and no longer in the cache is fetched for it; nothing that is there is.
    chunks.evict([entries[1].hash]);
    fetcher.fill(&layer, &[0, 1, 2, 3]).await.unwrap();
    chunks.flush();
    assert!(chunks.contains(&entries[1].hash));
    assert_eq!(store.counts().bytes_read.load(Relaxed), bytes + u64::from(entries[1].stored_len));
}

#[tokio::test]
async fn a_fill_that_is_given_up_leaves_readers_what_they_wait_for_and_one_that_fails_says_which_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { concurrency: 1, coalesce: CHUNK, ..Options::default() };
    let (fetcher, layer, store) = setup(dir.path(), 9, options, true).await;
    let fill = fetcher.fill(&layer, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let (_, read) = join(tokio::time::timeout(Duration::ZERO, fill), fetcher.get(&layer, 5)).await;
    assert!(read.unwrap()[..] == support::content(6, CHUNK as usize)[..]);
    until(|| fetcher.in_flight_bytes() == 0).await;
    assert!(store.counts().bytes_read.load(Relaxed) < 4 * CHUNK, "the queue was left");
    fetcher.chunks().unwrap().flush();
    // The fetcher may have it open.
    std::fs::write(dir.path().join("store").join(layer_key(&layer.id)), "").unwrap();
    let error = fetcher.fill(&layer, &[5, 8]).await.unwrap_err();
    assert_eq!((error.layer, error.chunk, error.attempts), (layer.id, Some(8), 1), "{error}");
}
