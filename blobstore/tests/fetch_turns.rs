//! Who gets what first, in how many requests, within how much memory, and what is asked twice.
//!
//! Time stands still while anything can still happen, so that no test depends on how fast the machine is.

use crate::support::asked::{Setup, first_stalls, one_at_a_time, quick};
use crate::support::node::{CHUNK, MS};
use crate::support::trickle::Trickle;
use blobstore::fetch::{FetchKind, Fetcher, Hedge, OnOutage, Options};
use blobstore::store::Action;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn what_one_read_needs_is_one_request() {
    let setup = Setup::new(40).await;
    let fetcher = setup.fetcher(quick(), |_| Action::Pass);
    let chunks: Vec<u32> = (3..23).collect();
    let got = fetcher.get_all(&setup.layers[0], &chunks, &[]).await.unwrap();
    for (chunk, content) in chunks.iter().zip(&got) {
        assert_eq!(content[..], setup.contents[0][*chunk as usize]);
    }
    assert_eq!(setup.requests(), [(0, chunks)]);
    assert_eq!(fetcher.in_flight_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_side_by_side_is_one_request_and_a_small_gap_is_read_through() {
    let setup = Setup::new(40).await;
    let fetcher = setup.fetcher(one_at_a_time(), first_stalls);
    let first = setup.read(&fetcher, 0, 0);
    setup.wait_for(1).await;
    let others: Vec<_> = [12, 10, 14, 39].map(|chunk| setup.read(&fetcher, 0, chunk)).into();
    for reader in others.into_iter().chain([first]) {
        reader.await.unwrap();
    }
    // 11 and 13 came with the others and nobody asked for them: 8 KiB each. To 39 it is too far.
    assert_eq!(setup.requests(), [(0, vec![0]), (0, vec![10, 11, 12, 13, 14]), (0, vec![39])]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_has_its_chunk_before_the_rest_of_the_request_has_come() {
    let setup = Setup::new(8).await;
    let first = setup.layers[0].index.chunk(1).unwrap().stored_len as usize;
    let fetcher = setup.fetcher(one_at_a_time(), move |request| match request.number {
        0 => Action::Stall(50 * MS),
        1 => Action::Hang(first + 100),
        _ => Action::Pass,
    });
    let before = setup.read(&fetcher, 0, 7);
    setup.wait_for(1).await;
    let own = setup.read(&fetcher, 0, 1);
    let behind = setup.read(&fetcher, 0, 2);
    before.await.unwrap();
    own.await.unwrap();
    assert_eq!(setup.requests().last(), Some(&(0, vec![1, 2])));
    assert!(!behind.is_finished());
    behind.abort();
}

#[tokio::test(start_paused = true)]
async fn a_damaged_chunk_holds_up_no_other_and_is_asked_for_by_itself() {
    let setup = Setup::new(8).await;
    let at =
        setup.layers[0].index.chunk_at(2).unwrap().file_offset - setup.layers[0].index.chunk_at(0).unwrap().file_offset;
    let fetcher = setup.fetcher(quick(), move |request| match request.number {
        0 => Action::WrongByte(at as usize + 50),
        _ => Action::Pass,
    });
    let got = fetcher.get_all(&setup.layers[0], &[0, 1, 2, 3], &[]).await.unwrap();
    assert!((0..4).all(|n| got[n][..] == setup.contents[0][n]));
    assert_eq!(setup.requests(), [(0, vec![0, 1, 2, 3]), (0, vec![2])]);
    assert_eq!((fetcher.meter().verify_failures(), fetcher.meter().fetch_errors()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_is_made_again_for_what_is_missing() {
    let setup = Setup::new(8).await;
    let range =
        setup.layers[0].index.chunk_at(0).unwrap().file_offset..setup.layers[0].index.chunk_at(2).unwrap().file_offset;
    let fetcher = setup.fetcher(quick(), move |request| match request.number {
        0 => Action::Short((range.end - range.start) as usize + 10),
        _ => Action::Pass,
    });
    let got = fetcher.get_all(&setup.layers[0], &[0, 1, 2, 3], &[]).await.unwrap();
    assert!((0..4).all(|n| got[n][..] == setup.contents[0][n]));
    let mut again: Vec<u32> = setup.requests()[1..].iter().flat_map(|(_, chunks)| chunks.clone()).collect();
    // Their pauses are random.
    again.sort_unstable();
    assert_eq!(again, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_waited_for_as_long_as_something_comes() {
    let setup = Setup::new(4).await;
    let slow = Trickle::new(setup.fault(|_| Action::Pass), 1000, 20 * MS);
    let fetcher = setup.fetcher_from(Arc::new(slow), Options { attempt: 60 * MS, ..quick() });
    let got = fetcher.get_all(&setup.layers[0], &[0, 1], &[]).await.unwrap();
    assert!((0..2).all(|n| got[n][..] == setup.contents[0][n]));
    assert_eq!((setup.requests().len(), fetcher.meter().fetch_errors()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_past_the_deadline_is_broken_off() {
    let setup = Setup::new(4).await;
    let slow = Trickle::new(setup.fault(|_| Action::Pass), 1, 20 * MS);
    let fetcher = setup.fetcher_from(Arc::new(slow), Options { deadline: 100 * MS, ..quick() });
    assert_eq!(fetcher.get(&setup.layers[0], 0).await.unwrap_err().kind, FetchKind::Timeout);
    while fetcher.in_flight_bytes() != 0 {
        tokio::time::sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_with_many_readers_does_not_starve_another() {
    let setup = Setup::new(200).await;
    let fetcher = setup.fetcher(Options { coalesce: 0, ..one_at_a_time() }, first_stalls);
    let mut readers: Vec<_> = (0..200).map(|chunk| setup.read(&fetcher, 0, chunk)).collect();
    setup.wait_for(1).await;
    readers.extend([3, 7].map(|chunk| setup.read(&fetcher, 1, chunk)));
    for reader in readers {
        reader.await.unwrap();
    }
    let order: Vec<usize> = setup.requests().into_iter().map(|(layer, _)| layer).collect();
    let of_other: Vec<usize> = (0..order.len()).filter(|n| order[*n] == 1).collect();
    assert!(of_other[0] <= 2 && of_other[1] <= 4, "{of_other:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousands_of_misses_at_once_stay_within_the_memory_and_all_get_their_bytes() {
    let setup = Setup::new(600).await;
    let peak = Arc::new(AtomicU64::new(0));
    let watched: Arc<OnceLock<Fetcher>> = Arc::default();
    let (see, most) = (watched.clone(), peak.clone());
    let options = Options { memory: 1 << 20, decoded: 256 << 10, ..quick() };
    let limit = options.memory - options.decoded;
    let fetcher = setup.fetcher(options, move |_| {
        most.fetch_max(see.get().unwrap().in_flight_bytes(), Relaxed);
        Action::Stall(MS)
    });
    watched.set(fetcher.clone()).unwrap();
    let readers: Vec<_> =
        (0..3000u32).map(|n| setup.read(&fetcher, n as usize % 2, n.wrapping_mul(7919) % 600)).collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let peak = peak.load(Relaxed);
    assert!(peak > limit / 2 && peak <= limit, "{peak} of {limit}");
    assert_eq!(fetcher.in_flight_bytes(), 0);
    assert!(fetcher.decoded_bytes() <= 256 << 10);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_larger_than_the_memory_is_fetched_all_the_same() {
    let setup = Setup::new(4).await;
    let fetcher = setup.fetcher(Options { memory: 1000, decoded: 0, ..quick() }, |_| Action::Pass);
    let readers: Vec<_> = (0..4).map(|chunk| setup.read(&fetcher, 0, chunk)).collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(setup.requests().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_stalls_is_made_again_and_the_second_one_wins() {
    for action in [Action::Never, Action::Hang(100)] {
        let setup = Setup::new(60).await;
        let fetcher = setup.fetcher(Options { hedge: Hedge::P95, ..quick() }, move |request| match request.number {
            // The store's times are known, and so is when a request is late.
            ..40 => Action::Stall(MS),
            40 => action.clone(),
            _ => Action::Pass,
        });
        for chunk in 0..42 {
            setup.read(&fetcher, 0, chunk).await.unwrap();
        }
        // A request is over a moment after its chunks were handed out.
        tokio::time::sleep(5 * MS).await;
        assert_eq!(fetcher.meter().hedges(), (1, 1));
        assert_eq!((setup.requests().len(), fetcher.meter().fetch_errors()), (43, 0));
        assert_eq!(fetcher.in_flight_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_requests_for_the_same_each_that_fails_is_counted() {
    let refused = Action::Error(ErrorKind::ConnectionRefused);
    // The first hangs until its attempt is over; the second fails at once, or brings everything after that.
    for (second, errors, won) in [(refused, 2, 0), (Action::Stall(98 * MS), 1, 1)] {
        let setup = Setup::new(42).await;
        let options = Options { hedge: Hedge::P95, attempt: 100 * MS, ..quick() };
        let fetcher = setup.fetcher(options, move |request| match request.number {
            ..40 => Action::Stall(MS),
            40 => Action::Hang(100),
            41 => second.clone(),
            _ => Action::Pass,
        });
        for chunk in 0..41 {
            setup.read(&fetcher, 0, chunk).await.unwrap();
        }
        // A request is over a moment after its chunks were handed out.
        tokio::time::sleep(MS).await;
        assert_eq!((fetcher.meter().fetch_errors(), fetcher.meter().hedges()), (errors, (1, won)));
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_is_made_a_second_time_in_the_memory_that_a_need_waits_for() {
    let setup = Setup::new(60).await;
    // Room for two chunks of some 8 KiB and their 16 KiB, and a request for one more.
    let options = Options { hedge: Hedge::P95, decoded: 0, memory: 60_000, ..quick() };
    let fetcher = setup.fetcher(options, |request| match request.number {
        ..40 => Action::Stall(MS),
        40 => Action::Stall(200 * MS),
        _ => Action::Stall(50 * MS),
    });
    for chunk in 0..40 {
        setup.read(&fetcher, 0, chunk).await.unwrap();
    }
    fetcher.fetch_ahead(&setup.layers[0], &[50]);
    setup.wait_for(41).await;
    let readers = [0, 2].map(|chunk| setup.read(&fetcher, 1, chunk));
    for reader in readers {
        reader.await.unwrap();
    }
    // The last of them is alone with what is fetched ahead: only it may be asked for twice.
    let asked: Vec<_> = setup.requests()[40..].iter().map(|(layer, chunks)| (*layer, chunks[0])).collect();
    assert_eq!(asked, [(0, 50), (1, 0), (1, 2), (1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn what_goes_along_with_a_need_leaves_the_next_reader_its_room() {
    let setup = Setup::new(40).await;
    let decoded = 40 * CHUNK as u64;
    // For what is in flight, ten chunks with what they decode to.
    let options = Options { decoded, memory: decoded + 250_000, ..quick() };
    let fetcher = setup.fetcher(options, |_| Action::Stall(100 * MS));
    let ahead: Vec<u32> = (1..20).collect();
    let first = fetcher.get_all(&setup.layers[0], &[0], &ahead);
    let second = async {
        setup.wait_for(1).await;
        setup.read(&fetcher, 1, 0).await.unwrap();
    };
    let ends = tokio::join!(async { first.await.map(|_| Instant::now()).unwrap() }, async {
        second.await;
        Instant::now()
    });
    assert!(ends.1 < ends.0 + 50 * MS, "it did not wait for what went before it");
    assert_eq!(setup.requests()[..2], [(0, (0..8).collect()), (1, vec![0])]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_becomes_slow_is_not_asked_much_more_for_it() {
    // At once, and then it is no slower than its like; or more with each request, so that every one of them is late.
    for (growing, least) in [(false, 4), (true, 8)] {
        let setup = Setup::new(200).await;
        let fetcher = setup.fetcher(Options { hedge: Hedge::P95, decoded: 0, ..quick() }, move |request| {
            match u32::try_from(request.number).unwrap() {
                ..100 => Action::Stall(MS),
                n if growing => Action::Stall(n * MS),
                _ => Action::Stall(15 * MS),
            }
        });
        for chunk in 0..200 {
            setup.read(&fetcher, 0, chunk).await.unwrap();
        }
        // Four were saved up, and a hundred requests earn five.
        let (made, _) = fetcher.meter().hedges();
        assert!((least..=9).contains(&made), "{made} of 100");
        assert_eq!(setup.requests().len() as u64, 200 + made);
    }
}

#[tokio::test(start_paused = true)]
async fn with_wait_an_outage_longer_than_the_deadline_is_waited_for() {
    let setup = Setup::new(4).await;
    let out = Arc::new(AtomicBool::new(true));
    let is_out = out.clone();
    let options = Options { on_outage: OnOutage::Wait, deadline: 30 * MS, attempt: 10 * MS, ..quick() };
    let fetcher = setup.fetcher(options, move |request| match (is_out.load(Relaxed), request.number % 2) {
        (true, 0) => Action::Error(ErrorKind::ConnectionRefused),
        (true, _) => Action::Never,
        _ => Action::Pass,
    });
    let reader = setup.read(&fetcher, 0, 1);
    tokio::time::sleep(200 * MS).await;
    assert!(!reader.is_finished());
    out.store(false, Relaxed);
    reader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_wait_wrong_bytes_are_an_error_all_the_same() {
    let setup = Setup::new(4).await;
    let options = Options { on_outage: OnOutage::Wait, ..quick() };
    let fetcher = setup.fetcher(options, |_| Action::WrongByte(30));
    assert_eq!(fetcher.get(&setup.layers[0], 1).await.unwrap_err().kind, FetchKind::Verify);
}
