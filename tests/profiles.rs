//! Starts that are recorded and replayed: through real mounts, on several nodes of one store.

use blobstore::layer::Index;
use blobstore::profile::{Profile, Run, Seen};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::image::layer_file;
use tests::node::{Node, pid};
use tests::tree::{noise, write};

/// One chunk each, and none that compresses.
const FILE: usize = 512 << 10;
const FILES: u64 = 32;
/// What the start reads.
const START: [u64; 12] = [30, 2, 17, 5, 9, 21, 11, 28, 0, 14, 6, 25];
/// Longer than a busy machine pauses between two reads.
const QUIET: &str = "quiet = \"1s\"\n";

/// A node with the layer `base/one:1` of equal files, and the layer's id.
fn node(test: &str, profile: &str) -> Option<(Node, String)> {
    if !tests::possible(test) {
        return None;
    }
    let more = format!("[fetch]\nreadahead = 0\nneighbours = false\n[profile]\nnode = \"one\"\n{profile}");
    let node = Node::new(&more);
    let source = node.new_dir("source");
    for n in 0..FILES {
        write(&source.join(format!("{n:02}")), noise(n, FILE));
    }
    let layer = node.convert_dir(&source, "base/one:1");
    Some((node, layer))
}

fn mount(node: &Node, name: &str) -> PathBuf {
    let target = node.new_dir(name);
    node.run(&["mount", "base/one:1", target.to_str().unwrap()]);
    target
}

fn unmount(node: &Node, target: &Path) {
    node.run(&["umount", target.to_str().unwrap()]);
}

fn read(target: &Path, files: &[u64]) {
    for n in files {
        assert!(fs::read(target.join(format!("{n:02}"))).unwrap() == noise(*n, FILE), "{n}");
    }
}

fn index(node: &Node, layer: &str) -> Index {
    Index::of_file(&File::open(layer_file(&node.path("store"), layer)).unwrap()).unwrap()
}

fn profile_of(node: &Node, layer: &str, name: &str) -> Option<Profile> {
    let path = node.path("store/node/profiles").join(layer).join(name);
    Some(Profile::decode(&fs::read(path).ok()?, &index(node, layer)).unwrap())
}

/// Records a start on the node `one`, and makes it the node `two`, with nothing in its cache.
fn record(node: &mut Node, layer: &str) {
    node.start_daemon();
    let target = mount(node, "mnt");
    read(&target, &START);
    node.wait("a profile", |node| profile_of(node, layer, "one").is_some());
    unmount(node, &target);
    become_another(node);
}

fn become_another(node: &mut Node) {
    assert!(node.stop_daemon());
    fs::remove_dir_all(node.path("cache")).unwrap();
    node.reconfigure("node = \"one\"", "node = \"two\"");
}

fn fetched(node: &Node) -> u64 {
    node.status().unwrap()["fetched_bytes"].as_u64().unwrap()
}

#[test]
fn what_a_start_reads_on_one_node_is_there_before_it_is_asked_for_on_another() {
    let Some((mut node, layer)) = node("a profile of another node", QUIET) else { return };
    record(&mut node, &layer);
    assert!(profile_of(&node, &layer, "one").unwrap().chunks.len() >= START.len());
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"50ms\"");
    node.start_daemon();
    let target = mount(&node, "mnt");
    node.wait("what the profile says", |node| fetched(node) >= (START.len() * FILE) as u64);
    // It may be on its way from the store to the memory.
    std::thread::sleep(Duration::from_millis(200));
    let before = fetched(&node);
    read(&target, &START);
    // A status asks the store for some bytes itself.
    let whole = FILE as u64;
    assert!(fetched(&node) - before < whole / 2, "all of it was here");
    read(&target, &[3]);
    assert!(fetched(&node) - before > whole / 2);
    // This start is recorded as well, in a profile of its own.
    node.wait("another profile", |node| profile_of(node, &layer, "two").is_some());
    unmount(&node, &target);
    assert!(node.stop_daemon());
}

#[test]
fn a_wrong_profile_costs_so_many_bytes_and_no_wrong_one() {
    let Some((mut node, layer)) = node("a wrong profile", "record = \"off\"\nreplay = \"4MiB\"\n") else { return };
    let (dir, index) = (node.path("store/node/profiles").join(&layer), index(&node, &layer));
    // Everything, at once, with the voice of many; and what is no profile at all.
    let seen = Seen { runs: 9, after: 0, parts: u128::MAX };
    let chunks = (0..index.chunk_count()).map(|chunk| (chunk, seen)).collect();
    let all = Profile { runs: 9, chunks, ..Profile::new(index.id(), Run::default()) };
    write(&dir.join("liar"), all.encode());
    write(&dir.join("noise"), noise(1, 5000));
    write(&dir.join("empty"), "");
    node.start_daemon();
    let target = mount(&node, "mnt");
    node.wait("what there is room for", |node| fetched(node) > 3 << 20);
    std::thread::sleep(Duration::from_millis(500));
    assert!(fetched(&node) < 5 << 20, "{}", fetched(&node));
    read(&target, &[31, 30]);
    unmount(&node, &target);
    assert!(node.stop_daemon());
    assert!(node.log("laminad").contains("a profile is not used"));
}

#[test]
fn a_worker_that_dies_loses_the_recording_it_was_at_and_nothing_else() {
    if !tests::linux("a worker killed while it records", (6, 9)) {
        return;
    }
    let Some((mut node, layer)) = node("a worker killed while it records", "quiet = \"1h\"\nlimit = \"1h\"\n") else {
        return;
    };
    node.start_daemon();
    let target = mount(&node, "mnt");
    read(&target, &START[..4]);
    let worker = pid(&node.status().unwrap());
    node.reconfigure("quiet = \"1h\"", "quiet = \"1s\"");
    kill_process(worker, Signal::KILL).unwrap();
    node.wait("a successor", |n| n.status().is_some_and(|s| pid(&s) != worker));
    read(&target, &START);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(profile_of(&node, &layer, "one"), None);
    unmount(&node, &target);
    let target = mount(&node, "mnt");
    read(&target, &START[6..]);
    node.wait("a profile", |node| profile_of(node, &layer, "one").is_some());
    let profile = profile_of(&node, &layer, "one").unwrap();
    assert_eq!((profile.runs, profile.chunks.len()), (1, START[6..].len()));
    unmount(&node, &target);
    assert!(node.stop_daemon());
}

#[test]
fn a_mount_of_what_is_in_the_page_cache_leaves_the_profile_as_it_was() {
    let Some((mut node, layer)) = node("a warm mount", QUIET) else { return };
    node.start_daemon();
    let first = mount(&node, "first");
    read(&first, &START);
    node.wait("a profile", |node| profile_of(node, &layer, "one").is_some());
    let profile = profile_of(&node, &layer, "one");
    let second = mount(&node, "second");
    read(&second, &START);
    read(&second, &[1]);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(profile_of(&node, &layer, "one"), profile);
    unmount(&node, &second);
    unmount(&node, &first);
    // Mounted and not read: nothing is known of this start.
    let third = mount(&node, "third");
    std::thread::sleep(Duration::from_secs(2));
    unmount(&node, &third);
    assert_eq!(profile_of(&node, &layer, "one"), profile);
    assert!(node.stop_daemon());
}

#[test]
fn a_node_that_keeps_its_profiles_to_itself_writes_nothing_and_uses_them() {
    let Some((mut node, layer)) = node("profiles of the node alone", &format!("{QUIET}record = \"node\"\n")) else {
        return;
    };
    node.start_daemon();
    let target = mount(&node, "mnt");
    read(&target, &START);
    let local = node.path("cache/profiles").join(&layer).join("one");
    node.wait("a profile", |_| local.exists());
    unmount(&node, &target);
    assert!(node.stop_daemon());
    assert!(!node.path("store/node/profiles").exists());
    fs::remove_dir_all(node.path("cache/chunks")).unwrap();
    node.start_daemon();
    let target = mount(&node, "mnt");
    node.wait("what the profile says", |node| fetched(node) >= (START.len() * FILE) as u64);
    unmount(&node, &target);
    assert!(node.stop_daemon());
}

#[test]
fn a_layer_can_be_laid_out_by_what_its_starts_read() {
    let Some((mut node, layer)) = node("a layer for its starts", QUIET) else { return };
    record(&mut node, &layer);
    let listed = node.run(&["inspect", "base/one:1", "--profile"]);
    let read_first: Vec<String> = START.iter().map(|n| format!("{n:02}")).collect();
    let files: Vec<&str> = listed.lines().collect();
    assert!(read_first.iter().all(|file| files.contains(&file.as_str())), "{listed}");
    assert_eq!(files.len(), START.len(), "{listed}");
    let list = node.path("list");
    // In an order of its own, with a comment and a file that is not there.
    write(&list, "# for us\n/17\nnot/there\n02\n");
    let source = format!("dir:{}", node.path("source").display());
    let arguments = ["--tag", "base/first:1", "--profile", list.to_str().unwrap()];
    let convert = || {
        let report = node.json(&[&["convert", &source][..], &arguments].concat());
        report["images"][0]["layers"][0]["layer"].as_str().unwrap().to_owned()
    };
    let first = convert();
    assert_eq!(convert(), first, "the same list, the same layer");
    assert_ne!(first, layer);
    node.run(&["verify", &source, "--tag", "base/first:1"]);
    let image = node.path("image");
    let file = layer_file(&node.path("store"), &first);
    assert!(std::process::Command::new("zstd").args(["-qdf", "-o"]).args([&image, &file]).status().unwrap().success());
    let index = Index::of_file(&File::open(&file).unwrap()).unwrap();
    let bytes = fs::read(image).unwrap();
    let at = index.metadata_len() as usize;
    assert!(bytes[at..at + FILE] == noise(17, FILE) && bytes[at + FILE..at + 2 * FILE] == noise(2, FILE));
    let error = node.fail(2, &["convert", &source, "--tag", "base/first:1", "--profile", "/not/there"]);
    assert!(error.contains("--profile /not/there"), "{error}");
}

/// The chunks of a layer that the cache has, by the files that they hold.
fn cached_files(node: &Node) -> u64 {
    node.json(&["cache", "ls"])["layers"][0]["cached_chunks"].as_u64().unwrap()
}

#[test]
fn warming_by_profile_fetches_what_starts_on_other_nodes_read_and_nothing_else() {
    let Some((mut node, layer)) = node("warming by profile", QUIET) else { return };
    record(&mut node, &layer);
    node.start_daemon();
    // A profile that came after this node had asked for them the last time.
    let target = mount(&node, "early");
    unmount(&node, &target);
    let (dir, index) = (node.path("store/node/profiles").join(&layer), index(&node, &layer));
    let seen = Seen { runs: 1, after: 10, parts: 1 };
    let later = Profile { chunks: [(13, seen)].into(), ..Profile::new(index.id(), Run::default()) };
    write(&dir.join("three"), later.encode());
    let wanted: Vec<u64> = START.iter().copied().chain([13]).collect();
    let warmed = node.json(&["cache", "warm", "--profile", "base/one:1"]);
    assert_eq!((&warmed["layers"], &warmed["profiled_layers"]), (&1.into(), &1.into()), "{warmed}");
    assert_eq!(warmed["chunks"].as_u64(), Some(wanted.len() as u64), "{warmed}");
    assert_eq!(cached_files(&node), wanted.len() as u64);
    let again = node.json(&["cache", "warm", "--profile", "base/one:1"]);
    assert_eq!((&again["fetched_chunks"], &again["chunks"]), (&0.into(), &warmed["chunks"]));
    let line = node.run(&["cache", "warm", "--profile", "base/one:1"]);
    assert!(line.contains("1 layer, 1 of them with a profile, 13 chunks"), "{line}");
    let target = mount(&node, "mnt");
    // What it names is there without the store; what it does not is not.
    let file = layer_file(&node.path("store"), &layer);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, "").unwrap();
    read(&target, &wanted);
    assert!(fs::read(target.join("03")).is_err());
    fs::write(&file, whole).unwrap();
    read(&target, &[3]);
    unmount(&node, &target);
    // Where this node knows nothing, a store without profiles is told from one whose profiles cannot be read.
    assert!(node.stop_daemon());
    fs::remove_dir_all(node.path("cache/profiles")).unwrap();
    node.start_daemon();
    fs::rename(node.path("store/node"), node.path("gone")).unwrap();
    let error = node.fail(1, &["cache", "warm", "--profile", "base/one:1"]);
    assert!(error.contains("no layer of tag:base/one:1 has a profile") && error.contains("Start it once"), "{error}");
    fs::remove_dir_all(node.path("cache/profiles")).unwrap();
    let _ = fs::remove_dir_all(node.path("store/node"));
    std::os::unix::fs::symlink("node", node.path("store/node")).unwrap();
    let error = node.fail(1, &["cache", "warm", "--profile", "base/one:1"]);
    assert!(error.contains(&format!("cannot read the profiles of layer {layer}")), "{error}");
    assert!(node.stop_daemon());
}

#[test]
fn more_sandboxes_over_a_base_that_is_replayed_fetch_nothing_twice() {
    let Some((mut node, layer)) = node("sandboxes over a replayed base", QUIET) else { return };
    let tools = node.new_dir("tools");
    write(&tools.join("tool"), "a tool");
    node.convert_dir(&tools, "toolkit/t:1");
    record(&mut node, &layer);
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"50ms\"");
    node.start_daemon();
    let sandbox = |name: &str| {
        let target = node.new_dir(name);
        node.run(&["mount", "base/one:1", "toolkit/t:1", target.to_str().unwrap()]);
        target
    };
    // The second while the first one's start is being fetched, the third when it has been.
    let (first, second) = (sandbox("first"), sandbox("second"));
    let start = (START.len() * FILE) as u64;
    node.wait("what the profile says", |node| fetched(node) >= start);
    let third = sandbox("third");
    for target in [&first, &second, &third] {
        read(target, &START);
        assert_eq!(fs::read_to_string(target.join("tool")).unwrap(), "a tool");
    }
    // Heads, references and statuses are some KB.
    let some = FILE as u64 / 2;
    assert!(fetched(&node) < start + some, "{} of {start}", fetched(&node));
    [&first, &second, &third].into_iter().for_each(|target| unmount(&node, target));
    node.wait("the base to be out of use", |node| {
        let list = node.json(&["cache", "ls"]);
        list["layers"].as_array().unwrap().iter().all(|layer| layer["in_use"] == false)
    });
    // Mounted anew, its page cache is empty, and so all of it is asked of laminad again: that has it.
    let again = sandbox("again");
    read(&again, &START);
    std::thread::sleep(Duration::from_millis(500));
    assert!(fetched(&node) < start + 2 * some, "{} of {start}", fetched(&node));
    unmount(&node, &again);
    assert!(node.stop_daemon());
}
