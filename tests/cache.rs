//! `lamina cache`, on a node with laminad and a store that can be made slow or taken away.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tests::node::Node;
use tests::tree::{noise, write};

const FILES: usize = 8;
/// More than a chunk.
const FILE: usize = 1 << 20;

/// A node with a layer of noise tagged `base/NAME:1` for each name; laminad runs.
fn node(test: &str, names: &[&str], more: &str) -> Option<Node> {
    if !tests::possible(test) {
        return None;
    }
    let mut node = Node::with_daemon("", more);
    for (n, name) in names.iter().enumerate() {
        let source = node.new_dir(&format!("source-{name}"));
        for file in 0..FILES {
            write(&source.join(format!("f{file}")), content(n, file));
        }
        node.convert_dir(&source, &format!("base/{name}:1"));
    }
    node.start_daemon();
    Some(node)
}

fn content(layer: usize, file: usize) -> Vec<u8> {
    noise((layer * FILES + file) as u64, FILE)
}

fn mount(node: &Node, name: &str) -> PathBuf {
    let target = node.new_dir(&format!("mnt-{name}"));
    node.run(&["mount", &format!("base/{name}:1"), target.to_str().unwrap()]);
    target
}

fn unmount(node: &Node, target: &Path) {
    node.run(&["umount", target.to_str().unwrap()]);
}

fn read_all(target: &Path, layer: usize) {
    for file in 0..FILES {
        assert!(fs::read(target.join(format!("f{file}"))).unwrap() == content(layer, file), "file {file}");
    }
}

/// What `lamina cache ls` says of the only layer.
fn only(node: &Node) -> Value {
    let list = node.json(&["cache", "ls"]);
    let layers = list["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1, "{list}");
    layers[0].clone()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn stat_and_ls_tell_what_is_cached_of_each_layer_and_where_reads_came_from() {
    let Some(node) = node("cache stat", &["a"], "") else { return };
    let empty = node.json(&["cache", "stat"]);
    assert_eq!(
        (number(&empty, "chunks"), &empty["hit_ratio"], &empty["layers"]),
        (0, &Value::Null, &Value::Array(vec![]))
    );
    assert_eq!(node.run(&["cache", "ls"]), "");
    let target = mount(&node, "a");
    assert_eq!((number(&only(&node), "cached_chunks"), only(&node)["in_use"] == true), (0, true));
    read_all(&target, 0);
    node.wait("chunks to be written", |node| number(&only(node), "cached_chunks") == number(&only(node), "chunks"));
    let layer = only(&node);
    assert_eq!((number(&layer, "cached_bytes"), &layer["pinned"]), (number(&layer, "bytes"), &Value::Bool(false)));
    assert!(number(&layer, "bytes") > (FILES * FILE) as u64 && number(&layer, "head_bytes") > 4096, "{layer}");
    let stat = node.json(&["cache", "stat"]);
    // What readers asked for, each byte once; and what came for it, which is as long, for noise does not compress.
    let read: u64 = ["memory", "cache", "store"].iter().map(|source| number(&stat["read_bytes"], source)).sum();
    let status = node.status().unwrap();
    assert!(read >= (FILES * FILE) as u64 && read == number(&status, "device_read_bytes"), "{stat}");
    assert!(number(&stat["read_bytes"], "store") > 0 && number(&stat, "fetched_bytes") >= number(&layer, "bytes"));
    // Asked for one after the other: each asks the store once more whether it is there.
    assert!(number(&status, "fetched_bytes").abs_diff(number(&stat, "fetched_bytes")) < FILE as u64 / 8, "{status}");
    assert_eq!((number(&stat, "failed_chunks"), stat["trouble"].as_str()), (0, Some("")));
    assert!(
        number(&stat, "bytes") > number(&layer, "bytes") && number(&stat, "bytes") < number(&stat, "limit"),
        "{stat}"
    );
    let text = node.run(&["cache", "stat"]);
    assert!(text.contains("layers    1, heads ") && text.contains(", in use"), "{text}");
    unmount(&node, &target);
    let line = node.run(&["cache", "ls"]);
    assert!(line.starts_with(layer["layer"].as_str().unwrap()) && !line.contains("in use"), "{line}");
}

#[test]
fn without_a_daemon_the_error_says_how_to_start_one() {
    let node = Node::default();
    let error = node.fail(1, &["cache", "stat"]);
    assert!(error.contains("no daemon answers at") && error.contains("start laminad"), "{error}");
    assert_eq!(error, node.fail(1, &["status"]));
}

/// The file of a layer in the store.
fn stored(node: &Node, name: &str) -> PathBuf {
    let report = node.json(&["inspect", &format!("base/{name}:1")]);
    tests::image::layer_file(&node.path("store"), report["layers"][0]["layer"].as_str().unwrap())
}

/// Takes the store away, and empties the file of a layer, which laminad may have open.
fn lose_store(node: &Node, name: &str) {
    fs::write(stored(node, name), "").unwrap();
    fs::rename(node.path("store"), node.path("lost")).unwrap();
}

#[test]
fn what_was_warmed_can_be_read_without_the_store_and_is_not_fetched_twice() {
    let Some(mut node) = node("cache warm", &["a"], "") else { return };
    let warmed = node.json(&["cache", "warm", "base/a:1"]);
    assert_eq!((warmed["reference"].as_str(), number(&warmed, "layers")), (Some("tag:base/a:1"), 1));
    assert_eq!(number(&warmed, "fetched_bytes"), number(&warmed, "bytes"), "{warmed}");
    let layer = only(&node);
    assert_eq!(
        [number(&layer, "cached_bytes"), number(&layer, "cached_chunks")],
        [number(&warmed, "bytes"), number(&warmed, "chunks")]
    );
    assert_eq!(number(&node.json(&["cache", "warm", "base/a:1"]), "fetched_chunks"), 0);
    assert!(node.stop_daemon());
    node.start_daemon();
    assert_eq!(number(&node.json(&["cache", "warm", "base/a:1"]), "fetched_chunks"), 0);
    let target = mount(&node, "a");
    lose_store(&node, "a");
    read_all(&target, 0);
    unmount(&node, &target);
    assert!(node.fail(1, &["cache", "warm", "base/a:1"]).contains("no such tag"));
}

#[test]
fn references_and_flags_that_cannot_be_used_are_named() {
    let Some(node) = node("cache references", &["a"], "") else { return };
    for command in ["warm", "pin", "unpin", "evict"] {
        assert!(node.fail(1, &["cache", command, "base/none:1"]).contains("base/none:1"), "{command}");
        node.fail(2, &["cache", command, "file:/x"]);
        node.fail(2, &["cache", command]);
    }
    assert!(node.fail(1, &["cache", "unpin", "base/a:1"]).contains("is not pinned"));
    let error = node.fail(1, &["cache", "warm", "--profile", "base/a:1"]);
    assert!(error.contains("no layer of tag:base/a:1 has a profile") && error.contains("without --profile"), "{error}");
    assert_eq!(number(&only(&node), "cached_chunks"), 0, "and nothing was fetched");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_fetched() {
    let Some(mut node) = node("a small cache", &["a"], "") else { return };
    assert!(node.stop_daemon());
    node.reconfigure("reserve", "size = \"16MiB\"\nreserve");
    node.start_daemon();
    let error = node.fail(1, &["cache", "pin", "base/a:1"]);
    assert!(error.contains("at most 6710886, 2/5 of its size, may be pinned"), "{error}");
    node.json(&["cache", "warm", "base/a:1"]);
    assert!(node.stop_daemon());
    node.reconfigure("16MiB", "8MiB");
    node.start_daemon();
    let error = node.fail(1, &["cache", "warm", "base/a:1"]);
    assert!(error.contains("[cache] size"), "{error}");
    assert!(!node.json(&["cache", "ls"])["layers"][0]["pinned"].as_bool().unwrap());
}

#[test]
fn a_pin_outlives_restarts_and_pressure_until_it_is_taken_away() {
    let names = ["a", "b", "c", "d"];
    let Some(mut node) = node("cache pin", &names, "") else { return };
    assert!(node.stop_daemon());
    // Room for three of the layers; one may be pinned.
    node.reconfigure("reserve", "size = \"28MiB\"\nreserve");
    node.start_daemon();
    let pinned = node.json(&["cache", "pin", "base/a:1"]);
    assert_eq!(number(&pinned, "fetched_chunks"), number(&pinned, "chunks"));
    assert!(node.fail(1, &["cache", "pin", "base/b:1"]).contains("may be pinned"));
    assert!(node.stop_daemon());
    node.start_daemon();
    for (n, name) in names.iter().enumerate().skip(1) {
        let target = mount(&node, name);
        (0..2).for_each(|_| read_all(&target, n));
        unmount(&node, &target);
    }
    assert!(number(&node.json(&["cache", "stat"]), "evicted_bytes") > 0, "there was pressure");
    let evicted = node.json(&["cache", "evict", "base/a:1"]);
    assert_eq!([number(&evicted, "chunks"), number(&evicted, "pinned_chunks")], [0, number(&pinned, "chunks")]);
    let line = node.run(&["cache", "ls"]);
    assert!(line.contains(", pinned as tag:base/a:1"), "{line}");
    let target = mount(&node, "a");
    lose_store(&node, "a");
    read_all(&target, 0);
    unmount(&node, &target);
    // The name is enough, without the store.
    assert_eq!(node.json(&["cache", "unpin", "base/a:1"])["layers"], 1);
    assert!(!node.run(&["cache", "ls"]).contains("pinned"));
    assert_eq!(number(&node.json(&["cache", "stat"]), "pinned_bytes"), 0);
}

#[test]
fn where_a_pins_name_cannot_be_kept_nothing_is_fetched_for_it() {
    let Some(node) = node("cache pin without names", &["a"], "") else { return };
    fs::write(node.path("cache/pins.json"), "{{").unwrap();
    assert!(node.fail(1, &["cache", "pin", "base/a:1"]).contains("pins.json"));
    assert_eq!(number(&node.json(&["cache", "stat"]), "chunks"), 0);
    fs::remove_file(node.path("cache/pins.json")).unwrap();
    node.run(&["cache", "pin", "base/a:1"]);
}

#[test]
fn a_layer_that_two_references_pinned_stays_until_both_are_unpinned() {
    let Some(node) = node("two pins", &["a"], "") else { return };
    let id = node.json(&["inspect", "base/a:1"])["layers"][0]["layer"].as_str().unwrap().to_owned();
    node.run(&["cache", "pin", "base/a:1"]);
    let short = node.json(&["cache", "pin", &id[..16]]);
    assert_eq!(short["reference"], format!("layer:{id}"));
    let reply = node.json(&["cache", "unpin", "base/a:1"]);
    assert_eq!([number(&reply, "layers"), number(&reply, "kept")], [0, 1]);
    assert_eq!((only(&node)["pinned"] == true, only(&node)["pinned_as"][0] == format!("layer:{id}")), (true, true));
    assert_eq!(node.json(&["cache", "unpin", &id[..16]])["layers"], 1);
    assert_eq!(only(&node)["pinned"], false);
}

#[test]
fn what_was_evicted_is_fetched_again() {
    let Some(node) = node("cache evict", &["a"], "") else { return };
    node.run(&["cache", "warm", "base/a:1"]);
    let target = mount(&node, "a");
    let bytes = number(&only(&node), "bytes");
    let evicted = node.json(&["cache", "evict", "base/a:1"]);
    assert_eq!([number(&evicted, "bytes"), number(&evicted, "heads")], [bytes, 0], "its head is in use");
    let stat = node.json(&["cache", "stat"]);
    assert!(number(&stat, "let_go_bytes") >= bytes && number(&stat, "evicted_bytes") == 0, "{stat}");
    assert_eq!(number(&only(&node), "cached_chunks"), 0);
    read_all(&target, 0);
    unmount(&node, &target);
    node.wait("the layer to be out of use", |node| only(node)["in_use"] == false);
    node.run(&["cache", "evict", "base/a:1"]);
    assert_eq!(node.json(&["cache", "ls"])["layers"], serde_json::json!([]));
    let warmed = node.json(&["cache", "warm", "base/a:1"]);
    assert_eq!(number(&warmed, "fetched_bytes"), bytes);
    // Where the store does not have it, what is read is not dropped.
    let target = mount(&node, "a");
    let id = only(&node)["layer"].as_str().unwrap().to_owned();
    fs::remove_file(tests::image::layer_file(&node.path("store"), &id)).unwrap();
    assert!(node.fail(1, &["cache", "evict", "base/a:1"]).contains("is in use, and the store does not give it"));
    assert_eq!(number(&only(&node), "cached_bytes"), bytes);
    read_all(&target, 0);
    unmount(&node, &target);
}

/// Has the kernel drop what it has of a file's pages.
fn drop_pages(path: &Path) {
    let file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn what_was_evicted_is_in_no_memory_either() {
    // All of it fits into memory, and it is pinned: that keeps it on the disk, and nowhere else.
    for pin in [false, true] {
        let Some(node) = node("evicting from memory", &["a"], "[fetch]\nreadahead = 0\n") else { return };
        if pin {
            node.run(&["cache", "pin", "base/a:1"]);
        }
        let target = mount(&node, "a");
        let stat = || node.json(&["cache", "stat"]);
        let from = |source: &str| number(&stat()["read_bytes"], source);
        let again = || {
            (0..FILES).for_each(|file| drop_pages(&target.join(format!("f{file}"))));
            read_all(&target, 0);
        };
        let all = (FILES * FILE) as u64;
        read_all(&target, 0);
        let memory = from("memory");
        again();
        assert!(from("memory") - memory >= all, "memory has all of it: {}", stat());
        let (cache, fetched) = (from("cache"), number(&stat(), "fetched_bytes"));
        node.run(&["cache", "evict", "base/a:1"]);
        again();
        match pin {
            // The first piece of each chunk; the others come from memory again.
            true => assert!(from("cache") - cache >= all / 8, "{}", stat()),
            false => assert!(number(&stat(), "fetched_bytes") - fetched >= all, "{}", stat()),
        }
        unmount(&node, &target);
    }
}

/// Flips a bit in every so many bytes of what is cached of chunks.
fn damage_chunks(node: &Node) {
    for entry in fs::read_dir(node.path("cache/chunks")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "seg" || e == "keep") {
            let mut bytes = fs::read(&path).unwrap();
            bytes.iter_mut().skip(1000).step_by(1 << 20).for_each(|byte| *byte ^= 4);
            // In place: laminad has it open.
            use std::os::unix::fs::FileExt;
            fs::File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
        }
    }
}

#[test]
fn verify_drops_what_was_damaged_and_mends_what_is_pinned() {
    let Some(node) = node("cache verify", &["a", "b"], "") else { return };
    node.run(&["cache", "warm", "base/a:1"]);
    let right = node.json(&["cache", "verify"]);
    assert_eq!((number(&right, "wrong_chunks"), number(&right, "heads")), (0, 1), "{right}");
    damage_chunks(&node);
    let found = node.json(&["cache", "verify"]);
    assert!(number(&found, "wrong_chunks") > 0 && number(&found, "mended_chunks") == 0, "{found}");
    assert_eq!(number(&only(&node), "cached_chunks"), number(&found, "chunks"), "they are dropped");
    node.run(&["cache", "pin", "base/b:1"]);
    let all = number(&node.json(&["cache", "stat"]), "chunks");
    damage_chunks(&node);
    let found = node.json(&["cache", "verify"]);
    assert!(
        number(&found, "mended_chunks") > 0 && number(&found, "wrong_chunks") >= number(&found, "mended_chunks"),
        "{found}"
    );
    let right = node.json(&["cache", "verify"]);
    assert_eq!([number(&right, "wrong_chunks"), number(&right, "mended_chunks")], [0, 0], "{right}");
    assert!(number(&right, "chunks") <= all);
    damage_chunks(&node);
    let file = stored(&node, "b");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, "").unwrap();
    let error = node.fail(1, &["cache", "verify"]);
    assert!(error.contains("not mended: layer") && error.contains("which is pinned"), "{error}");
    fs::write(&file, whole).unwrap();
    assert!(number(&node.json(&["cache", "verify"]), "mended_chunks") > 0, "begun again, it mends");
}

/// Makes a file as old as can be.
fn age(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
}

#[test]
fn gc_drops_old_heads_that_nobody_needs_and_what_a_crash_left() {
    let names = ["cached", "pinned", "mounted", "unused"];
    let Some(node) = node("cache gc", &names, "") else { return };
    node.run(&["cache", "warm", "base/cached:1"]);
    node.run(&["cache", "pin", "base/pinned:1"]);
    let target = mount(&node, "mounted");
    let other = mount(&node, "unused");
    unmount(&node, &other);
    let freed = |node: &Node| {
        let reply = node.json(&["cache", "gc"]);
        ["chunk_bytes", "heads", "files"].map(|name| number(&reply, name))
    };
    assert_eq!(freed(&node), [0, 0, 0], "it has been used today");
    for entry in fs::read_dir(node.path("cache/heads")).unwrap() {
        age(&entry.unwrap().path());
    }
    let stray = node.path("cache/heads/.new-x");
    fs::write(&stray, "left by a crash").unwrap();
    age(&stray);
    let in_use = |layer: &&Value| layer["in_use"] == true;
    node.wait("a layer to be out of use", |node| {
        node.json(&["cache", "ls"])["layers"].as_array().unwrap().iter().filter(in_use).count() == 1
    });
    assert_eq!(freed(&node), [0, 1, 1]);
    assert_eq!(node.json(&["cache", "ls"])["layers"].as_array().unwrap().len(), 3);
    assert!(!stray.exists());
    read_all(&target, 2);
    unmount(&node, &target);
}

#[test]
fn a_warm_that_is_interrupted_goes_on_where_it_was() {
    let Some(mut node) = node("an interrupted warm", &["a"], "[fetch]\nconcurrency = 2\n") else { return };
    assert!(node.stop_daemon());
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"300ms\"");
    node.start_daemon();
    for command in ["warm", "pin"] {
        let mut warm = node.command(&["cache", command, "base/a:1"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let pid = rustix::process::Pid::from_child(&warm);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(!warm.wait().unwrap().success());
    }
    node.wait("the pin to be given up", |node| number(&node.json(&["cache", "stat"]), "pinned_bytes") == 0);
    assert_eq!(only(&node)["pinned"], false);
    let cached = number(&only(&node), "cached_chunks");
    let warmed = node.json(&["cache", "warm", "base/a:1"]);
    assert!(number(&warmed, "fetched_chunks") <= number(&warmed, "chunks") - cached, "{cached} before: {warmed}");
    assert_eq!(number(&only(&node), "cached_chunks"), number(&warmed, "chunks"));
}

/// Bytes that the files of chunks take.
fn on_disk(node: &Node) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(node.path("cache/chunks")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn gc_gives_back_the_space_of_a_quota_that_was_made_smaller_and_keeps_pins() {
    let names = ["pinned", "a", "b", "c"];
    let Some(mut node) = node("a smaller quota", &names, "") else { return };
    node.run(&["cache", "pin", "base/pinned:1"]);
    names[1..].iter().for_each(|name| drop(node.run(&["cache", "warm", &format!("base/{name}:1")])));
    let (before, mut size) = (on_disk(&node), "reserve".to_owned());
    assert!(before > 32 << 20, "{before}");
    // The second holds less than what is pinned may take of it.
    for smaller in [22u64, 12] {
        assert!(node.stop_daemon());
        let to = format!("size = \"{smaller}MiB\"\nreserve");
        node.reconfigure(&size, &to);
        size = to;
        node.start_daemon();
        let reply = node.json(&["cache", "gc"]);
        let (bytes, limit) = (number(&reply, "bytes"), number(&reply, "limit"));
        assert!(bytes <= limit && limit == smaller << 20, "{reply}");
        assert_eq!(reply["trouble"], "", "{reply}");
        let now = on_disk(&node);
        assert!(now <= limit + (1 << 20), "{before} -> {now} of {limit}: {reply}");
        let list = node.json(&["cache", "ls"]);
        let is_pinned = |layer: &&Value| layer["pinned"] == true;
        let pinned = list["layers"].as_array().unwrap().iter().find(is_pinned).expect("the pin");
        assert_eq!(number(pinned, "cached_chunks"), number(pinned, "chunks"), "{list}");
        let again = node.json(&["cache", "gc"]);
        assert_eq!(number(&again, "chunk_bytes"), 0, "{again}");
    }
    let target = mount(&node, "pinned");
    lose_store(&node, "pinned");
    read_all(&target, 0);
    unmount(&node, &target);
}
