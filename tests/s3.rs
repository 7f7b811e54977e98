//! A bucket as a store, against a real S3 server, and against servers that lie, refuse and go away.

// Tests fail by panicking.
use blobstore::store::{S3Settings, S3Store, Store, StoreError, conformance, open_with};
use bytes::Bytes;
use futures_util::StreamExt;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tests::front::{Answer, Front, Request};
use tests::s3::{DOMAIN, S3, settings};
use tests::tls::{Certificates, before};
use tests::tree::noise;

/// More than two parts of an upload.
const LARGE: usize = (20 << 20) + 12_345;

fn store(address: SocketAddr) -> S3Store {
    S3Store::new("s3://bucket/a/prefix", &settings(address)).unwrap()
}

/// What AWS says with a status.
fn error(status: &'static str, code: &str) -> Answer {
    let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>because</Message></Error>");
    Answer::Reply(status, vec!["Content-Type: application/xml".to_owned()], body.into_bytes())
}

fn is_part(request: &Request, number: u32) -> bool {
    request.method == "PUT" && request.path.contains(&format!("partNumber={number}&"))
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

fn large_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), noise(5, LARGE)).unwrap();
    file
}

#[tokio::test]
async fn a_bucket_is_a_store_and_so_is_a_prefix_in_it() {
    let Some(s3) = S3::start("a bucket") else { return };
    conformance::run(&store(s3.address)).await;
    conformance::run(&S3Store::new("s3://bucket", &s3.settings()).unwrap()).await;
    let opened = open_with("s3://other/x/", &s3.settings()).unwrap();
    assert_eq!(opened.url(), "s3://other/x");
    conformance::run(&*opened).await;
    // What a process left that tested whether writes keep conditions is no object of the store.
    assert!(s3.file("bucket", "a/prefix/.tmp-conditional-writes").exists());
    assert_eq!(store(s3.address).list("").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn more_keys_than_a_page_has_are_all_listed() {
    let Some(s3) = S3::start("a long listing") else { return };
    let folder = s3.file("bucket", "a/prefix/many");
    fs::create_dir_all(&folder).unwrap();
    for n in 0..1234 {
        fs::write(folder.join(format!("{n:04}")), "x").unwrap();
    }
    let keys = store(s3.address).list("many/").await.unwrap();
    assert_eq!(keys, (0..1234).map(|n| format!("many/{n:04}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_bucket_can_stand_in_the_hosts_name_and_a_proxy_in_between() {
    let Some(s3) = S3::start("virtual hosts") else { return };
    let proxy = Front::start(Some(s3.address), |_| Answer::Pass);
    let mut settings = s3.settings();
    settings.s3.endpoint = Some(format!("http://{DOMAIN}"));
    settings.s3.path_style = Some(false);
    settings.proxy = Some(format!("http://{}", proxy.address).into());
    conformance::run(&S3Store::new("s3://bucket/p", &settings).unwrap()).await;
    let asked = proxy.requests();
    // Nobody here knows that name: only by the proxy is it reached.
    let host = format!("http://bucket.{DOMAIN}/p/");
    assert!(asked.iter().any(|request| request.path.starts_with(&host)), "{:?}", asked.first());
}

#[tokio::test]
async fn a_large_file_is_sent_in_parts_and_appears_whole() {
    let Some(s3) = S3::start("a large file") else { return };
    let front = Front::start(Some(s3.address), |_| Answer::Pass);
    let (store, file) = (store(front.address), large_file());
    store.upload("layers/ab/large", file.path()).await.unwrap();
    assert!(store.get_range("layers/ab/large", 0..LARGE as u64).await.unwrap() == noise(5, LARGE));
    let asked = front.requests();
    let parts = asked.iter().filter(|request| request.path.contains("/large?partNumber=")).count();
    assert_eq!(parts, LARGE.div_ceil(8 << 20));
    let last = asked.iter().find(|r| r.method == "POST" && r.path.contains("/large?uploadId=")).unwrap();
    assert_eq!(last.header("if-none-match").as_deref(), Some("*"), "{}", last.head);
    let again = store.upload("layers/ab/large", file.path()).await;
    assert!(matches!(again, Err(StoreError::AlreadyExists { .. })), "{again:?}");
    let more = front.requests().len() - asked.len();
    assert_eq!(more, 1, "what is there is not sent again");
    assert_eq!(s3.parts(), 0);
}

#[tokio::test]
async fn of_two_uploads_of_one_object_one_succeeds() {
    let Some(s3) = S3::start("two uploads") else { return };
    let (a, b) = (store(s3.address), store(s3.address));
    let (one, two) = (large_file(), large_file());
    fs::write(two.path(), noise(6, LARGE)).unwrap();
    let (first, second) = tokio::join!(a.upload("x", one.path()), b.upload("x", two.path()));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let loser = if first.is_ok() { &second } else { &first };
    assert!(matches!(loser, Err(StoreError::AlreadyExists { .. })), "{loser:?}");
    let winner = noise(if first.is_ok() { 5 } else { 6 }, LARGE);
    assert!(fs::read(s3.file("bucket", "a/prefix/x")).unwrap() == winner);
    assert_eq!(s3.parts(), 0, "the loser's parts are gone");
}

#[tokio::test]
async fn a_part_that_fails_for_a_moment_is_sent_again() {
    let Some(s3) = S3::start("a part that fails") else { return };
    let failed = AtomicUsize::new(0);
    let front =
        Front::start(Some(s3.address), move |request| match is_part(request, 2) && failed.fetch_add(1, SeqCst) < 2 {
            true if request.number.is_multiple_of(2) => error("503 Slow Down", "SlowDown"),
            true => Answer::CutRequest(100_000),
            false => Answer::Pass,
        });
    let store = store(front.address);
    store.upload("x", large_file().path()).await.unwrap();
    assert!(store.get_range("x", 0..LARGE as u64).await.unwrap() == noise(5, LARGE));
}

#[tokio::test]
async fn an_upload_that_fails_is_aborted_and_leaves_nothing() {
    let Some(s3) = S3::start("an upload that fails") else { return };
    let front = Front::start(Some(s3.address), |request| match is_part(request, 2) {
        true => error("403 Forbidden", "AccessDenied"),
        false => Answer::Pass,
    });
    let store = store(front.address);
    let answer = store.upload("x", large_file().path()).await;
    assert!(matches!(&answer, Err(StoreError::Denied { what, .. }) if what.contains("because")), "{answer:?}");
    assert!(matches!(store.stat("x").await, Err(StoreError::NotFound { .. })));
    let aborted = front.requests().iter().any(|r| r.method == "DELETE" && r.path.contains("/x?uploadId="));
    assert!(aborted);
    assert_eq!(s3.parts(), 0);
}

#[tokio::test]
async fn an_upload_whose_caller_goes_away_is_aborted() {
    let Some(s3) = S3::start("an upload that is cancelled") else { return };
    let front = Front::start(Some(s3.address), |request| match request.path.contains("/x?partNumber=") {
        true => Answer::Hang("200 OK", ""),
        false => Answer::Pass,
    });
    let (store, file) = (store(front.address), large_file());
    let (seen, hung) = (|front: &Front| front.requests().iter().any(|r| is_part(r, 2)), &front);
    tokio::select! {
        answer = store.upload("x", file.path()) => panic!("{answer:?}"),
        () = until(|| seen(hung)) => {}
    }
    let aborted =
        |front: &Front| front.requests().iter().any(|r| r.method == "DELETE" && r.path.contains("/x?uploadId="));
    until(|| aborted(&front)).await;
    store.settle().await;
    assert_eq!(s3.parts(), 0);
}

#[tokio::test]
async fn an_upload_whose_caller_goes_away_before_it_has_begun_is_aborted() {
    let Some(s3) = S3::start("an upload that is cancelled early") else { return };
    let begins = |request: &Request| request.method == "POST" && request.path.contains("/x?uploads");
    let front = Front::start(Some(s3.address), move |request| {
        if begins(request) {
            std::thread::sleep(Duration::from_millis(300));
        }
        Answer::Pass
    });
    let (store, file) = (store(front.address), large_file());
    tokio::select! {
        answer = store.upload("x", file.path()) => panic!("{answer:?}"),
        () = until(|| front.requests().iter().any(begins)) => {}
    }
    store.settle().await;
    let asked = front.requests();
    assert!(asked.iter().any(|r| r.method == "DELETE" && r.path.contains("/x?uploadId=")), "{asked:?}");
    assert_eq!(s3.parts(), 0);
}

/// Whether a request is the last one of an upload.
fn is_completion(request: &Request) -> bool {
    request.method == "POST" && request.path.contains("/x?") && request.path.contains("uploadId=")
}

/// A server before `s3` that answers each completion of the upload of `x`, by number, as `decide` says.
fn completing(s3: &S3, decide: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Front {
    let seen = AtomicUsize::new(0);
    Front::start(Some(s3.address), move |request| match is_completion(request) {
        true => decide(seen.fetch_add(1, SeqCst)),
        false => Answer::Pass,
    })
}

#[tokio::test]
async fn a_completion_whose_answer_was_lost_says_that_there_is_an_object_and_never_that_it_is_ours() {
    let Some(s3) = S3::start("a lost answer") else { return };
    let gone = || error("404 Not Found", "NoSuchUpload");
    let front = completing(&s3, move |n| if n == 0 { Answer::CutAnswer(0) } else { gone() });
    let answer = store(front.address).upload("x", large_file().path()).await;
    assert!(matches!(answer, Err(StoreError::AlreadyExists { .. })), "{answer:?}");
    assert_eq!(front.requests().iter().filter(|request| is_completion(request)).count(), 2);
    // As long, and not there before: but nothing says that the answer was yes.
    for (before, exists) in
        [(error("429 Too Many Requests", "SlowDown"), false), (error("503 Slow Down", "SlowDown"), true)]
    {
        let file = s3.file("bucket", "a/prefix/x");
        fs::remove_file(&file).unwrap();
        let front = completing(&s3, move |n| {
            // Another's, by now.
            fs::write(&file, vec![1; LARGE]).unwrap();
            if n == 0 { before.clone() } else { gone() }
        });
        let answer = store(front.address).upload("x", large_file().path()).await;
        let told = answer.unwrap_err();
        assert_eq!(matches!(told, StoreError::AlreadyExists { .. }), exists, "{told}");
        assert!(exists || told.to_string().contains("NoSuchUpload"), "{told}");
    }
    fs::remove_file(s3.file("bucket", "a/prefix/x")).unwrap();
    let front = completing(&s3, move |n| if n == 0 { error("500 Internal", "InternalError") } else { gone() });
    let told = store(front.address).upload("x", large_file().path()).await.unwrap_err();
    assert!(!matches!(told, StoreError::AlreadyExists { .. }), "{told}");
    assert_eq!(s3.parts(), 0);
}

#[tokio::test]
async fn an_upload_that_met_another_is_begun_anew_once_unless_there_is_an_object_then() {
    let Some(s3) = S3::start("uploads that meet") else { return };
    let conflict = || error("409 Conflict", "ConditionalRequestConflict");
    let ids = |front: &Front| {
        let asked = front.requests();
        let of = |r: &Request| r.path.split("uploadId=").nth(1).map(str::to_owned);
        asked.iter().filter(|request| is_completion(request)).filter_map(of).collect::<Vec<_>>()
    };
    let front = completing(&s3, move |n| if n == 0 { conflict() } else { Answer::Pass });
    store(front.address).upload("x", large_file().path()).await.unwrap();
    assert!(fs::read(s3.file("bucket", "a/prefix/x")).unwrap() == noise(5, LARGE));
    let used = ids(&front);
    assert!(used.len() == 2 && used[0] != used[1], "{used:?}");
    fs::remove_file(s3.file("bucket", "a/prefix/x")).unwrap();
    let always = completing(&s3, move |_| conflict());
    let answer = store(always.address).upload("x", large_file().path()).await;
    assert!(matches!(answer, Err(StoreError::Busy { .. })), "{answer:?}");
    assert_eq!(ids(&always).len(), 2);
    let file = s3.file("bucket", "a/prefix/x");
    let won = completing(&s3, move |_| {
        fs::write(&file, "another's").unwrap();
        conflict()
    });
    let answer = store(won.address).upload("x", large_file().path()).await;
    assert!(matches!(answer, Err(StoreError::AlreadyExists { .. })), "{answer:?}");
    assert_eq!(ids(&won).len(), 1);
    assert_eq!(s3.parts(), 0);
}

#[tokio::test]
async fn an_endpoint_that_passes_over_conditions_is_not_written_to() {
    let yes = || Answer::Reply("200 OK", vec!["ETag: \"x\"".to_owned()], vec![]);
    let front = Front::start(None, move |_| yes());
    let (store, file) = (store(front.address), large_file());
    for answer in [
        store.create("format", Bytes::from_static(b"x")).await,
        store.upload("small", tempfile::NamedTempFile::new().unwrap().path()).await,
        store.upload("large", file.path()).await,
    ] {
        assert!(
            matches!(&answer, Err(StoreError::Unsupported { what, .. }) if what.contains("If-None-Match")),
            "{answer:?}"
        );
    }
    let asked = front.requests();
    assert!(asked.iter().all(|request| request.path.ends_with(".tmp-conditional-writes")), "{asked:?}");
    let refuses = Front::start(None, |_| error("501 Not Implemented", "NotImplemented"));
    let answer = self::store(refuses.address).create("format", Bytes::new()).await;
    assert!(
        matches!(&answer, Err(StoreError::Unsupported { what, .. }) if what.contains("If-None-Match")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_endpoint_that_passes_over_the_condition_of_uploads_only_is_not_written_to() {
    let Some(s3) = S3::start("conditions of uploads") else { return };
    // As if the completion had come without its header, which is signed and cannot be taken out on the way.
    let front = Front::start(Some(s3.address), |request| {
        match request.method == "POST" && request.path.contains("uploadId=") {
            true => {
                assert_eq!(request.header("if-none-match").as_deref(), Some("*"));
                let yes = "<CompleteMultipartUploadResult><ETag>\"x\"</ETag></CompleteMultipartUploadResult>";
                Answer::Reply("200 OK", vec![], yes.into())
            }
            false => Answer::Pass,
        }
    });
    let (store, file) = (store(front.address), large_file());
    store.create("before", Bytes::from_static(b"x")).await.unwrap();
    for answer in [store.upload("x", file.path()).await, store.create("after", Bytes::from_static(b"x")).await] {
        assert!(
            matches!(&answer, Err(StoreError::Unsupported { what, .. }) if what.contains("If-None-Match")),
            "{answer:?}"
        );
    }
    let uploads = |r: &Request| r.path.contains("upload") && !r.path.contains("/a/prefix/.tmp-conditional-writes?");
    assert!(!front.requests().iter().any(uploads), "{:?}", front.requests());
    assert_eq!(store.get("before").await.unwrap(), &b"x"[..]);
    let refuses = Front::start(Some(s3.address), |request| {
        match request.method == "POST" && request.path.contains("uploadId=") {
            true => error("501 Not Implemented", "NotImplemented"),
            false => Answer::Pass,
        }
    });
    let answer = self::store(refuses.address).upload("x", file.path()).await;
    assert!(matches!(answer, Err(StoreError::Unsupported { .. })), "{answer:?}");
    assert!(refuses.requests().iter().any(|r| r.method == "DELETE" && r.path.contains("uploadId=")));
}

#[tokio::test]
async fn wrong_credentials_are_told_in_the_services_own_words() {
    let Some(s3) = S3::start("wrong credentials") else { return };
    let denied = async |change: fn(&mut S3Settings), says: &str| {
        let mut settings = s3.settings();
        change(&mut settings.s3);
        let store = open_with("s3://bucket", &settings).unwrap();
        for answer in
            [store.get("format").await.map(drop), store.create("x", Bytes::new()).await, store.list("").await.map(drop)]
        {
            let Err(error @ StoreError::Denied { .. }) = answer else { panic!("{answer:?}") };
            assert!(error.to_string().contains(says) && error.to_string().contains("s3://bucket"), "{error}");
        }
        assert!(matches!(store.stat("format").await, Err(StoreError::Denied { .. })));
    };
    denied(|s3| s3.secret_access_key = Some("wrong".into()), "SignatureDoesNotMatch").await;
    denied(|s3| s3.access_key_id = Some("NOBODY".into()), "403").await;
    denied(|s3| s3.anonymous = true, "AccessDenied").await;
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_no_missing_object() {
    let Some(s3) = S3::start("a missing bucket") else { return };
    let store = S3Store::new("s3://absent", &s3.settings()).unwrap();
    let listed = store.list("").await;
    assert!(matches!(listed, Err(StoreError::NoStore { .. })), "{listed:?}");
    // What AWS says to a GET; the server here says that there is no such key.
    let aws = Front::start(None, |_| error("404 Not Found", "NoSuchBucket"));
    let error = self::store(aws.address).get("format").await.unwrap_err();
    assert!(matches!(error, StoreError::NoStore { .. }) && error.to_string().contains("no such bucket"), "{error}");
    let elsewhere = Front::start(None, |_| {
        Answer::Reply("301 Moved Permanently", vec!["x-amz-bucket-region: eu-central-1".to_owned()], vec![])
    });
    let error = self::store(elsewhere.address).stat("format").await.unwrap_err().to_string();
    assert!(error.contains("eu-central-1"), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_an_error_that_names_it() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = open_with("s3://bucket", &settings(address)).unwrap().get("format").await.unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }) && error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_is_busy_is_asked_again() {
    let Some(s3) = S3::start("a busy endpoint") else { return };
    store(s3.address).create("format", Bytes::from_static(b"x")).await.unwrap();
    let front = Front::start(Some(s3.address), |request| match request.number {
        0 => error("503 Slow Down", "SlowDown"),
        1 => error("429 Too Many Requests", "Throttling"),
        2 => Answer::CutAnswer(0),
        _ => Answer::Pass,
    });
    let opened = open_with("s3://bucket/a/prefix", &settings(front.address)).unwrap();
    assert_eq!(opened.get("format").await.unwrap(), &b"x"[..]);
    let busy = Front::start(None, |_| {
        Answer::Reply("503 Slow Down", vec!["Retry-After: 120".to_owned()], b"<Code>SlowDown</Code>".to_vec())
    });
    let answer = open_with("s3://bucket", &settings(busy.address)).unwrap().get("format").await;
    let Err(StoreError::Busy { after, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(after, Some(Duration::from_secs(120)), "whoever can wait so long is told");
    assert_eq!(busy.requests().len(), 1);
}

#[tokio::test]
async fn answers_that_are_not_what_was_asked_for_are_errors() {
    let Some(s3) = S3::start("wrong answers") else { return };
    store(s3.address).create("x", Bytes::from(vec![7; 100_000])).await.unwrap();
    let whole = Front::start(None, |_| Answer::Reply("200 OK", vec![], vec![7; 100_000]));
    let answer = store(whole.address).get_range("x", 10..20).await;
    assert!(matches!(answer, Err(StoreError::Answer { .. })), "{answer:?}");
    let other = Front::start(None, |_| {
        Answer::Reply("206 Partial Content", vec!["Content-Range: bytes 20-29/100".to_owned()], vec![7; 10])
    });
    let answer = store(other.address).get_range("x", 10..20).await;
    assert!(matches!(answer, Err(StoreError::Answer { .. })), "{answer:?}");
    let cut = Front::start(Some(s3.address), |_| Answer::CutAnswer(50_000));
    let answer = store(cut.address).get_range("x", 0..100_000).await;
    assert!(matches!(answer, Err(StoreError::Io { .. } | StoreError::Answer { .. })), "{answer:?}");
    let answer = store(cut.address).get("x").await;
    assert!(matches!(answer, Err(StoreError::Io { .. } | StoreError::Answer { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_refusal_that_does_not_come_whole_says_nothing_of_the_object() {
    let hangs = Front::start(None, |_| Answer::Hang("404 Not Found", "<Error><Code>NoSuch"));
    let answer = store(hangs.address).get("x").await;
    let Err(StoreError::Io { source, .. }) = answer else { panic!("{answer:?}") };
    assert!(source.kind() == ErrorKind::TimedOut && source.to_string().contains("404 Not Found"), "{source}");
    let Some(s3) = S3::start("a refusal that is cut") else { return };
    let cut = Front::start(Some(s3.address), |_| Answer::CutAnswer(20));
    let answer = store(cut.address).get("x").await;
    assert!(matches!(answer, Err(StoreError::Io { .. })), "{answer:?}");
}

#[tokio::test]
async fn the_first_bytes_of_a_range_are_handed_over_before_the_last_are_there() {
    let head = "206 Partial Content\r\nContent-Range: bytes 0-9/100\r\nETag: \"x\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT";
    let slow = Front::start(None, move |_| Answer::Hang(head, "beginning"));
    let mut pieces =
        open_with("s3://bucket/a/prefix", &settings(slow.address)).unwrap().read("x", 0..10).await.unwrap();
    assert_eq!(pieces.next().await.unwrap().unwrap(), &b"beginning"[..]);
    let Some(s3) = S3::start("a body in pieces") else { return };
    store(s3.address).create("x", Bytes::from(vec![7; 100_000])).await.unwrap();
    let cut = Front::start(Some(s3.address), |_| Answer::CutAnswer(50_000));
    let mut pieces = store(cut.address).read("x", 0..100_000).await.unwrap();
    let (mut came, mut last) = (0, None);
    while let Some(piece) = pieces.next().await {
        came += piece.as_ref().map_or(0, Bytes::len);
        last = Some(piece);
    }
    assert!(came == 50_000 && matches!(last, Some(Err(StoreError::Io { .. }))), "{came} {last:?}");
}

#[tokio::test]
async fn later_ranges_are_asked_of_the_same_object_and_a_replaced_one_is_read_anew() {
    let Some(s3) = S3::start("a replaced object") else { return };
    store(s3.address).create("x", Bytes::from(vec![7; 1000])).await.unwrap();
    let front = Front::start(Some(s3.address), |request| match request.header("if-match") {
        Some(_) if request.number == 2 => error("412 Precondition Failed", "PreconditionFailed"),
        _ => Answer::Pass,
    });
    let reader = store(front.address);
    for _ in 0..4 {
        assert_eq!(reader.get_range("x", 10..20).await.unwrap(), vec![7; 10]);
    }
    let tags: Vec<bool> = front.requests().iter().map(|request| request.header("if-match").is_some()).collect();
    assert_eq!(tags, [false, true, true, false, true]);
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_named_and_no_other() {
    let Some(s3) = S3::start("a private authority") else { return };
    let (dir, strangers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, other) = (Certificates::make(dir.path()), Certificates::make(strangers.path()));
    let address = before(s3.address, &own).await;
    let with = |authority: Option<&Path>| {
        let mut settings = settings(address);
        settings.s3.endpoint = Some(format!("https://{address}"));
        settings.s3.allow_http = false;
        settings.ca_file = authority.map(Path::to_owned);
        open_with("s3://bucket/tls", &settings).unwrap()
    };
    conformance::run(&*with(Some(&own.authority))).await;
    for wrong in [None, Some(&*other.authority)] {
        let error = with(wrong).get("format").await.unwrap_err();
        assert!(matches!(error, StoreError::Io { .. }) && error.to_string().contains("ca_file"), "{error}");
    }
}
