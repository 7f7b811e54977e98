//! A node's life: starts, ends, crashes, a store that goes away, a cache without room; and that a layer is a plain image.

use containerd::snapshots::PrepareSnapshotRequest;
use containerd::snapshots::snapshots_client::SnapshotsClient;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests::image::layer_file;
use tests::node::{Node, program};
use tests::tree::{listing, noise, write};

const FILE: usize = 4 << 20;

/// A node with one layer tagged `base/one:1`: a file of noise, a small one and a link.
fn node(test: &str, daemon: &str, more: &str) -> Option<(Node, Vec<u8>)> {
    if !tests::possible(test) {
        return None;
    }
    let node = Node::with_daemon(daemon, more);
    let source = node.new_dir("source");
    let content = noise(7, FILE);
    write(&source.join("big"), &content);
    write(&source.join("d/small"), "small");
    std::os::unix::fs::symlink("d/small", source.join("link")).unwrap();
    node.convert_dir(&source, "base/one:1");
    Some((node, content))
}

fn mount(node: &Node, name: &str) -> PathBuf {
    let target = node.new_dir(name);
    node.run(&["mount", "base/one:1", target.to_str().unwrap()]);
    target
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let targets = mounts.lines().filter_map(|l| l.split(' ').nth(4));
    targets.filter(|t| Path::new(t).starts_with(dir)).map(str::to_owned).collect()
}

#[test]
fn sigterm_unmounts_everything_that_nobody_uses() {
    let Some((mut node, content)) = node("SIGTERM", "", "") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    let upper = node.path("upper");
    let writable = node.new_dir("rw");
    node.run(&["mount", "base/one:1", writable.to_str().unwrap(), "--rw", upper.to_str().unwrap()]);
    let root = |dir: &Path| fs::metadata(dir).map(|m| (m.mode(), m.uid(), m.mtime(), m.mtime_nsec())).unwrap();
    assert_eq!(root(&writable), root(&target), "a new upper directory looks like the layer's root");
    fs::write(writable.join("new"), "written").unwrap();
    assert!(fs::read(target.join("big")).unwrap() == content);
    assert!(node.stop_daemon());
    assert_eq!(mounts_below(&node.path("")), Vec::<String>::new());
    assert_eq!(fs::read_to_string(upper.join("fs/new")).unwrap(), "written");
}

#[test]
fn sigterm_ends_in_time_also_when_somebody_reads_and_the_reader_gets_an_error() {
    let Some((mut node, content)) = node("SIGTERM with a reader", "", "") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    let file = File::open(target.join("big")).unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 0).unwrap();
    assert!(block == content[..4096]);
    assert!(node.stop_daemon());
    let error = file.read_exact_at(&mut block, (FILE - 4096) as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(file);
    node.start_daemon();
    let target = mount(&node, "again");
    assert!(fs::read(target.join("big")).unwrap() == content);
}

#[test]
fn a_start_after_sigkill_of_both_cleans_up_and_goes_on() {
    let Some((mut node, content)) = node("SIGKILL of both", "", "") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    let held = File::open(target.join("d/small")).unwrap();
    node.kill_daemon();
    assert!(!mounts_below(&node.path("")).is_empty(), "a crash leaves mounts behind");
    assert!(fs::read(target.join("big")).is_err());
    node.start_daemon();
    assert_eq!(mounts_below(&node.path("")), [node.path("run/dev").display().to_string()]);
    let target = mount(&node, "mnt");
    assert!(fs::read(target.join("big")).unwrap() == content);
    drop(held);
    node.run(&["umount", target.to_str().unwrap()]);
}

#[test]
fn a_worker_without_its_holder_ends_and_the_next_daemon_starts() {
    let Some((mut node, content)) = node("SIGKILL of the holder", "", "") else { return };
    node.start_daemon();
    mount(&node, "mnt");
    let worker = Path::new("/proc").join(node.status().unwrap()["pid"].to_string());
    node.kill_holder();
    node.wait("the worker to end", |_| !worker.exists() || is_zombie(&worker));
    node.start_daemon();
    let target = mount(&node, "mnt");
    assert!(fs::read(target.join("big")).unwrap() == content);
}

/// Process 1 of some containers does not wait for orphans.
fn is_zombie(process: &Path) -> bool {
    fs::read_to_string(process.join("stat")).is_ok_and(|s| s.contains(") Z "))
}

#[test]
fn a_second_daemon_is_told_who_is_there_already() {
    let Some((mut node, _)) = node("a second daemon", "", "") else { return };
    node.start_daemon();
    let second =
        Command::new(program("laminad")).arg("--config").arg(node.config()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(text.contains(&node.path("run").display().to_string()), "{text}");
    assert!(node.status().is_some(), "and the first one goes on");
}

#[test]
fn a_store_that_does_not_answer_is_an_error_in_time_and_comes_back() {
    if !tests::linux("a stalled store", (6, 9)) {
        return;
    }
    let Some((mut node, content)) = node("a stalled store", "", "[fetch]\ndeadline = \"1s\"\n") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    let store = |node: &Node, from: &str, to: &str| {
        node.reconfigure(&format!("added_latency = \"{from}\""), &format!("added_latency = \"{to}\""));
        // The next worker takes the new latency up, and the mount with it.
        let worker = tests::node::pid(&node.status().unwrap());
        rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
        node.wait("a successor", |n| n.status().is_some_and(|s| tests::node::pid(&s) != worker));
    };
    store(&node, "0s", "1h");
    let start = Instant::now();
    let error = fs::read(target.join("big")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    // The kernel asks again for some of it; each time it is told within the deadline.
    assert!(start.elapsed() < Duration::from_secs(25), "it took {:?}", start.elapsed());
    let log = node.log("laminad");
    assert!(log.contains("timeout") && log.contains("chunk"), "the log says what was waited for:\n{log}");
    store(&node, "1h", "0s");
    assert!(fs::read(target.join("big")).unwrap() == content);
    node.run(&["umount", target.to_str().unwrap()]);
}

#[test]
fn status_says_that_the_store_went_away_and_that_it_is_back() {
    let Some((mut node, content)) = node("a lost store", "", "") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    fs::rename(node.path("store"), node.path("away")).unwrap();
    fs::create_dir(node.path("store")).unwrap();
    let error = |node: &Node| node.status().unwrap()["store_error"].as_str().unwrap().to_owned();
    assert!(error(&node).contains("nothing is there"), "{}", error(&node));
    fs::remove_dir(node.path("store")).unwrap();
    fs::rename(node.path("away"), node.path("store")).unwrap();
    assert_eq!(error(&node), "");
    assert!(fs::read(target.join("big")).unwrap() == content);
    node.run(&["umount", target.to_str().unwrap()]);
}

/// The layer's file is cut short under a running daemon: what is there is right, what is not is an error.
#[test]
fn a_layer_cut_short_in_the_store_is_an_error_and_never_data() {
    let Some((mut node, content)) = node("a short layer", "", "") else { return };
    node.start_daemon();
    let target = mount(&node, "mnt");
    let report = node.json(&["inspect", "base/one:1"]);
    let file = layer_file(&node.path("store"), report["layers"][0]["layer"].as_str().unwrap());
    let whole = fs::read(&file).unwrap();
    File::options().write(true).open(&file).unwrap().set_len(whole.len() as u64 / 2).unwrap();
    let error = fs::read(target.join("big")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(node.log("laminad").contains("chunk"), "{}", node.log("laminad"));
    File::options().write(true).open(&file).unwrap().write_all(&whole).unwrap();
    assert!(fs::read(target.join("big")).unwrap() == content);
    node.run(&["umount", target.to_str().unwrap()]);
}

#[test]
fn an_umount_behind_our_back_leaves_nothing_and_a_strangers_mount_stays() {
    let Some((mut node, _)) = node("umount(8)", "", "") else { return };
    node.start_daemon();
    let target = node.new_dir("mnt");
    let path = target.to_str().unwrap();
    let mount = |node: &Node| node.run(&["mount", "base/one:1", path, "--rw", node.path("upper").to_str().unwrap()]);
    let system = |program: &str, arguments: &[&str]| {
        assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
    };
    let mounts = |node: &Node| node.status().unwrap()["mounts"].as_array().unwrap().len();
    mount(&node);
    system("umount", &[path]);
    mount(&node);
    node.run(&["umount", path]);
    assert_eq!(mounts(&node), 0, "both stacks are gone");
    mount(&node);
    system("umount", &[path]);
    system("mount", &["-t", "tmpfs", "none", path]);
    assert!(node.fail(2, &["umount", path]).contains("not a mount of ours"));
    assert_eq!(mounts(&node), 0);
    assert_eq!(mounts_below(&target), [path]);
    system("umount", &[path]);
}

#[test]
fn a_cache_without_room_is_no_reason_to_fail_a_read() {
    let Some((mut node, content)) = node("a full cache", "", "") else { return };
    let cache = node.new_dir("cache");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&cache).status();
    assert!(mounted.unwrap().success());
    node.start_daemon();
    let target = mount(&node, "mnt");
    assert!(fs::read(target.join("big")).unwrap() == content);
    assert!(node.status().unwrap()["fetched_bytes"].as_u64().unwrap() >= FILE as u64);
    node.run(&["umount", target.to_str().unwrap()]);
    assert!(node.stop_daemon());
}

#[test]
fn a_layer_decompressed_with_zstd_and_mounted_is_the_tree_that_is_mounted_lazily() {
    let Some((mut node, _)) = node("zstd -d", "", "") else { return };
    if Command::new("zstd").arg("--version").output().is_err() {
        tests::skipped("zstd -d", "the zstd program");
        return;
    }
    node.start_daemon();
    let lazy = mount(&node, "lazy");
    let report = node.json(&["inspect", "base/one:1"]);
    let id = report["layers"][0]["layer"].as_str().unwrap();
    let image = node.path("image");
    let layer = layer_file(&node.path("store"), id);
    let done = Command::new("zstd").args(["-q", "-d"]).arg(&layer).arg("-o").arg(&image).status();
    assert!(done.unwrap().success());
    let plain = node.new_dir("plain");
    let mounted = Command::new("mount").args(["-o", "loop,ro"]).arg(&image).arg(&plain).status();
    assert!(mounted.unwrap().success());
    assert_eq!(listing(&lazy), listing(&plain));
    let attributes = |dir: &Path| {
        let format = "%P %y %m %U %G %s %n %T@ %l\\n";
        let found = Command::new("find").arg(dir).args(["-printf", format]).output().unwrap();
        let mut lines: Vec<String> = String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(attributes(&lazy), attributes(&plain));
    assert!(Command::new("umount").arg(&plain).status().unwrap().success());
    node.run(&["umount", lazy.to_str().unwrap()]);
    // And fsck of Debian 12 has nothing to say against it.
    if let Ok(fsck) = Command::new("fsck.erofs").arg(&image).output() {
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stderr));
    }
}

#[test]
fn both_daemons_tell_the_service_manager_when_they_are_ready() {
    if !tests::possible("sd_notify") {
        return;
    }
    let node = Node::default();
    for name in ["laminad", "lamina-snapshotter"] {
        let path = node.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut child = Command::new(program(name))
            .arg("--config")
            .arg(node.config())
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut message = [0; 256];
        let length = socket.recv(&mut message).unwrap();
        assert!(String::from_utf8_lossy(&message[..length]).contains("READY=1"), "{name}");
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
        assert!(child.wait().unwrap().success(), "{name}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_metrics_page_counts_what_was_fetched_and_what_was_damaged() {
    let Some((mut node, _)) = node("metrics", "", "") else { return };
    node.reconfigure("metrics = \"\"", "metrics = \"127.0.0.1:0\"");
    node.start_daemon();
    let target = mount(&node, "mnt");
    let report = node.json(&["inspect", "base/one:1", "--chunks"]);
    let layer = &report["layers"][0];
    let file = layer_file(&node.path("store"), layer["layer"].as_str().unwrap());
    let chunk = layer["chunk_table"][3]["file_offset"].as_u64().unwrap();
    let store = File::options().read(true).write(true).open(&file).unwrap();
    let mut byte = [0];
    store.read_exact_at(&mut byte, chunk + 20).unwrap();
    store.write_all_at(&[byte[0] ^ 1], chunk + 20).unwrap();
    assert!(fs::read(target.join("big")).is_err());
    let page = node.metrics("laminad");
    let value = |name| value(&page, name);
    assert!(value("lamina_fetch_bytes_total") > 0.0);
    assert!(value("lamina_verify_failures_total") > 0.0);
    assert!(value("lamina_device_read_bytes_total") >= 0.0);
    // The layer, and the stack of it.
    assert_eq!(value("lamina_mounts "), 2.0);
    for name in ["lamina_fetch_seconds", "lamina_fetch_errors_total", "lamina_read_bytes_total", "lamina_cache_bytes"] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
}

#[tokio::test]
async fn the_snapshotters_metrics_page_counts_snapshots_and_times_their_making() {
    let Some((mut node, _)) = node("the snapshotter's metrics", "", "") else { return };
    node.reconfigure("metrics = \"\"", "metrics = \"127.0.0.1:0\"");
    node.start_snapshotter();
    let mut snapshots = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    for key in ["one", "two", "two"] {
        let request = PrepareSnapshotRequest { key: key.to_owned(), ..PrepareSnapshotRequest::default() };
        let _ = snapshots.prepare(request).await;
    }
    let page = node.metrics("lamina-snapshotter");
    assert_eq!((value(&page, "lamina_snapshots "), value(&page, "lamina_prepare_seconds_count ")), (2.0, 3.0));
}

/// The value of the first line that begins so.
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn who_mounts_what_is_not_there_is_told_what_is_like_it() {
    if !tests::possible("a mount of what is not there") {
        return;
    }
    let mut node = Node::default();
    node.convert_dir(&node.new_dir("tools"), "toolkit/tools:1");
    node.start_daemon();
    let target = node.new_dir("target");
    let commands: [&[&str]; 4] = [
        &["mount", "toolkit/tools:1", "tools:1", target.to_str().unwrap()],
        &["cache", "warm", "toolkit/tool:1"],
        &["cache", "pin", "toolkit/tools:2"],
        &["trace", "tools"],
    ];
    for command in commands {
        let said = node.fail(1, command);
        let meant = "did you mean tag:toolkit/tools:1?";
        assert!(said.contains(meant) && said.matches(meant).count() == 1, "{command:?}: {said}");
    }
}
