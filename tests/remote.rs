//! Whole ways over the network: converted into a bucket, mounted and run from it; and from a web server that serves a
//! directory store.

// Tests fail by panicking.
use containerd::snapshots::PrepareSnapshotRequest;
use containerd::snapshots::snapshots_client::SnapshotsClient;
use rustix::process::Signal;
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use tests::front::{Answer, Front, Request};
use tests::image::{Image, tar};
use tests::node::Node;
use tests::s3::{S3, section};
use tests::tree::{listing, noise};
use tests::web;

const NAME: &str = "remote.local/app:1";

/// Two layers, one of them longer than a part of an upload.
fn image() -> Image {
    let large = noise(7, 9 << 20);
    Image::new(vec![tar(&[("etc/base", b"base"), ("data", &large)]), tar(&[("etc/top", b"top"), ("etc/base", b"new")])])
}

/// The image as a directory store has it: what every other way must give.
fn plain(node: &Node) -> (String, PathBuf, Vec<u8>) {
    let source = image().write(&node.path("image"), NAME);
    node.convert(&source, &[]);
    let out = node.path("plain.tar");
    node.run(&["export", NAME, "-o", out.to_str().unwrap()]);
    (source, node.path("store"), fs::read(out).unwrap())
}

/// Mounts the image lazily and has containerd's part of a start done; what is read is what the image has.
async fn starts_from_it(node: &mut Node, expected: &[u8]) {
    node.start_daemon();
    node.start_snapshotter();
    let target = node.new_dir("mnt");
    node.run(&["mount", NAME, target.to_str().unwrap()]);
    assert!(fs::read(target.join("data")).unwrap() == noise(7, 9 << 20));
    assert_eq!(fs::read_to_string(target.join("etc/base")).unwrap(), "new");
    let exported = node.new_dir("exported");
    fs::write(node.path("expected.tar"), expected).unwrap();
    let unpacked =
        std::process::Command::new("tar").arg("-xf").arg(node.path("expected.tar")).arg("-C").arg(&exported).status();
    assert!(unpacked.unwrap().success());
    assert!(listing(&target) == listing(&exported));
    let mut client = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    let mut parent = String::new();
    for (n, chain) in image().chain_ids().into_iter().enumerate() {
        let request = PrepareSnapshotRequest {
            snapshotter: "lamina".into(),
            key: format!("default/{n}/extract-{n} x"),
            parent: parent.clone(),
            labels: HashMap::from([("containerd.io/snapshot.ref".to_owned(), chain.clone())]),
        };
        let lazy = client.prepare(request).await.unwrap_err();
        assert_eq!(lazy.code(), tonic::Code::AlreadyExists, "{lazy:?}");
        parent = chain;
    }
    let container = PrepareSnapshotRequest {
        snapshotter: "lamina".into(),
        key: "default/9/c".into(),
        parent,
        labels: HashMap::new(),
    };
    assert_eq!(client.prepare(container).await.unwrap().into_inner().mounts[0].r#type, "overlay");
    node.run(&["umount", target.to_str().unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_goes_into_a_bucket_and_starts_from_there() {
    let Some(s3) = S3::start("an image in a bucket") else { return };
    if !tests::possible("an image in a bucket") {
        return;
    }
    let mut node = Node::default();
    let (source, _, expected) = plain(&node);
    node.use_store("s3://bucket/lamina", &section(s3.address));
    let report = node.convert(&source, &[]);
    let again = node.json(&["convert", &source]);
    assert_eq!(again["images"][0]["layers"][0]["reused"], true, "{again}");
    assert_eq!(node.run(&["store", "ls"]).trim(), format!("image:{NAME}"));
    let du = node.json(&["store", "du"]);
    let out = |layer: usize| report["images"][0]["layers"][layer]["bytes_out"].as_u64().unwrap();
    assert_eq!((du["layers"].as_u64(), du["bytes"].as_u64()), (Some(2), Some(out(0) + out(1))));
    node.run(&["verify", NAME]);
    let tar = node.path("remote.tar");
    node.run(&["export", NAME, "-o", tar.to_str().unwrap()]);
    assert!(fs::read(tar).unwrap() == expected, "the same tree as from a directory store");
    starts_from_it(&mut node, &expected).await;
    assert_eq!(s3.parts(), 0);
}

/// Whether a request is one of an upload in parts that has begun.
fn is_of_upload(request: &Request, method: &str, more: &str) -> bool {
    request.method == method && request.path.contains("uploadId=") && request.path.contains(more)
}

#[test]
fn a_conversion_that_a_signal_stops_takes_its_upload_back() {
    let Some(s3) = S3::start("a conversion that is stopped") else { return };
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (node, front) = (Node::default(), hanging(&s3));
        let source = image().write(&node.path("image"), NAME);
        node.use_store("s3://bucket/lamina", &section(front.address));
        let mut command = node.command(&["convert", &source]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        node.wait("a part", |_| front.requests().iter().any(|request| is_of_upload(request, "PUT", "/layers/")));
        rustix::process::kill_process(rustix::process::Pid::from_child(&run), signal).unwrap();
        let ended = run.wait().unwrap();
        let mut told = String::new();
        run.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(ended.code(), Some(status), "{told}");
        assert!(told.contains("lamina: interrupted"), "{told}");
        assert!(front.requests().iter().any(|request| is_of_upload(request, "DELETE", "/layers/")), "{told}");
        assert_eq!(s3.parts(), 0);
    }
}

#[test]
fn a_bucket_that_may_only_be_read_is_told_before_anything_is_converted() {
    let Some(s3) = S3::start("a bucket that may only be read") else { return };
    let denied = "<Error><Code>AccessDenied</Code><Message>read only</Message></Error>";
    let front = Front::start(Some(s3.address), move |request| match request.method.as_str() {
        "GET" | "HEAD" => Answer::Pass,
        _ => Answer::Reply("403 Forbidden", Vec::new(), denied.into()),
    });
    let node = Node::default();
    node.use_store("s3://bucket/lamina", &section(front.address));
    let said = node.fail(1, &["convert", &image().write(&node.path("image"), NAME)]);
    assert!(said.contains("nothing was converted") && said.contains("s3://bucket/lamina"), "{said}");
    assert!(said.contains("read only"), "{said}");
    assert!(!node.path("work").read_dir().unwrap().any(|entry| entry.is_ok()), "no work was begun");
    // An empty prefix is a store without anything; a bucket that is not there is none.
    let output = node.lamina(&["store", "ls"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no store yet"), "{output:?}");
    let said = node.fail(1, &["store", "ls", "--store", "s3://no-such-bucket/lamina"]);
    assert!(said.contains("no such bucket"), "{said}");
}

/// A server before `s3` that does not answer for the parts of layers.
fn hanging(s3: &S3) -> Front {
    Front::start(Some(s3.address), |request| match is_of_upload(request, "PUT", "/layers/") {
        true => Answer::Hang("200 OK", ""),
        false => Answer::Pass,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn two_conversions_into_one_bucket_at_once_agree() {
    let Some(s3) = S3::start("two conversions into a bucket") else { return };
    let nodes = [Node::default(), Node::default()];
    let runs: Vec<_> = nodes
        .iter()
        .map(|node| {
            let source = image().write(&node.path("image"), NAME);
            node.use_store("s3://bucket/lamina", &section(s3.address));
            node.command(&["convert", &source]).spawn().unwrap()
        })
        .collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    nodes[0].run(&["verify", NAME]);
    assert_eq!(nodes[0].json(&["store", "du"])["layers"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_before_a_directory_store_is_a_store_to_read() {
    if !tests::possible("a web server") {
        return;
    }
    let mut node = Node::default();
    let (source, directory, expected) = plain(&node);
    let server = web::serve(&directory, true);
    node.use_store(&format!("http://{}", server.address), "");
    node.run(&["verify", NAME]);
    let tar = node.path("remote.tar");
    node.run(&["export", NAME, "-o", tar.to_str().unwrap()]);
    assert!(fs::read(tar).unwrap() == expected);
    let error = node.fail(1, &["store", "ls"]);
    assert!(error.contains("cannot list"), "{error}");
    let error = node.fail(1, &["convert", &source, "--again"]);
    assert!(error.contains("read-only"), "{error}");
    starts_from_it(&mut node, &expected).await;
}

#[test]
fn what_is_wrong_with_a_store_on_the_network_is_told() {
    let node = Node::default();
    let denied = Front::start(None, |_| {
        let body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>".to_vec();
        Answer::Reply("403 Forbidden", vec![], body)
    });
    node.use_store("s3://bucket/lamina", &section(denied.address));
    let error = node.fail(1, &["store", "ls"]);
    assert!(error.contains("access denied") && error.contains("InvalidAccessKeyId: no such key"), "{error}");
    let source = image().write(&node.path("image"), NAME);
    let error = node.fail(1, &["convert", &source]);
    assert!(error.contains("InvalidAccessKeyId"), "{error}");
    node.reconfigure("allow_http = true", "allow_http = false");
    let error = node.fail(2, &["store", "ls"]);
    assert!(error.contains("allow_http"), "{error}");
    node.reconfigure("allow_http = false", "regoin = \"x\"");
    let error = node.fail(2, &["store", "ls"]);
    assert!(error.contains("regoin") && error.contains("line"), "{error}");
}
