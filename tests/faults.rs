//! A bucket and a web server with every fault of a table: each read is served right, by another request, or fails in time with
//! an error that tells everything. No read gets a wrong byte, and none is kept.

// Tests fail by panicking.
use blobstore::cache::{self, Cache};
use blobstore::fetch::{FetchError, FetchKind, Fetcher, Hedge, Layer, Options};
use blobstore::layer::{self, Flags, Index, Writer};
use blobstore::meter::Meter;
use blobstore::refs::StackEntry;
use blobstore::store::{Environment, Settings, Store, open_with};
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests::faults::{Backend, FAULTS, Fault, Upstream};
use tests::front::{Answer, Front};
use tests::image::layer_file;
use tests::node::Node;
use tests::s3::KEY;
use tests::tree::{files, noise, write};
use tests::wire::Wire;

const CHUNK: usize = 16 << 10;
const CHUNKS: u32 = 32;
/// All requests of a server that is always faulty.
const ALWAYS: usize = usize::MAX;

/// A layer, and what its chunks hold.
struct Object {
    layer: Layer,
    entry: StackEntry,
    bytes: Vec<u8>,
    contents: Vec<Vec<u8>>,
}

fn object(seed: u64) -> Object {
    let contents: Vec<Vec<u8>> = (0..u64::from(CHUNKS)).map(|n| noise(seed * 100 + n, CHUNK)).collect();
    let file = tempfile::tempfile().unwrap();
    let front = layer::Front { metadata: &noise(seed, 8192), flags: Flags::empty(), sections: &[], chunks: CHUNKS };
    let mut writer = Writer::new(&layer::Options { level: 1, threads: 1 }, &front, file.try_clone().unwrap()).unwrap();
    contents.iter().for_each(|content| writer.push(content.clone()).unwrap());
    let summary = writer.finish().unwrap();
    let layer = Layer::new(Arc::new(Index::of_file(&file).unwrap()));
    let mut bytes = vec![0; summary.file_len as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let entry = StackEntry { head: summary.head_len, size: summary.file_len, ..StackEntry::bare(summary.id) };
    Object { layer, entry, bytes, contents }
}

/// A node that keeps no decompressed chunks: what is read a second time comes from the cache's files or the store.
fn node(store: Arc<dyn Store>, more: Options) -> (tempfile::TempDir, Fetcher) {
    let dir = tempfile::tempdir().unwrap();
    let (options, meter) = (Options { decoded: 0, readahead: 0, neighbours: false, ..more }, Meter::default());
    let limits = cache::Options { reserve: cache::Reserve::Bytes(0), ..cache::Options::new(8 << 20) };
    let cache = Cache::open(dir.path(), &limits, &meter).unwrap();
    let fetcher = Fetcher::new(store, cache, options, meter);
    (dir, fetcher)
}

/// An attempt must be long enough for a busy machine to give the right answer in, and the deadline for two of them.
fn patient() -> Options {
    Options { attempt: Duration::from_secs(4), deadline: Duration::from_secs(9), ..Options::default() }
}

/// A server of each kind that this machine has, with an object.
fn servers(test: &str, object: &Object) -> Vec<Arc<Upstream>> {
    let all = [Backend::Bucket, Backend::Web].into_iter().filter_map(|backend| Upstream::start(backend, test));
    all.inspect(|upstream| upstream.put(&object.layer.key, &object.bytes)).map(Arc::new).collect()
}

/// Whether an error tells all that an administrator needs.
fn check_text(fault: &Fault, upstream: &Upstream, front: &Front, part: &str, error: &FetchError) {
    let says = match (part, error.kind) {
        ("head", FetchKind::Verify) => "corrupt layer",
        ("head", FetchKind::Timeout) => "no answer within",
        _ => fault.says[if upstream.backend() == Backend::Bucket { 0 } else { 1 }],
    };
    let (text, store) = (error.to_string(), upstream.url(front.address));
    for needed in [says, part, &error.layer.to_string(), &store, &format!("attempts: {}", error.attempts)] {
        assert!(text.contains(needed), "{}: {needed} is not in {text}", fault.name);
    }
}

/// Whether a read of a store that is always faulty failed as it is to.
fn check_failure(fault: &Fault, error: &FetchError) {
    assert_eq!(error.kind, fault.kind, "{}: {error}", fault.name);
    match fault.attempts {
        0 => assert!(error.attempts > 1, "{}: {error}", fault.name),
        // More only where an attempt was late.
        least => assert!(error.attempts >= least, "{}: {error}", fault.name),
    }
    assert!(fault.attempts != 1 || error.attempts == 1, "{}: {error}", fault.name);
}

/// Reads chunks of a store that has a fault once, and then all the time, and then no more.
async fn read_chunks(upstream: Arc<Upstream>, object: Arc<Object>, fault: &'static Fault) {
    let faulty = Arc::new(AtomicUsize::new(1));
    let front = upstream.with(fault, &faulty);
    let (_dir, fetcher) = node(upstream.store(front.address), patient());
    let read = async |chunk: u32| {
        let got = fetcher.get(&object.layer, chunk).await;
        let right = got.as_ref().is_ok_and(|got| got[..] == object.contents[chunk as usize]);
        assert!(right == got.is_ok(), "{}: wrong bytes", fault.name);
        got
    };
    let once = read(1).await;
    assert_eq!(once.is_ok(), fault.passes, "{}: {once:?}", fault.name);
    // One more where the faulty answer had an entity tag of its own.
    let asked = front.requests();
    assert!(fault.passes || asked.len() == 1, "{}: {asked:?}", fault.name);
    assert!(asked.len() <= 3, "{}: {asked:?}", fault.name);
    faulty.store(ALWAYS, SeqCst);
    let error = read(2).await.unwrap_err();
    check_failure(fault, &error);
    check_text(fault, &upstream, &front, "chunk 2", &error);
    assert!(fetcher.cached(&object.layer, 2).is_none(), "{}", fault.name);
    faulty.store(0, SeqCst);
    // Until then it is the same reader's wait, which is over.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for chunk in 0..8 {
        read(chunk).await.unwrap();
        fetcher.chunks().unwrap().flush();
        let kept = fetcher.cached(&object.layer, chunk).unwrap();
        assert!(kept[..] == object.contents[chunk as usize], "{}: a wrong byte was kept", fault.name);
    }
}

/// The same with the head that a mount needs.
async fn open_heads(upstream: Arc<Upstream>, object: Arc<Object>, fault: &'static Fault) {
    let faulty = Arc::new(AtomicUsize::new(1));
    let front = upstream.with(fault, &faulty);
    let (_dir, fetcher) = node(upstream.store(front.address), patient());
    let open = async || {
        let opened = fetcher.open_head(&object.entry, |_, _| Ok(())).await?;
        let kept = std::fs::read(&opened.path).unwrap();
        assert!(kept[..8192] == noise(1, 8192), "{}: wrong metadata", fault.name);
        fetcher.heads().remove(&opened.layer.id).unwrap();
        Ok::<_, FetchError>(())
    };
    // The beginning of a whole object is what was asked for.
    let begins = fault.name.starts_with("200") && upstream.backend() == Backend::Web;
    let once = open().await;
    assert_eq!(once.is_ok(), fault.passes, "{}: {once:?}", fault.name);
    faulty.store(ALWAYS, SeqCst);
    let lasting = open().await;
    assert_eq!(lasting.is_ok(), begins, "{}: {lasting:?}", fault.name);
    if let Err(error) = lasting {
        check_failure(fault, &error);
        check_text(fault, &upstream, &front, "head", &error);
    }
    faulty.store(0, SeqCst);
    open().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_passed_over_or_told() {
    let object = Arc::new(object(1));
    let mut rows = tokio::task::JoinSet::new();
    for upstream in servers("faults of a bucket", &object) {
        for fault in FAULTS {
            rows.spawn(read_chunks(upstream.clone(), object.clone(), fault));
            rows.spawn(open_heads(upstream.clone(), object.clone(), fault));
        }
    }
    let mut failed = 0;
    while let Some(row) = rows.join_next().await {
        failed += usize::from(row.is_err());
    }
    assert_eq!(failed, 0, "rows that failed; see above");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_to_come_back_later_is_left_alone_until_then() {
    let object = object(1);
    for upstream in servers("a busy bucket", &object) {
        let busy = FAULTS.iter().find(|fault| fault.name == "429 and soon").unwrap();
        let front = upstream.with(busy, &Arc::new(AtomicUsize::new(2)));
        let (_dir, fetcher) = node(upstream.store(front.address), patient());
        assert!(fetcher.get(&object.layer, 0).await.unwrap()[..] == object.contents[0]);
        let asked: Vec<_> = front.requests().iter().map(|request| request.at).collect();
        assert!(asked.windows(2).all(|two| two[1] - two[0] >= Duration::from_secs(1)), "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stalls_is_asked_for_a_second_time_once_it_is_late() {
    let object = object(1);
    for upstream in servers("a bucket that stalls", &object) {
        let stalls = Arc::new(AtomicBool::new(false));
        let stall = stalls.clone();
        // What is answered is so slow that the machine's own pauses are no second request's cause.
        let front = upstream.before(move |_, _| {
            std::thread::sleep(Duration::from_millis(300));
            stall.swap(false, SeqCst).then_some(Answer::StallAnswer(100))
        });
        // Given up and tried again, it would come too late.
        let patience = Duration::from_secs(300);
        let options = Options { attempt: patience, deadline: patience, coalesce: 0, ..Options::default() };
        let (_dir, fetcher) = node(upstream.store(front.address), options);
        let before: Vec<u32> = (0..CHUNKS - 1).collect();
        fetcher.get_all(&object.layer, &before, &[]).await.unwrap();
        // A request is over a moment after its chunk was handed out.
        until(|| fetcher.meter().fetches() == before.len() as u64).await;
        stalls.store(true, SeqCst);
        let last = fetcher.get(&object.layer, CHUNKS - 1).await.unwrap();
        assert!(last[..] == object.contents[CHUNKS as usize - 1]);
        until(|| fetcher.meter().hedges() == (1, 1)).await;
        assert_eq!((front.requests().len(), fetcher.meter().fetch_errors()), (CHUNKS as usize + 1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_die_without_a_word_cost_no_attempt() {
    let object = object(1);
    let web = tempfile::tempdir().unwrap();
    write(&web.path().join(&object.layer.key), &object.bytes);
    let bucket = tests::s3::S3::start("a bucket behind a firewall that forgets");
    let mut stores = vec![];
    if let Some(bucket) = &bucket {
        write(&bucket.file("bucket", &format!("lamina/{}", object.layer.key)), &object.bytes);
        let wire = Wire::to(bucket.address);
        stores.push((open_with("s3://bucket/lamina", &tests::s3::settings(wire.address)).unwrap(), wire));
    }
    let wire = Wire::to(tests::web::serve_on(web.path()));
    stores.push((open_with(&format!("http://{}", wire.address), &Settings::default()).unwrap(), wire));
    for (store, wire) in stores {
        // Neither a second request nor an attempt that is given up helps here: one dead connection after the other would be
        // tried.
        let patience = Duration::from_secs(300);
        let (hedge, coalesce) = (Hedge::Off, 0);
        let options = Options { attempt: patience, deadline: patience, hedge, coalesce, ..Options::default() };
        let (_dir, fetcher) = node(store, options);
        let read = async |chunks: std::ops::Range<u32>| {
            let wanted: Vec<u32> = chunks.collect();
            let got = fetcher.get_all(&object.layer, &wanted, &[]).await.unwrap();
            wanted.iter().zip(got).for_each(|(n, got)| assert!(got[..] == object.contents[*n as usize]));
        };
        read(0..16).await;
        let before = wire.forget();
        assert!(before > 4, "{before} connections");
        // One, and then many at once.
        read(16..17).await;
        read(17..24).await;
        let after = wire.made();
        assert!(after > before && fetcher.meter().fetch_errors() == 0, "{after} connections after {before}");
        // All at once, while they are being used.
        wire.forget();
        read(24..CHUNKS).await;
        assert_eq!(fetcher.meter().fetch_errors(), 0);
    }
}

/// Waits until something is so.
async fn until(is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it does not come to that");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_replaced_is_read_anew_and_another_is_not_served_under_its_name() {
    let (object, other) = (object(1), object(2));
    for upstream in servers("a replaced object", &object) {
        // Replaced by its like: only its tag is another.
        let front = upstream.before(|request, _| {
            let replaced = request.number == 1 && request.header("if-match").is_some();
            replaced.then(|| Answer::Reply("412 Precondition Failed", vec![], vec![]))
        });
        let (_dir, fetcher) = node(upstream.store(front.address), patient());
        let read = async |chunk: u32| fetcher.get(&object.layer, chunk).await;
        for chunk in 0..2 {
            assert!(read(chunk).await.unwrap()[..] == object.contents[chunk as usize]);
        }
        assert_eq!((front.requests().len(), fetcher.meter().fetch_errors()), (3, 0));
        for (bytes, kind) in [(&other.bytes[..], FetchKind::Verify), (&object.bytes[..100], FetchKind::Answer)] {
            upstream.put(&object.layer.key, bytes);
            let error = read(2).await.unwrap_err();
            assert_eq!((error.kind, error.attempts), (kind, 4), "{error}");
        }
        std::fs::remove_file(upstream.file(&object.layer.key)).unwrap();
        let error = read(2).await.unwrap_err();
        assert_eq!((error.kind, error.attempts), (FetchKind::NotFound, 1), "{error}");
        upstream.put(&object.layer.key, &object.bytes);
        assert!(read(2).await.unwrap()[..] == object.contents[2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_end_between_two_reads_are_renewed_for_the_second() {
    let object = object(1);
    let Some(upstream) = Upstream::start(Backend::Bucket, "credentials that end") else { return };
    upstream.put(&object.layer.key, &object.bytes);
    let cloud = Front::start(None, |request| {
        let body = format!(
            "{{\"AccessKeyId\":\"{}\",\"SecretAccessKey\":\"{}\",\"Token\":\"given-{}\",\"Expiration\":\"2100-01-01T00:00:00Z\"}}",
            KEY.0, KEY.1, request.number
        );
        Answer::Reply("200 OK", vec!["Content-Type: application/json".to_owned()], body.into_bytes())
    });
    let (ended, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (of, seen) = (ended.clone(), over.clone());
    let front = upstream.before(move |request, _| {
        let token: usize =
            request.header("x-amz-security-token").unwrap().strip_prefix("given-").unwrap().parse().unwrap();
        let refused = token < of.load(SeqCst);
        seen.fetch_add(usize::from(refused), SeqCst);
        let body = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
        refused.then(|| Answer::Reply("403 Forbidden", vec![], body.into()))
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    let mut settings = tests::s3::settings(front.address);
    settings.s3.access_key_id = None;
    settings.s3.secret_access_key = None;
    settings.s3.environment = Environment::of(
        [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/", cloud.address)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let (_dir, fetcher) = node(open_with("s3://bucket/lamina", &settings).unwrap(), patient());
    assert!(fetcher.get(&object.layer, 0).await.unwrap()[..] == object.contents[0]);
    ended.store(1, SeqCst);
    assert!(fetcher.get(&object.layer, 1).await.unwrap()[..] == object.contents[1]);
    assert_eq!((over.load(SeqCst), cloud.requests().len(), fetcher.meter().fetch_errors()), (1, 2, 0));
    // None that are good: the service's own words.
    ended.store(usize::MAX, SeqCst);
    let error = fetcher.get(&object.layer, 2).await.unwrap_err();
    assert_eq!((error.kind, error.attempts), (FetchKind::Denied, 4), "{error}");
    assert!(error.cause.contains("ExpiredToken: The provided token has expired."), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_found_or_reached_is_an_error_that_says_where_it_is() {
    let object = object(1);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (host, says) in [("store.invalid", "dns error"), (&*nobody, "refused")] {
        let endpoint = format!("http://{host}");
        let mut settings = tests::s3::settings("127.0.0.1:1".parse().unwrap());
        settings.s3.endpoint = Some(endpoint.clone());
        settings.proxy = Some("".into());
        for url in ["s3://bucket/lamina", &endpoint] {
            let options =
                Options { attempt: Duration::from_secs(20), deadline: Duration::from_secs(2), ..Options::default() };
            let (_dir, fetcher) = node(open_with(url, &settings).unwrap(), options);
            let error = fetcher.get(&object.layer, 3).await.unwrap_err();
            println!("{error}");
            assert!(error.kind == FetchKind::Transport && error.attempts > 1, "{error}");
            let text = error.to_string();
            assert!(
                text.contains(says) && text.contains(host) && text.contains("chunk 3") && text.contains(url),
                "{text}"
            );
        }
    }
}

/// What is to become of requests for the parts of an object that begin at these bytes: a fault, so many times.
type Plan = Arc<Mutex<HashMap<usize, (&'static Fault, usize)>>>;

/// Bytes of a file and of a chunk.
const FILE: usize = 64 << 10;

/// A node whose store is a server that does what is planned, with a layer of one file and chunk for each fault that is met
/// once and each that is met always; it is mounted at `mnt`. Gives the places of the files' chunks too.
fn mounted(upstream: &Arc<Upstream>, plan: &Plan) -> (Node, Vec<usize>) {
    let mut node =
        Node::new("[fetch]\ndeadline = \"13s\"\nreadahead = 0\nneighbours = false\n[profile]\nrecord = \"off\"\n");
    let source = node.new_dir("source");
    (0..2 * FAULTS.len()).for_each(|n| write(&source.join(format!("{n:02}")), noise(n as u64, FILE)));
    let convert = ["--tag", "base/one:1", "--chunk-size", "65536"];
    let report = node.convert(&format!("dir:{}", source.display()), &convert);
    let layer = report["images"][0]["layers"][0]["layer"].as_str().unwrap();
    let file = std::fs::File::open(layer_file(&node.path("store"), layer)).unwrap();
    let places = Index::of_file(&file).unwrap().chunks().map(|chunk| chunk.file_offset as usize).collect();
    files(&node.path("store")).iter().for_each(|(key, bytes)| upstream.put(key.to_str().unwrap(), bytes));
    let plan = plan.clone();
    let front = upstream.before(move |_, asked| {
        let mut plan = plan.lock().unwrap();
        let (fault, left) = plan.get_mut(&asked.range.start).filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some((fault.answer)(asked))
    });
    node.use_store(&upstream.url(front.address), &upstream.section(front.address));
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/one:1", target.to_str().unwrap()]);
    (node, places)
}

/// Reads each file once, all at the same time, and then all again from a store that is well.
fn read_everything(upstream: &Arc<Upstream>) {
    let plan = Plan::default();
    let (node, places) = mounted(upstream, &plan);
    assert_eq!(places.len(), 2 * FAULTS.len());
    let fault = |n: usize| (&FAULTS[n % FAULTS.len()], if n < FAULTS.len() { 1 } else { ALWAYS });
    plan.lock().unwrap().extend(places.iter().enumerate().map(|(n, at)| (*at, fault(n))));
    let read = |n: usize| {
        let got = std::fs::read(node.path("mnt").join(format!("{n:02}")));
        got.map(|got| assert!(got == noise(n as u64, FILE), "{}: wrong bytes", fault(n).0.name))
    };
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..places.len()).map(|n| scope.spawn(move || read(n))).collect();
        for (n, read) in reads.into_iter().enumerate() {
            let ((fault, often), got) = (fault(n), read.join().unwrap());
            let errno = got.err().map(|error| error.raw_os_error());
            let failed = errno == Some(Some(rustix::io::Errno::IO.raw_os_error()));
            assert!(failed || errno.is_none(), "{}: {errno:?}", fault.name);
            // What is not asked for again here the kernel may ask for again.
            let may_pass = often != ALWAYS && !fault.passes;
            assert!(failed == (often == ALWAYS) || may_pass, "{}, {often} times: {failed}", fault.name);
        }
    });
    plan.lock().unwrap().clear();
    // For a second it is the same readers' wait, which is over; and the kernel may have asked for some pages later than for
    // others.
    std::thread::sleep(Duration::from_secs(4));
    for n in 0..places.len() {
        read(n).unwrap_or_else(|error| panic!("{n}, {}: {error}", fault(n).0.name));
    }
    let log = node.log("laminad");
    let line = log.lines().find(|line| line.contains("a fetch failed")).expect("a line in the log");
    for part in ["layer=", "chunk=", "store=", "cause=", "attempt=", "kind="] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}

#[test]
fn readers_of_a_mount_get_right_bytes_or_an_error_in_time_whatever_the_store_does() {
    const TEST: &str = "faults below a mount";
    if !tests::possible(TEST) {
        return;
    }
    let servers = [Backend::Bucket, Backend::Web].into_iter().filter_map(|backend| Upstream::start(backend, TEST));
    let servers: Vec<Arc<Upstream>> = servers.map(Arc::new).collect();
    std::thread::scope(|scope| servers.iter().for_each(|upstream| drop(scope.spawn(|| read_everything(upstream)))));
}
