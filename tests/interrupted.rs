//! Conversions that are killed: the same command again takes over what they finished, and ends as if nothing had happened.

use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};
use tests::front::{Answer, Front};
use tests::image::{Image, digest, tar};
use tests::node::Node;
use tests::registry::{Options, Registry, layout};
use tests::tree::{files, noise};

/// One value of each layer of an image of a report.
fn each<'a>(image: &'a Value, name: &str) -> Vec<&'a Value> {
    image["layers"].as_array().unwrap().iter().map(|layer| &layer[name]).collect()
}

/// Bytes that are slow to compress well, four bits each: at level 15 a second of work for some 10 MiB, also on fast machines.
fn slow(seed: u64, length: usize) -> Vec<u8> {
    noise(seed, length).iter().map(|byte| b'a' + byte % 16).collect()
}

/// Records of the layers that are kept.
fn kept(node: &Node) -> usize {
    files(&node.path("work")).keys().filter(|name| name.extension().is_some_and(|e| e == "json")).count()
}

/// Runs a conversion and kills it once it has kept so many layers; how many it had then.
fn kill_after(node: &Node, arguments: &[&str], layers: usize) -> usize {
    let mut killed = node.command(arguments).stdout(Stdio::null()).spawn().unwrap();
    node.wait("layers", |node| kept(node) >= layers);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!node.path("store/layers").exists(), "it was not killed in time");
    kept(node)
}

/// What the same conversion gives that nobody kills, in a store of its own: its report, and the layer files.
fn undisturbed(node: &Node, arguments: &[&str]) -> (Value, BTreeMap<PathBuf, Vec<u8>>) {
    let store = format!("file://{}", node.path("undisturbed").display());
    let mut command = node.command(&[&["--store", &store], arguments].concat());
    let output = command.env("TMPDIR", node.new_dir("other-work")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), files(&node.path("undisturbed/layers")))
}

fn report(node: &Node, arguments: &[&str]) -> Value {
    serde_json::from_str(&node.run(arguments)).unwrap()
}

/// A layout of an index for two platforms, whose images share their lowest layer.
fn platforms(at: &Path, name: &str, layers: [Vec<Vec<u8>>; 2]) -> String {
    let mut entries = Vec::new();
    for (architecture, layers) in ["amd64", "arm64"].into_iter().zip(layers) {
        Image { architecture, ..Image::new(layers) }.write(at, "x");
        let mut entry: Value = serde_json::from_slice(&fs::read(at.join("index.json")).unwrap()).unwrap();
        let mut entry = entry["manifests"][0].take();
        entry.as_object_mut().unwrap().remove("annotations");
        entry["platform"] = json!({"architecture": architecture, "os": "linux"});
        entries.push(entry);
    }
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": entries}).to_string();
    let hash = digest(index.as_bytes());
    fs::write(at.join("blobs").join(hash.replace(':', "/")), &index).unwrap();
    let annotations = json!({"org.opencontainers.image.ref.name": name});
    let root = json!({"mediaType": media_type, "digest": hash, "size": index.len(), "annotations": annotations});
    fs::write(at.join("index.json"), json!({"schemaVersion": 2, "manifests": [root]}).to_string()).unwrap();
    format!("oci:{}", at.display())
}

#[test]
fn a_killed_conversion_goes_on_where_it_was() {
    let node = Node::default();
    let large = slow(3, 16 << 20);
    let contents: [&[u8]; 5] = [b"1", b"2", &large, b"4", b"5"];
    let image =
        Image::new(contents.into_iter().enumerate().map(|(n, data)| tar(&[(&format!("d/{n}"), data)])).collect());
    let source = image.write(&node.path("image"), "killed.local/image:1");
    let convert = ["convert", "--json", "--jobs", "1", "--level", "15", &source];
    // The third layer takes its time.
    let done = kill_after(&node, &convert, 2);
    assert!((2..5).contains(&done), "{done} layers were done");

    let report = report(&node, &convert);
    let expected: Vec<bool> = (0..5).map(|number| number < done).collect();
    for name in ["resumed", "reused"] {
        assert_eq!(each(&report["images"][0], name), expected, "{name}");
    }
    node.run(&["verify", &source]);
    assert_eq!(kept(&node), 0, "what the store has is not kept");
}

#[test]
fn a_killed_conversion_of_all_platforms_goes_on_at_the_platform_and_the_layer_where_it_was() {
    let node = Node::default();
    let (shared, large) = (tar(&[("shared", b"shared")]), tar(&[("large", &slow(3, 16 << 20))]));
    let one = vec![shared.clone(), tar(&[("a", b"amd64")])];
    let two = vec![shared, tar(&[("a", b"arm64")]), large, tar(&[("last", b"last")])];
    let source = platforms(&node.path("image"), "killed.local/image:1", [one, two]);
    let convert = ["convert", "--json", "--jobs", "1", "--level", "15", "--platform", "all", &source];
    // One platform is done, and of the other the layer before the large one.
    let done = kill_after(&node, &convert, 3);
    assert_eq!(done, 3, "the large layer takes its time");

    let report = report(&node, &convert);
    let images = report["images"].as_array().unwrap();
    assert_eq!(each(&images[0], "resumed"), [true, true]);
    // The lowest is the first platform's too: it was there before anybody looked what was kept.
    assert_eq!(each(&images[1], "shared"), [true, false, false, false]);
    assert_eq!(each(&images[1], "resumed"), [false, true, false, false]);
    node.run(&["verify", &source, "--platform", "all"]);
    let (expected, layers) = undisturbed(&node, &convert);
    for number in 0..2 {
        assert_eq!(each(&images[number], "layer"), each(&expected["images"][number], "layer"));
    }
    assert!(files(&node.path("store/layers")) == layers);
    assert_eq!(kept(&node), 0, "what the store has is not kept");
}

#[test]
fn a_conversion_that_is_killed_while_it_collapses_makes_no_layer_again() {
    let node = Node::default();
    let layers = (0..4u8).map(|n| tar(&[(&format!("d/{n}"), &slow(n.into(), 4 << 20)), ("top", &[n])])).collect();
    let source = Image::new(layers).write(&node.path("image"), "killed.local/image:1");
    let convert = ["convert", "--json", "--jobs", "1", "--level", "15", "--collapse", "1GiB", &source];
    assert_eq!(kill_after(&node, &convert, 4), 4);

    let report = report(&node, &convert);
    assert_eq!(each(&report["images"][0], "resumed"), [true; 4]);
    node.run(&["verify", &source]);
    let (expected, layers) = undisturbed(&node, &convert);
    let stack = |report: &Value| report["images"][0]["collapsed"]["stack"].clone();
    assert_eq!((stack(&report), stack(&report).as_array().unwrap().len()), (stack(&expected), 1));
    assert!(files(&node.path("store/layers")) == layers);
}

#[test]
fn whenever_a_conversion_is_killed_the_next_ends_in_the_same_store() {
    let node = Node::default();
    let layers = |architecture: &str| {
        let own = tar(&[("own", architecture.as_bytes())]);
        vec![tar(&[("base", &noise(1, 300_000))]), own, tar(&[("top", &noise(2, 300_000))])]
    };
    let source = platforms(&node.path("image"), "killed.local/image:1", [layers("amd64"), layers("arm64")]);
    let convert = ["convert", "--json", "--platform", "all", "--collapse", "1GiB", &source];
    let (expected, files_expected) = undisturbed(&node, &convert);
    let collapsed = |report: &Value| {
        let images = report["images"].as_array().unwrap().iter();
        images.map(|image| image["collapsed"]["stack"].clone()).collect::<Vec<_>>()
    };
    // Through everything, the writing of the store and its references too, a little further each time; what a round finishes
    // the next has less of. Some more when the image has its name.
    let (mut cut_short, mut after) = (0, 5u32);
    for round in 0.. {
        let mut killed = node.command(&convert).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(4 * round));
        killed.kill().unwrap();
        killed.wait().unwrap();
        // Whatever stands in the store is whole.
        let is_sequence = |name: &PathBuf| name.file_name().unwrap().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let named = files(&node.path("store/images")).keys().any(is_sequence);
        cut_short += usize::from(!named && (kept(&node) > 0 || node.path("store/layers").exists()));
        assert!(!named || node.lamina(&["verify", "killed.local/image:1"]).status.success(), "round {round}");
        after -= u32::from(named);
        if after == 0 {
            break;
        }
    }
    assert!(cut_short > 0, "none was killed while something was done and not all");
    let report = report(&node, &convert);
    assert_eq!(collapsed(&report), collapsed(&expected));
    node.run(&["verify", &source, "--platform", "all"]);
    // A kill can leave a collapsed layer or part of one behind, and none that is wrong.
    let found = files(&node.path("store/layers"));
    for (name, bytes) in &files_expected {
        assert!(found.get(name) == Some(bytes), "{}", name.display());
    }
}

#[test]
fn a_push_that_is_killed_is_finished_by_the_same_command() {
    let Some(registry) = Registry::start("a push that is killed", &Options::default()) else { return };
    let node = Node::default();
    let source = format!("oci:{}", layout(&node).display());
    let front = Front::start(Some(registry.address), |_| Answer::Pass);
    let target = format!("{}/app:1", front.address);
    let convert = ["convert", "--json", &source, "--name", "killed.local/image:1", "--push", &target];
    // A little further each time: blobs, manifests, the index.
    for requests in [1, 4, 9, 14, 20] {
        let before = front.requests().len();
        let mut killed = node.command(&convert).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Or it is done already.
        let status = format!("/proc/{}/stat", killed.id());
        let ended = || fs::read_to_string(&status).is_ok_and(|stat| stat.contains(") Z "));
        node.wait("requests", |_| front.requests().len() >= before + requests || ended());
        let _ = killed.kill();
        killed.wait().unwrap();
    }
    let report = report(&node, &convert);
    let index = registry.get("/v2/app/manifests/1");
    assert_eq!(report["pushed"]["digest"], digest(&index).as_str());
    let other = Node::default();
    let source = format!("docker://{}", registry.image("app:1"));
    let pulled = other.convert(&source, &["--platform", "linux/amd64"]);
    assert_eq!(each(&pulled["images"][0], "layer"), each(&report["images"][0], "layer"));
}

/// A conversion that a failed test does not leave behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process is stopped, as `/proc` has it: its state stands behind its name, which is in brackets.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn a_conversion_that_stands_still_is_waited_for_no_longer() {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"small")]), tar(&[("b", &slow(1, 24 << 20))])]);
    let source = image.write(&node.path("image"), "still.local/image:1");
    let convert = ["convert", "--json", "--jobs", "1", "--level", "15", &source];
    let mut first = Running(node.command(&convert).stdout(Stdio::null()).spawn().unwrap());
    // Its second layer is being written.
    let writes = |node: &Node| kept(node) == 1 && files(&node.path("work")).keys().any(|name| name.ends_with("part"));
    node.wait("the second layer", writes);
    let pid = rustix::process::Pid::from_child(&first.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    node.wait("it to stand still", |_| is_stopped(first.0.id()));
    // As if that had been an hour ago.
    let hour = SystemTime::now() - Duration::from_secs(3600);
    for path in files(&node.path("work")).keys() {
        fs::File::options().append(true).open(node.path("work").join(path)).unwrap().set_modified(hour).unwrap();
    }

    let second = node.command(&convert).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.success() && said.contains(&format!("process {} on ", first.0.id())), "{said}");
    let report: Value = serde_json::from_slice(&second.stdout).unwrap();
    for flag in ["resumed", "reused"] {
        assert_eq!(each(&report["images"][0], flag), [true, false], "{flag}");
    }
    node.run(&["verify", &source]);

    // When it goes on it comes to the same.
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(first.0.wait().unwrap().success());
    node.run(&["verify", &source]);
    assert_eq!(kept(&node), 0);
}

const SIGNALS: [(Signal, i32); 4] = [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)];

fn send(child: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_conversion_that_a_signal_ends_keeps_its_layers_and_holds_nothing_of_the_store() {
    let node = Node::default();
    let base = tar(&[("base", b"of the store already")]);
    let of_base = Image::new(vec![base.clone()]).write(&node.path("base"), "signals.local/base:1");
    node.run(&["convert", &of_base]);
    let image = Image::new(vec![base, tar(&[("a", b"small")]), tar(&[("b", &slow(1, 24 << 20))])]);
    let source = image.write(&node.path("image"), "signals.local/image:1");
    let convert = ["convert", "--json", "--jobs", "1", "--level", "15", &source];
    let before = files(&node.path("store"));
    for (signal, status) in SIGNALS {
        let run = node.command(&convert).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Its last layer is being written, and it holds the lowest.
        let part = |node: &Node| files(&node.path("work")).keys().any(|name| name.ends_with("part"));
        node.wait("the last layer", |node| kept(node) == 1 && part(node));
        assert!(node.path("store/node/leases").read_dir().unwrap().next().is_some(), "it holds something");
        send(&run, signal);
        let output = run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("lamina: interrupted"), "{said}");
        assert!(files(&node.path("store")) == before, "no lease, no name under way");
        let left =
            fs::read_dir(node.path("work")).unwrap().flat_map(|user| fs::read_dir(user.unwrap().path()).unwrap());
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).filter(|name| name != "kept").collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let report = report(&node, &convert);
    assert_eq!(each(&report["images"][0], "resumed"), [false, true, false]);
    node.run(&["verify", &source]);
}

#[test]
fn an_export_that_a_signal_ends_leaves_nothing() {
    let node = Node::default();
    let source = Image::new(vec![tar(&[("large", &noise(1, 48 << 20))])]);
    node.run(&["convert", &source.write(&node.path("image"), "signals.local/image:1")]);
    let out = node.new_dir("out");
    let mut ended = 0;
    for (signal, status) in SIGNALS {
        // To a pipe that nobody reads before it is told to end: it cannot be done.
        let mut run = node.command(&["export", "signals.local/image:1"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 512];
        let mut tar = run.stdout.take().unwrap();
        tar.read_exact(&mut first).unwrap();
        send(&run, signal);
        std::io::copy(&mut tar, &mut std::io::sink()).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(status));
        // To a file: it can be done just before.
        let file = out.join("image.erofs");
        let export = ["export", "signals.local/image:1", "-o", file.to_str().unwrap()];
        let mut run = node.command(&export).stdout(Stdio::null()).spawn().unwrap();
        node.wait("the file", |_| fs::read_dir(&out).unwrap().next().is_some());
        send(&run, signal);
        let code = run.wait().unwrap().code();
        ended += usize::from(code == Some(status));
        assert!(code == Some(status) || code == Some(0), "{code:?}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), usize::from(code == Some(0)));
        let _ = fs::remove_file(file);
    }
    assert!(ended > 0, "none was ended before it was done");
}

#[test]
fn commands_that_have_nothing_to_take_back_end_at_once_and_with_the_same_status() {
    // A server that never answers.
    let front = Front::start(None, |_| Answer::Silence);
    let node = Node::default();
    node.use_store(&format!("http://{}/store", front.address), "");
    let commands: [&[&str]; 4] = [&["inspect", "x"], &["verify", "x"], &["store", "du"], &["store", "gc"]];
    for (command, (signal, status)) in commands.into_iter().zip(SIGNALS) {
        let before = front.requests().len();
        let mut run = node.command(command).stderr(Stdio::null()).spawn().unwrap();
        node.wait("a request", |_| front.requests().len() > before);
        send(&run, signal);
        assert_eq!(run.wait().unwrap().code(), Some(status), "{command:?}");
    }
    // As nohup starts it.
    let mut command = std::process::Command::new("nohup");
    let run = command.arg(tests::node::program("lamina")).arg("--config").arg(node.config()).args(["inspect", "x"]);
    let before = front.requests().len();
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    node.wait("a request", |_| front.requests().len() > before);
    let status = fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & 1, 1, "SIGHUP stays ignored");
    send(&run, Signal::TERM);
    assert_eq!(run.wait().unwrap().code(), Some(143));
}
