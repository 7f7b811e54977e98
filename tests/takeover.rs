//! Workers die; readers must not notice.

use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tests::node::{Node, pid, waiting_file};
use tests::tree::{noise, write};

const BLOCK: usize = 64 << 10;
const FILES: u64 = 8;
const FILE: usize = 24 << 20;

/// Requests that the kernel has sent or is about to send, and that have no answer yet.
fn unanswered(node: &Node) -> u64 {
    fs::read_to_string(waiting_file(&node.path("run/dev"))).unwrap().trim().parse().unwrap()
}

/// Reads a file in scattered order and compares each block. Gives how many were read.
fn read_and_compare(path: &Path, content: &[u8], offset: usize, count: &AtomicUsize) {
    let file = File::open(path).unwrap();
    let blocks = content.len() / BLOCK;
    let mut buffer = vec![0; BLOCK];
    for i in 0..blocks {
        let at = (i * 37 + offset) % blocks * BLOCK;
        file.read_exact_at(&mut buffer, at as u64).unwrap_or_else(|e| panic!("{}: {at}: {e}", path.display()));
        assert!(buffer == content[at..at + BLOCK], "{}: wrong bytes at {at}", path.display());
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn ten_kills(daemon: &str) {
    let mut node = Node::with_daemon(daemon, "");
    let source = node.new_dir("source");
    let contents: Vec<Vec<u8>> = (0..FILES).map(|i| noise(i, FILE)).collect();
    for (i, content) in contents.iter().enumerate() {
        write(&source.join(format!("data/{i}")), content);
    }
    node.convert_dir(&source, "base/big:1");
    // Slow enough that reads are always waiting when a worker is killed.
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"200ms\"");
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/big:1", target.to_str().unwrap()]);

    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(i, content)| {
                let path = target.join(format!("data/{i}"));
                let count = &count;
                scope.spawn(move || read_and_compare(&path, content, i * 11, count))
            })
            .collect();
        for kill in 0..10 {
            let before = count.load(Ordering::Relaxed);
            node.wait("some reads to be answered", |_| count.load(Ordering::Relaxed) > before + 4);
            let worker = pid(&node.status().unwrap());
            node.wait("a read without an answer", |n| unanswered(n) > 0);
            kill_process(worker, Signal::KILL).unwrap();
            node.wait("a successor", |n| n.status().is_some_and(|s| pid(&s) != worker));
            let takeovers = node.status().unwrap()["takeovers"].as_u64().unwrap();
            assert_eq!(takeovers, kill + 1, "the connection was adopted, not begun anew");
            assert!(readers.iter().any(|r| !r.is_finished()), "the readers were done too early to prove anything");
        }
        for reader in readers {
            reader.join().unwrap();
        }
    });
    node.run(&["umount", target.to_str().unwrap()]);
    assert!(node.stop_daemon());
}

#[test]
fn a_worker_killed_ten_times_fails_no_read() {
    if tests::possible("takeover") && tests::linux("takeover", (6, 9)) {
        ten_kills("");
    }
}

#[test]
fn nor_does_it_with_loop_devices() {
    if tests::possible("takeover with loop devices") && tests::linux("takeover", (6, 9)) {
        ten_kills("face = \"loop\"");
    }
}

/// A node whose mount `mnt` nobody uses, with a layer of one file.
fn idle(test: &str) -> Option<(Node, Vec<u8>)> {
    if !tests::possible(test) || !tests::linux(test, (6, 9)) {
        return None;
    }
    let mut node = Node::default();
    let (source, content) = (node.new_dir("source"), noise(7, 4 << 20));
    write(&source.join("file"), &content);
    write(&source.join("other"), "another layer's difference");
    node.convert_dir(&source, "base/idle:1");
    write(&node.new_dir("tools").join("tool"), "a tool");
    node.convert_dir(&node.path("tools"), "toolkit/t:1");
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/idle:1", "toolkit/t:1", target.to_str().unwrap()]);
    Some((node, content))
}

/// Mount points below the node's directory.
fn mounted(node: &Node) -> Vec<String> {
    let below = node.path("").display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut targets: Vec<String> = mounts.lines().filter_map(|l| l.split(' ').nth(4).map(str::to_owned)).collect();
    targets.retain(|target| target.starts_with(&below));
    targets.sort_unstable();
    targets
}

#[test]
fn a_worker_that_is_asked_to_end_hands_over_and_leaves_mounts_that_nobody_uses() {
    let Some((mut node, content)) = idle("a worker that is asked to end") else { return };
    let before = mounted(&node);
    for n in 1..=2 {
        let worker = pid(&node.status().unwrap());
        // What was read is in the next one's cache, however soon it comes.
        assert!(fs::read(node.path("mnt/file")).unwrap() == content);
        kill_process(worker, Signal::TERM).unwrap();
        node.wait("a successor", |n| n.status().is_some_and(|s| pid(&s) != worker));
        let status = node.status().unwrap();
        assert_eq!(status["takeovers"], n, "{status}");
        assert_eq!(mounted(&node), before);
        let cached = node.json(&["cache", "stat"]);
        assert!(cached["bytes"].as_u64().unwrap() > content.len() as u64, "{cached}");
    }
    assert_eq!(fs::read(node.path("mnt/tool")).unwrap(), b"a tool");
    let log = node.log("laminad");
    assert!(!log.contains("EIO") && !log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(node.stop_daemon());
    assert_eq!(mounted(&node), Vec::<String>::new(), "the daemon's own end takes them down");
}

#[test]
fn the_daemon_ends_as_a_whole_also_where_its_worker_is_asked_to_end_at_the_same_moment() {
    // As a service manager does that signals every process of a service.
    let Some((mut node, _)) = idle("a service manager's signals") else { return };
    let worker = pid(&node.status().unwrap());
    kill_process(worker, Signal::TERM).unwrap();
    assert!(node.stop_daemon());
    assert_eq!(mounted(&node), Vec::<String>::new());
}

/// The worker's program is gone, so no successor can start: readers must get EIO, soon after the deadline.
#[test]
fn without_a_successor_readers_get_an_error_and_not_a_wait() {
    if !tests::possible("no successor") {
        return;
    }
    let mut node = Node::with_daemon("successor_deadline = \"2s\"", "");
    let source = node.new_dir("source");
    write(&source.join("file"), noise(1, 1 << 20));
    node.convert_dir(&source, "base/small:1");
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"1s\"");
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/small:1", target.to_str().unwrap()]);
    // Asked for now: a status asks the store too, and the reader must still be waiting afterwards.
    let worker = pid(&node.status().unwrap());
    let path = target.join("file");
    let reader = std::thread::spawn(move || fs::read(path));
    node.wait("a read without an answer", |n| unanswered(n) > 0);
    // From now on every worker fails to start: its configuration is no TOML any more.
    node.reconfigure("[cache]", "[cache");
    let start = Instant::now();
    kill_process(worker, Signal::KILL).unwrap();
    let error = reader.join().unwrap().unwrap_err();
    node.reconfigure("[cache", "[cache]");
    assert!(start.elapsed() < Duration::from_secs(40), "it took {:?}", start.elapsed());
    println!("readers got: {error}");
    // And the daemon gets over it.
    node.wait("a new worker", |n| n.status().is_some());
}

/// A file that an editor has emptied and not written yet is a configuration too.
#[test]
fn a_worker_stays_where_the_daemon_is_whatever_it_reads() {
    let Some((node, content)) = idle("a worker that stays") else { return };
    let worker = pid(&node.status().unwrap());
    let configuration = fs::read(node.path("config.toml")).unwrap();
    let (cache, run) = (node.path("cache").display().to_string(), node.path("run").display().to_string());
    node.reconfigure(&format!("\"{cache}\""), &format!("\"{cache}2\""));
    node.reconfigure(&format!("\"{run}\""), &format!("\"{run}2\""));
    kill_process(worker, Signal::KILL).unwrap();
    node.wait("a word about both", |node| node.log("laminad").matches("only when laminad is started").count() == 2);
    fs::write(node.path("config.toml"), configuration).unwrap();
    node.wait("a successor", |node| node.status().is_some_and(|status| pid(&status) != worker));
    assert_eq!(node.status().unwrap()["takeovers"], 1);
    assert!(fs::read(node.path("mnt/file")).unwrap() == content);
    assert!(!node.path("run2").exists() && !node.path("cache2").exists());
}

#[test]
fn a_worker_under_a_limit_on_the_size_of_files_serves_what_it_cannot_cache() {
    let Some((node, content)) = idle("a limit on the size of files") else { return };
    let (worker, holder) = (pid(&node.status().unwrap()), node.status().unwrap()["holder_pid"].to_string());
    let limited = Command::new("prlimit").args(["--pid", &holder, "--fsize=65536"]).status().unwrap();
    assert!(limited.success());
    kill_process(worker, Signal::KILL).unwrap();
    node.wait("a successor", |node| node.status().is_some_and(|status| pid(&status) != worker));
    let successor = pid(&node.status().unwrap());
    assert!(fs::read(node.path("mnt/file")).unwrap() == content);
    node.wait("a word about the cache", |node| node.log("laminad").contains("File too large"));
    assert!(fs::read(node.path("mnt/other")).unwrap() == b"another layer's difference");
    assert_eq!(pid(&node.status().unwrap()), successor);
}
