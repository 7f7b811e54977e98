//! What is fetched before anybody asks: in which order, behind whom, how much at once.
//!
//! Time stands still while anything can still happen, so that no test depends on how fast the machine is.

use crate::support::asked::{Setup, first_stalls, one_at_a_time, quick};
use crate::support::node::{CHUNK, MS};
use blobstore::fetch::{FetchKind, Fetcher, Layer, Options};
use blobstore::store::Action;
use std::io::ErrorKind;

#[tokio::test(start_paused = true)]
async fn a_need_overtakes_what_is_prefetched() {
    let setup = Setup::new(200).await;
    let options = Options { coalesce: 0, ..one_at_a_time() };
    let fetcher = setup.fetcher(options, first_stalls);
    let prefetch = fetcher.prefetch(&setup.layers[0], (0..200).step_by(2).collect());
    setup.wait_for(1).await;
    // One that nobody has asked for yet, and one far back in the list.
    let (new, listed) = (setup.read(&fetcher, 0, 101), setup.read(&fetcher, 0, 180));
    new.await.unwrap();
    listed.await.unwrap();
    let order: Vec<u32> = setup.requests().into_iter().flat_map(|(_, chunks)| chunks).collect();
    let place = |chunk| order.iter().position(|c| *c == chunk).unwrap();
    assert!(place(101) <= 3 && place(180) <= 3, "{order:?}");
    prefetch.finished().await;
    let order: Vec<u32> = setup.requests().into_iter().flat_map(|(_, chunks)| chunks).collect();
    assert_eq!(order.len(), 101, "each once: {order:?}");
    assert_eq!(fetcher.meter().prefetched_chunks().0, 99);
}

#[tokio::test(start_paused = true)]
async fn a_prefetch_that_is_dropped_leaves_the_queue_and_takes_no_reader_with_it() {
    let setup = Setup::new(60).await;
    let fetcher = setup.fetcher(one_at_a_time(), first_stalls);
    let prefetch = fetcher.prefetch(&setup.layers[0], vec![0, 20, 40]);
    setup.wait_for(1).await;
    let reader = setup.read(&fetcher, 0, 40);
    tokio::time::sleep(20 * MS).await;
    drop(prefetch);
    reader.await.unwrap();
    assert_eq!(setup.requests(), [(0, vec![0]), (0, vec![40])]);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_fetched_in_its_order_in_long_requests_and_read_without_the_store() {
    let setup = Setup::new(100).await;
    let fetcher = setup.fetcher(Options { coalesce: 100_000, ..quick() }, |_| Action::Pass);
    fetcher.prefetch(&setup.layers[0], (0..100).collect()).finished().await;
    assert!(setup.requests().len() <= 14, "{:?}", setup.requests());
    for chunk in 0..100u32 {
        assert_eq!(fetcher.cached(&setup.layers[0], chunk).unwrap()[..], setup.contents[0][chunk as usize]);
    }
    assert_eq!(fetcher.meter().prefetched_chunks(), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn prefetching_what_cannot_be_had_ends_and_a_later_reader_tries_for_itself() {
    let setup = Setup::new(4).await;
    let fetcher = setup.fetcher(quick(), |request| match request.number {
        0 => Action::Error(ErrorKind::ConnectionReset),
        _ => Action::Pass,
    });
    fetcher.prefetch(&setup.layers[0], vec![0, 1, 2, 3, 99]).finished().await;
    assert_eq!(setup.requests().len(), 1);
    setup.read(&fetcher, 0, 2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_fetched_ahead_and_never_has_its_turn_is_no_failure() {
    let setup = Setup::new(8).await;
    let options = Options { deadline: 50 * MS, ..one_at_a_time() };
    let fetcher = setup.fetcher(options, |_| Action::Never);
    let reader = fetcher.get(&setup.layers[0], 0);
    fetcher.fetch_ahead(&setup.layers[1], &[0, 1, 2]);
    assert_eq!(reader.await.unwrap_err().kind, FetchKind::Timeout);
    tokio::time::sleep(100 * MS).await;
    assert_eq!(fetcher.meter().fetch_errors(), 1, "the reader's");
}

/// Reads a layer from its first byte to its last as the kernel does; gives how many reads had to wait.
async fn read_in_sequence(setup: &Setup, fetcher: &Fetcher) -> usize {
    let (layer, expected) = (&setup.layers[0], setup.contents[0].concat());
    let mut waited = 0;
    for start in (0..expected.len() as u64).step_by(8 << 10) {
        let found = layer.index.locate(start).unwrap();
        let ahead = fetcher.noticed(layer, start..start + (8 << 10));
        let content = match fetcher.cached(layer, found.chunk) {
            Some(content) => {
                fetcher.fetch_ahead(layer, &ahead);
                content
            }
            None => {
                waited += 1;
                fetcher.get_all(layer, &[found.chunk], &ahead).await.unwrap().remove(0)
            }
        };
        let within = (start - found.data_start) as usize;
        assert!(content[within..within + (8 << 10)] == expected[start as usize..start as usize + (8 << 10)]);
        // The reader's own work: what is under way goes on meanwhile.
        tokio::time::sleep(MS / 10).await;
    }
    waited
}

#[tokio::test(start_paused = true)]
async fn reads_in_sequence_are_fetched_ahead_of_in_long_requests() {
    let setup = Setup::new(400).await;
    let alone = setup.fetcher(Options { readahead: 0, ..quick() }, |_| Action::Pass);
    assert_eq!(read_in_sequence(&setup, &alone).await, 400);
    drop(alone);
    let setup = Setup::new(400).await;
    let fetcher = setup.fetcher(quick(), |_| Action::Pass);
    let waited = read_in_sequence(&setup, &fetcher).await;
    let requests = setup.requests().len();
    assert!(waited < 40 && requests < 40, "{waited} waits, {requests} requests");
    let (ahead, used) = fetcher.meter().prefetched_chunks();
    assert!(ahead > 300 && used == ahead, "{ahead}, {used}");
}

#[tokio::test(start_paused = true)]
async fn what_all_runs_together_have_fetched_ahead_is_bounded_also_before_it_comes() {
    let setup = Setup::new(8 * 100).await;
    // Room for 64 chunks ahead; nothing else is in the way of many more.
    let options = Options { decoded: 128 * CHUNK as u64, concurrency: 2000, memory: 1 << 30, ..quick() };
    let fetcher = setup.fetcher(options, |_| Action::Stall(150 * MS));
    // A run reads 33 chunks of 16 KiB: it asks for what is ahead once it has read 512 KiB.
    let run = |layer: &Layer, first: u32| {
        let mut ahead = Vec::new();
        for chunk in first..first + 33 {
            let start = layer.index.chunk_at(chunk).unwrap().data_start;
            let noticed = fetcher.noticed(layer, start..start + CHUNK as u64);
            fetcher.fetch_ahead(layer, &noticed);
            ahead.extend(noticed);
        }
        ahead
    };
    let runs: Vec<_> = (0..16).map(|n| (n % 2, run(&setup.layers[n % 2], n as u32 / 2 * 100))).collect();
    // What comes must not find the room that it has taken before.
    let ahead: usize = runs.iter().map(|(_, ahead)| ahead.len()).sum();
    assert!((64..=64 + 16 * 2).contains(&ahead), "{ahead}");
    while setup.requests().is_empty() || fetcher.in_flight_bytes() != 0 {
        tokio::time::sleep(MS).await;
    }
    assert_eq!(setup.requests().iter().map(|(_, chunks)| chunks.len()).sum::<usize>(), ahead);
    assert!(run(&setup.layers[0], 750).len() <= 2, "nobody has read what came");
    for (layer, chunk) in runs.iter().flat_map(|(layer, ahead)| ahead.iter().map(move |chunk| (*layer, *chunk))) {
        fetcher.cached(&setup.layers[layer], chunk).unwrap();
    }
    assert!(run(&setup.layers[1], 750).len() > 16, "and now somebody has");
}

#[tokio::test(start_paused = true)]
async fn likely_neighbours_are_fetched_from_a_store_that_is_far() {
    let setup = Setup::new(40).await;
    let fetcher = setup.fetcher(Options { neighbours: true, ..quick() }, |_| Action::Stall(8 * MS));
    let layer = &setup.layers[0];
    let mut all_ahead = Vec::new();
    for chunk in [10u32, 12, 13, 15, 16] {
        let start = layer.index.chunk_at(chunk).unwrap().data_start;
        let ahead = fetcher.noticed(layer, start..start + 4096);
        fetcher.get_all(layer, &[chunk], &ahead).await.unwrap();
        all_ahead.extend(ahead);
    }
    assert_eq!(all_ahead, [14, 17]);
    setup.read(&fetcher, 0, 14).await.unwrap();
    assert!(setup.requests().iter().filter(|(_, chunks)| chunks.contains(&14)).count() == 1);
}
