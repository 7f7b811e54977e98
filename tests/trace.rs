//! `lamina trace` beside real mounts of a store that takes its time.

use blobstore::layer::Index;
use blobstore::profile::{Profile, Run, Seen};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use tests::image::layer_file;
use tests::node::Node;
use tests::tree::{noise, write};

const SMALL: usize = 10_000;
const BIG: usize = 8 << 20;
/// Reads of the kernel that no queue and no connection holds.
const MANY: u64 = 16_000;

/// A daemon of a store that answers after 20 ms, with the layer `base/one:1`: small files that share chunks, and a long one.
fn node(test: &str, fetch: &str) -> Option<(Node, String)> {
    if !tests::possible(test) {
        return None;
    }
    let mut node = Node::new(&format!("[fetch]\n{fetch}[profile]\nrecord = \"off\"\n"));
    let source = node.new_dir("source");
    for n in 0..40 {
        write(&source.join(format!("small/{n:02}")), noise(n, SMALL));
    }
    write(&source.join("long/file"), noise(99, BIG));
    let layer = node.convert_dir(&source, "base/one:1");
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"20ms\"");
    node.start_daemon();
    Some((node, layer))
}

fn mount(node: &Node, tag: &str) -> PathBuf {
    let target = node.new_dir("mnt");
    node.run(&["mount", tag, target.to_str().unwrap()]);
    target
}

fn unmount(node: &Node, target: &Path) {
    node.run(&["umount", target.to_str().unwrap()]);
}

/// A trace that has begun.
struct Trace {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Trace {
    fn begin(node: &Node, arguments: &[&str]) -> Self {
        let mut command: Command = node.command(&[&["trace", "--json"][..], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut trace = Self { child, lines };
        assert_eq!(trace.next().unwrap()["event"], "begin");
        trace
    }

    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        (self.lines.read_line(&mut line).unwrap() > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Takes lines until one is so.
    fn until(&mut self, so: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut lines = Vec::new();
        while let Some(line) = self.next() {
            let found = so(&line);
            lines.push(line);
            if found {
                return lines;
            }
        }
        panic!("the trace ended: {lines:?}");
    }

    /// Ends it as Ctrl-C does; gives what was left, the summary last.
    fn end(mut self) -> Vec<Value> {
        self.signal(Signal::INT);
        self.rest()
    }

    fn rest(&mut self) -> Vec<Value> {
        let lines: Vec<Value> = std::iter::from_fn(|| self.next()).collect();
        assert!(self.child.wait().unwrap().success());
        assert_eq!(lines.last().unwrap()["event"], "summary");
        lines
    }
}

fn is(line: &Value, cause: &str, file: &str) -> bool {
    line["cause"] == cause && line["file"] == file
}

#[test]
fn what_is_read_of_a_cold_layer_is_listed_by_file_and_summed_up() {
    let Some((node, layer)) = node("a trace", "readahead = 0\nneighbours = false\n") else { return };
    let target = mount(&node, "base/one:1");
    let mut trace = Trace::begin(&node, &["base/one:1"]);
    // In the middle of a chunk of many: the one that was asked for is named.
    assert!(fs::read(target.join("small/17")).unwrap() == noise(17, SMALL));
    let lines = trace.until(|line| is(line, "read", "/small/17"));
    let line = lines.last().unwrap();
    assert_eq!((&line["layer"], &line["source"]), (&layer.clone().into(), &"store".into()));
    assert!(line["ms"].as_f64().unwrap() >= 20.0, "{line}");
    assert!((1..=3 * 4096).contains(&line["bytes"].as_u64().unwrap()), "{line}");
    // Its neighbours are here now: nobody waits.
    assert!(fs::read(target.join("small/18")).unwrap() == noise(18, SMALL));
    fs::read(target.join("long/file")).unwrap();
    let mut lines = trace.until(|line| is(line, "read", "/long/file"));
    lines.extend(trace.end());
    assert!(!lines.iter().any(|line| line["file"] == "/small/18"), "{lines:?}");
    let summary = lines.last().unwrap();
    let file = |name: &str| summary["files"].as_array().unwrap().iter().find(|file| file["file"] == name);
    assert!(file("/small/17").unwrap()["ms"].as_f64().unwrap() >= 20.0, "{summary}");
    assert!(file("/long/file").unwrap()["count"].as_u64().unwrap() > 1, "{summary}");
    assert!(file("/small/18").is_none());
    let (all, one) = (&summary["causes"]["read"], file("/small/17").unwrap());
    assert!(all["ms"].as_f64() >= one["ms"].as_f64() && all["bytes"].as_u64() > one["bytes"].as_u64(), "{summary}");
    assert_eq!(summary["lost"], 0);
    unmount(&node, &target);
    assert!(node.lamina(&["trace", "base/none:1"]).status.code() == Some(1));
    assert!(node.fail(2, &["trace", ""]).contains("REF"));
}

#[test]
fn what_is_fetched_ahead_of_a_long_file_is_readahead_and_other_layers_are_left_out() {
    let Some((node, _)) = node("a trace of readahead", "neighbours = false\n") else { return };
    let other = node.new_dir("other");
    write(&other.join("file"), noise(1, SMALL));
    node.convert_dir(&other, "base/two:1");
    let target = mount(&node, "base/one:1");
    let (mut mine, mut others) = (Trace::begin(&node, &[]), Trace::begin(&node, &["base/two:1", "--for", "3s"]));
    assert!(fs::read(target.join("long/file")).unwrap() == noise(99, BIG));
    mine.until(|line| is(line, "readahead", "/long/file"));
    let summary = mine.end().pop().unwrap();
    assert!(summary["causes"]["readahead"]["bytes"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(others.rest().len(), 1, "the summary alone");
    // For people.
    let text = node.run(&["trace", "--for", "10ms"]);
    assert!(text.contains("CAUSE") && text.contains("s traced"), "{text}");
    unmount(&node, &target);
}

#[test]
fn what_a_profile_has_fetched_is_prefetch() {
    let Some((node, layer)) = node("a trace of a replayed start", "readahead = 0\nneighbours = false\n") else {
        return;
    };
    let index = Index::of_file(&File::open(layer_file(&node.path("store"), &layer)).unwrap()).unwrap();
    let seen = Seen { runs: 1, after: 0, parts: u128::MAX };
    let chunks = (0..index.chunk_count()).map(|chunk| (chunk, seen)).collect();
    let all = Profile { runs: 1, chunks, ..Profile::new(index.id(), Run::default()) };
    write(&node.path("store/node/profiles").join(&layer).join("other"), all.encode());
    let mut trace = Trace::begin(&node, &[]);
    let target = mount(&node, "base/one:1");
    let lines = trace.until(|line| is(line, "prefetch", "/long/file"));
    assert!(!lines.iter().any(|line| line["cause"] == "read"), "{lines:?}");
    let summary = trace.end().pop().unwrap();
    assert!(summary["causes"]["prefetch"]["ms"].as_f64().unwrap() >= 20.0, "{summary}");
    assert_eq!(summary["files"].as_array().unwrap().len(), 0, "nobody waited");
    unmount(&node, &target);
}

#[test]
fn what_is_fetched_for_the_cache_is_no_prefetch() {
    let Some((node, _)) = node("a trace of a warm", "readahead = 0\nneighbours = false\n") else { return };
    let mut trace = Trace::begin(&node, &["base/one:1"]);
    let warmed = node.json(&["cache", "warm", "base/one:1"]);
    trace.until(|line| is(line, "fill", "/long/file"));
    let summary = trace.end().pop().unwrap();
    let causes = summary["causes"].as_object().unwrap();
    assert!(causes.keys().eq(["fill"]) && causes["fill"]["failed"] == 0, "{summary}");
    assert!(causes["fill"]["count"].as_u64() <= warmed["chunks"].as_u64(), "{summary} {warmed}");
}

/// One read of one page each, of pages that are not in the page cache.
fn read_pages(file: &Path, pages: u64) {
    let mut file = File::open(file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for n in 0..pages {
        file.seek(SeekFrom::Start(n * 4096)).unwrap();
        file.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn a_slow_caller_loses_events_and_is_told_and_a_killed_one_does_no_harm() {
    let Some((node, _)) = node("a slow trace", "") else { return };
    let wide = node.new_dir("wide");
    let page: Vec<u8> = (0..4096u32).map(|n| n as u8).collect();
    write(&wide.join("file"), page.repeat(MANY as usize));
    node.convert_dir(&wide, "base/wide:1");
    let target = mount(&node, "base/wide:1");
    let (mut slow, mut killed) = (Trace::begin(&node, &["--all"]), Trace::begin(&node, &["--all"]));
    slow.signal(Signal::STOP);
    read_pages(&target.join("file"), 100);
    killed.until(|line| line["file"] == "/file");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    read_pages(&target.join("file"), MANY);
    slow.signal(Signal::CONT);
    let told = slow.until(|line| line["event"] == "lost").pop().unwrap()["lost"].as_u64().unwrap();
    assert!((1..MANY).contains(&told), "{told}");
    let summary = slow.end().pop().unwrap();
    assert!(summary["lost"].as_u64().unwrap() >= told);
    let local = &summary["local"];
    let seen = local["memory"]["count"].as_u64().unwrap_or(0) + local["cache"]["count"].as_u64().unwrap_or(0);
    assert!(seen > 0 && seen + told <= MANY + 200, "{summary}");
    assert!(fs::read(target.join("file")).unwrap() == page.repeat(MANY as usize));
    unmount(&node, &target);
}

#[test]
fn a_trace_ends_with_a_summary_and_an_error_when_the_daemon_ends() {
    let Some((mut node, _)) = node("a trace of a daemon that ends", "") else { return };
    let mut trace = Trace::begin(&node, &[]);
    assert!(node.stop_daemon());
    assert_eq!(trace.next().unwrap()["event"], "summary");
    assert_eq!(trace.next(), None);
    assert_eq!(trace.child.wait().unwrap().code(), Some(1));
    node.fail(1, &["trace"]);
}
