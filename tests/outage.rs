//! Reads through a real mount of a store that goes away and comes back, and of a file from its start to its end.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tests::front::{Answer, Front};
use tests::node::Node;
use tests::tree::{noise, write};
use tests::web;

/// A node whose store is a web server that can be told to be out, with a layer of one file; it is mounted at `mnt`.
fn node(test: &str, length: usize, fetch: &str) -> Option<(Node, Vec<u8>, Arc<AtomicBool>)> {
    if !tests::possible(test) {
        return None;
    }
    let mut node = Node::with_daemon("", &format!("[fetch]\n{fetch}"));
    let (source, content) = (node.new_dir("source"), noise(3, length));
    write(&source.join("big"), &content);
    node.convert_dir(&source, "base/one:1");
    let (out, root) = (Arc::new(AtomicBool::new(false)), node.path("store"));
    let is_out = Arc::clone(&out);
    let silent = test == "one deadline";
    let server = Front::start(None, move |request| match is_out.load(Relaxed) {
        true if silent => Answer::Silence,
        true => Answer::Reply("503 Service Unavailable", vec![], vec![]),
        false => web::answer(&root, request, true),
    });
    let files = format!("url = \"file://{}\"", node.path("store").display());
    node.reconfigure(&files, &format!("url = \"http://{}\"", server.address));
    node.start_daemon();
    let layer = node.json(&["inspect", "base/one:1"])["layers"][0]["layer"].as_str().unwrap().to_owned();
    let target = node.new_dir("mnt");
    node.run(&["mount", &format!("layer:{layer}"), target.to_str().unwrap()]);
    Some((node, content, out))
}

fn cat(file: &Path) -> std::process::Child {
    Command::new("cat").arg(file).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn with_wait_readers_outlast_an_outage_and_can_be_killed_in_it() {
    if !tests::linux("waiting for a store", (6, 9)) {
        return;
    }
    let fetch = "on_outage = \"wait\"\ndeadline = \"1s\"\n";
    let Some((node, content, out)) = node("waiting for a store", 4 << 20, fetch) else { return };
    let file = node.path("mnt/big");
    out.store(true, Relaxed);
    let (mut waits, mut killed) = (cat(&file), cat(&file));
    std::thread::sleep(Duration::from_secs(3));
    assert!(waits.try_wait().unwrap().is_none(), "it waits past the deadline");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let log = node.log("laminad");
    assert!(log.contains("a fetch failed") && log.contains("chunk") && log.contains("503"), "{log}");
    out.store(false, Relaxed);
    assert!(waits.wait().unwrap().success());
    assert!(fs::read(&file).unwrap() == content);
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}

#[test]
fn with_fail_readers_of_a_store_that_is_out_get_an_error_at_the_deadline() {
    let Some((node, content, out)) = node("a store that is out", 1 << 20, "deadline = \"3s\"\n") else { return };
    let file = node.path("mnt/big");
    out.store(true, Relaxed);
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5));
    out.store(false, Relaxed);
    // For a second it is the same reader's wait, which is over; and the kernel may have asked for some pages later.
    std::thread::sleep(Duration::from_secs(3));
    assert!(fs::read(&file).unwrap() == content);
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}

#[test]
fn a_reader_of_a_store_that_does_not_answer_waits_for_one_deadline_though_the_kernel_asks_again() {
    let Some((mut node, _, out)) = node("one deadline", 1 << 20, "deadline = \"2s\"\nreadahead = 0\n") else { return };
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
    assert!(node.stop_daemon());
    node.reconfigure("metrics = \"\"", "metrics = \"127.0.0.1:0\"");
    node.start_daemon();
    let layer = node.json(&["inspect", "base/one:1"])["layers"][0]["layer"].as_str().unwrap().to_owned();
    node.run(&["mount", &format!("layer:{layer}"), node.path("mnt").to_str().unwrap()]);
    let ended = || {
        let page = node.metrics("laminad");
        let line = page.lines().find(|line| line.starts_with("lamina_fetch_errors_total{kind=\"timeout\"}"));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    let before = ended();
    out.store(true, Relaxed);
    let file = File::open(node.path("mnt/big")).unwrap();
    let readers = || {
        std::thread::scope(|scope| {
            let read = || std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 4096], 0);
            let all: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
            all.into_iter().for_each(|reader| {
                assert_eq!(reader.join().unwrap().unwrap_err().raw_os_error(), Some(5));
            });
        });
    };
    readers();
    // A read that ends at its deadline counts once, and its request once more if it is given up by now. The kernel asked for
    // the page ahead of the first reader, and then for each of the four.
    assert!(ended() - before <= 2.0, "{} times\n{}", ended() - before, node.log("laminad"));
    drop(file);
    out.store(false, Relaxed);
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}

#[test]
fn a_file_read_from_its_start_comes_in_long_requests_ahead_of_the_reader() {
    let Some((node, content, _)) = node("readahead", 32 << 20, "") else { return };
    let before = node.status().unwrap()["fetches"].as_u64().unwrap();
    let mut read = Vec::new();
    File::open(node.path("mnt/big")).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == content);
    let status = node.status().unwrap();
    let (requests, bytes) = (status["fetches"].as_u64().unwrap() - before, status["fetched_bytes"].as_u64().unwrap());
    // 64 chunks of 512 KiB that do not compress, two to a request.
    assert!(requests < 48, "{requests} requests");
    assert!(bytes < 34 << 20, "{bytes} bytes: each once");
    node.run(&["umount", node.path("mnt").to_str().unwrap()]);
}
