//! Lists that are fetched before anybody asks, and what is told to those who watch.

#![allow(clippy::unwrap_used)]

mod support;

use blobstore::cache::{Cache, Options as CacheOptions, Reserve};
use blobstore::fetch::{Cause, Fetcher, Layer, Options};
use blobstore::layer::Index;
use blobstore::meter::{Meter, Source};
use blobstore::refs::layer_key;
use blobstore::store::{FileStore, Metered, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use support::Input;

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
    let meter = Meter::new(store.url());
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

/// All chunks, expected now, in order.
fn whole(layer: &Layer) -> Vec<(Instant, u32)> {
    let now = Instant::now();
    (0..layer.index.chunk_count()).map(|chunk| (now + Duration::from_millis(chunk.into()), chunk)).collect()
}

async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_larger_than_what_is_kept_decoded_is_fetched_once_and_decoded_as_the_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { decoded: 16 * CHUNK, ..Options::default() };
    let (fetcher, layer, store) = setup(dir.path(), 64, options, false).await;
    let starts = fetcher.starts(Duration::from_secs(60));
    starts.add(&layer, whole(&layer));
    until(|| fetcher.meter().prefetched_chunks().0 == 64 && fetcher.decoded_bytes() == 8 * CHUNK).await;
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
    let starts = fetcher.starts(Duration::from_secs(60));
    starts.add(&layer, whole(&layer));
    until(|| fetcher.meter().prefetched_chunks().0 == 64 && fetcher.decoded_bytes() == 8 * CHUNK).await;
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
    let starts = fetcher.starts(Duration::from_millis(1));
    starts.add(&layer, whole(&layer));
    until(|| starts.left() == (0, 0)).await;
    assert!(fetcher.decoded_bytes() <= 8 * CHUNK);
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
