//! A web server's directory as a store, read-only, and servers that do it badly.

// Tests fail by panicking.
use blobstore::refs::{ImageName, Refs};
use blobstore::store::{FileStore, HttpStore, Settings, Store, StoreError, conformance, open_with};
use bytes::Bytes;
use futures_util::StreamExt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tests::front::{Answer, Front};
use tests::tls::{Certificates, before};
use tests::web;

fn store(address: SocketAddr) -> HttpStore {
    HttpStore::new(&format!("http://{address}"), &Settings::default()).unwrap()
}

fn files() -> (tempfile::TempDir, FileStore) {
    let dir = tempfile::tempdir().unwrap();
    let files = FileStore::new(dir.path());
    (dir, files)
}

#[tokio::test]
async fn a_web_server_is_a_store_to_read() {
    let (dir, files) = files();
    let server = web::serve(dir.path(), true);
    conformance::run_read_only(&store(server.address), &files).await;
    let opened = open_with(&format!("http://{}/", server.address), &Settings::default()).unwrap();
    conformance::run_read_only(&*opened, &files).await;
    let listed = opened.list("images/").await;
    assert!(matches!(listed, Err(StoreError::Unsupported { .. })), "{listed:?}");
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_named() {
    let (dir, files) = files();
    files.create("a", Bytes::from_static(b"x")).await.unwrap();
    let (server, certificates) = (web::serve(dir.path(), true), Certificates::make(dir.path()));
    let url = format!("https://{}", before(server.address, &certificates).await);
    let settings = Settings { ca_file: Some(certificates.authority), ..Settings::default() };
    assert_eq!(HttpStore::new(&url, &settings).unwrap().get("a").await.unwrap(), &b"x"[..]);
    let error = HttpStore::new(&url, &Settings::default()).unwrap().get("a").await.unwrap_err();
    assert!(error.to_string().contains("ca_file"), "{error}");
}

#[tokio::test]
async fn a_proxy_is_asked_when_it_is_named() {
    let (dir, files) = files();
    files.create("a", Bytes::from_static(b"x")).await.unwrap();
    let root = dir.path().to_owned();
    let proxy = Front::start(None, move |request| {
        let mut request = request.clone();
        request.path = request.path.strip_prefix("http://store.test").unwrap().to_owned();
        web::answer(&root, &request, true)
    });
    let settings = Settings { proxy: Some(format!("http://{}", proxy.address).into()), ..Settings::default() };
    assert_eq!(HttpStore::new("http://store.test/", &settings).unwrap().get("a").await.unwrap(), &b"x"[..]);
}

#[tokio::test]
async fn a_server_without_ranges_gives_beginnings_and_is_refused_for_the_rest() {
    let (dir, files) = files();
    files.create("a", Bytes::from(vec![7; 100_000])).await.unwrap();
    let server = web::serve(dir.path(), false);
    let store = store(server.address);
    assert_eq!(store.get_range("a", 0..10).await.unwrap(), vec![7; 10]);
    assert_eq!(store.get_range("a", 0..100_000).await.unwrap(), vec![7; 100_000]);
    assert!(matches!(store.get_range("a", 0..100_001).await, Err(StoreError::Answer { .. })));
    let error = store.get_range("a", 10..20).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }) && error.to_string().contains("ranges"), "{error}");
    // No more is read than is needed: the rest never comes.
    let endless = Front::start(None, |_| Answer::Hang("200 OK", "beginning"));
    assert_eq!(self::store(endless.address).get_range("a", 0..9).await.unwrap(), &b"beginning"[..]);
}

#[tokio::test]
async fn answers_that_are_not_what_was_asked_for_are_errors() {
    let part = |range: &'static str, body: &'static [u8]| {
        Front::start(None, move |_| {
            Answer::Reply("206 Partial Content", vec![format!("Content-Range: {range}")], body.to_vec())
        })
    };
    for server in [
        part("bytes 5-9/100", b"01234"),
        part("bytes 0-4/100", b"0123"),
        part("bytes 0-4/100", b"012345"),
        part("what", b"01234"),
    ] {
        let answer = store(server.address).get_range("a", 0..5).await;
        assert!(matches!(answer, Err(StoreError::Answer { .. })), "{answer:?}");
    }
    let (dir, files) = files();
    files.create("a", Bytes::from(vec![7; 1000])).await.unwrap();
    let root = dir.path().to_owned();
    let cut = Front::start(Some(web::serve(&root, true).address), |_| Answer::CutAnswer(500));
    for answer in [store(cut.address).get_range("a", 0..1000).await, store(cut.address).get("a").await] {
        assert!(matches!(answer, Err(StoreError::Io { .. } | StoreError::Answer { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn the_first_bytes_of_a_range_are_handed_over_before_the_last_are_there() {
    for head in ["206 Partial Content\r\nContent-Range: bytes 0-9/100", "200 OK"] {
        let slow = Front::start(None, move |_| Answer::Hang(head, "beginning"));
        let store = open_with(&format!("http://{}", slow.address), &Settings::default()).unwrap();
        let mut pieces = store.read("a", 0..10).await.unwrap();
        assert_eq!(pieces.next().await.unwrap().unwrap(), &b"beginning"[..], "{head}");
    }
}

#[tokio::test]
async fn a_redirect_to_nowhere_and_a_refusal_that_does_not_come_whole_are_told() {
    for status in ["302 Found", "304 Not Modified", "300 Multiple Choices"] {
        let nowhere = Front::start(None, move |_| Answer::Reply(status, vec![], vec![]));
        let told = store(nowhere.address).get("a").await.unwrap_err().to_string();
        assert!(told.contains(status) && told.contains("where to"), "{told}");
    }
    let refuses = Front::start(None, |_| Answer::Reply("404 Not Found", vec![], vec![b'x'; 1000]));
    let cut = Front::start(Some(refuses.address), |_| Answer::CutAnswer(20));
    let answer = store(cut.address).get("a").await;
    assert!(matches!(answer, Err(StoreError::Io { .. })), "{answer:?}");
}

#[tokio::test]
async fn redirects_are_followed_but_not_to_a_folder() {
    let (dir, files) = files();
    files.create("b/a", Bytes::from_static(b"x")).await.unwrap();
    let target = web::serve(dir.path(), true).address;
    let front = Front::start(None, move |request| {
        Answer::Reply("302 Found", vec![format!("Location: http://{target}/b{}", request.path)], vec![])
    });
    assert_eq!(store(front.address).get("a").await.unwrap(), &b"x"[..]);
    assert_eq!(store(front.address).get_range("a", 0..1).await.unwrap(), &b"x"[..]);
    assert!(matches!(store(target).get("b").await, Err(StoreError::NotFound { .. })));
    let denied = Front::start(None, |_| Answer::Reply("403 Forbidden", vec![], vec![]));
    assert!(matches!(store(denied.address).get("a").await, Err(StoreError::Denied { .. })));
}

/// A store whose names have histories, read through a server that cannot list.
#[tokio::test]
async fn images_and_tags_are_found_where_nothing_can_be_listed() {
    let (dir, files) = files();
    let writer = Refs::new(Arc::new(files));
    let image: ImageName = "registry.test/app:1".parse().unwrap();
    for n in 1..=3u8 {
        let digest = format!("sha256:{}", format!("{n:02}").repeat(32)).parse().unwrap();
        writer.put_image(&image, digest).await.unwrap();
    }
    let reader = |root: &Path| {
        let address = web::serve(root, true).address;
        Refs::new(Arc::new(store(address)))
    };
    assert_eq!(reader(dir.path()).image(&image).await.unwrap(), writer.image(&image).await.unwrap());
    // A hint that its writer did not come to update is behind: what is above it is found.
    let hint = dir.path().join("images/registry.test/app/_/1/latest");
    std::fs::write(&hint, "{\"sequence\":2}").unwrap();
    assert_eq!(reader(dir.path()).image(&image).await.unwrap(), writer.image(&image).await.unwrap());
    assert_eq!(reader(dir.path()).image(&"registry.test/none:1".parse().unwrap()).await.unwrap(), None);
    let error = reader(dir.path()).images().await.unwrap_err().to_string();
    assert!(error.contains("cannot list"), "{error}");
}
