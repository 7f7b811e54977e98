//! Attacks on a node: what is mounted over what, callers and mounters that die half way, daemons that share what they must
//! not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::node::{Node, program};
use tests::tree::write;

const LAYERS: usize = 8;

/// A running node with the layers `base/n:1`, each with a file named after it.
fn node(test: &str, more: &str) -> Option<Node> {
    if !tests::possible(test) {
        return None;
    }
    let mut node = Node::new(more);
    for n in 0..LAYERS {
        let source = node.new_dir(&format!("source{n}"));
        write(&source.join(format!("file{n}")), format!("content of {n}"));
        node.convert_dir(&source, &format!("base/n{n}:1"));
    }
    node.start_daemon();
    Some(node)
}

fn mount(node: &Node, layers: &[usize], name: &str) -> PathBuf {
    let target = node.new_dir(name);
    let references: Vec<String> = layers.iter().map(|n| format!("base/n{n}:1")).collect();
    let mut arguments = vec!["mount"];
    arguments.extend(references.iter().map(String::as_str));
    arguments.push(target.to_str().unwrap());
    node.run(&arguments);
    target
}

fn umount(node: &Node, target: &Path) {
    node.run(&["umount", target.to_str().unwrap()]);
}

fn shows(target: &Path, layer: usize) -> bool {
    fs::read_to_string(target.join(format!("file{layer}"))).is_ok_and(|text| text == format!("content of {layer}"))
}

/// Mounts below the node's directory but for the devices'.
fn mounted(node: &Node) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
    targets.filter(|t| Path::new(t).starts_with(node.path("")) && Path::new(t) != node.path("run/dev")).collect()
}

fn bind(source: &Path, target: &Path) {
    rustix::mount::mount_bind(source, target).unwrap();
}

fn unmount(target: &Path) {
    rustix::mount::unmount(target, rustix::mount::UnmountFlags::empty()).unwrap();
}

#[test]
fn a_layer_is_the_layer_whatever_lies_over_its_first_mount() {
    let Some(node) = node("over-mounting", "") else { return };
    let (first, other) = (mount(&node, &[0], "above/first"), node.new_dir("other"));
    write(&other.join("wrong"), "wrong");
    for covered in [first.clone(), node.path("above")] {
        bind(&other, &covered);
        let second = mount(&node, &[0], "second");
        let stack = mount(&node, &[0, 1], "stack");
        assert!(shows(&second, 0) && shows(&stack, 0) && shows(&stack, 1) && !second.join("wrong").exists());
        umount(&node, &second);
        umount(&node, &stack);
        unmount(&covered);
    }
    assert!(shows(&first, 0));
    umount(&node, &first);
    assert_eq!(mounted(&node), Vec::<String>::new());
}

#[test]
fn a_part_of_a_layer_that_somebody_bound_elsewhere_is_not_the_layer() {
    let Some(node) = node("a bound part", "") else { return };
    let (first, part) = (mount(&node, &[0], "first"), node.path("part"));
    write(&part, "");
    bind(&first.join("file0"), &part);
    umount(&node, &first);
    let second = mount(&node, &[0], "second");
    assert!(shows(&second, 0));
    umount(&node, &second);
    assert_eq!(mounted(&node), [part.to_str().unwrap()]);
    unmount(&part);
}

#[test]
fn who_goes_away_while_his_stack_is_mounted_leaves_nothing_and_so_does_a_worker() {
    let Some(mut node) = node("abandoned mounts", "") else { return };
    assert!(node.stop_daemon());
    node.reconfigure("added_latency = \"0s\"", "added_latency = \"300ms\"");
    for kill_worker in [false, true] {
        fs::remove_dir_all(node.path("cache")).unwrap();
        node.start_daemon();
        let target = node.new_dir("target");
        let worker = tests::node::pid(&node.status().unwrap());
        let references = (0..LAYERS).map(|n| format!("base/n{n}:1"));
        let mut client = Command::new(program("lamina"))
            .arg("--config")
            .arg(node.config())
            .arg("mount")
            .args(references)
            .arg(&target)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Its heads are on their way now: for as long as a request takes, the stack is half made.
        node.wait("a stack under way", |node| fs::read_dir(node.path("run/mounts")).unwrap().next().is_some());
        if kill_worker {
            rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
        }
        client.kill().unwrap();
        client.wait().unwrap();
        node.wait("the half to go", |node| {
            let gone = fs::read_dir(node.path("run/mounts")).unwrap().next().is_none();
            gone && node.status().is_some() && mounted(node).is_empty()
        });
        let target = mount(&node, &[0, 1, 2], "target");
        assert!(shows(&target, 2));
        umount(&node, &target);
        assert_eq!(mounted(&node), Vec::<String>::new());
        assert!(node.stop_daemon());
    }
}

#[test]
fn of_many_who_mount_at_one_place_one_does() {
    let Some(node) = node("one place", "") else { return };
    let target = node.new_dir("target");
    let client = |n: usize| {
        let mut command = Command::new(program("lamina"));
        command.arg("--config").arg(node.config()).arg("mount").arg(format!("base/n{n}:1")).arg("base/n0:1");
        command.arg(&target).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let clients: Vec<_> = (1..6).map(client).collect();
    let done = clients.into_iter().map(|mut client| client.wait().unwrap().code());
    assert_eq!(done.filter(|code| *code == Some(0)).count(), 1);
    assert_eq!(mounted(&node).iter().filter(|t| Path::new(t) == target).count(), 1);
    umount(&node, &target);
    assert_eq!(mounted(&node), Vec::<String>::new());
}

#[test]
fn a_mounter_that_died_is_replaced_before_anybody_notices() {
    let Some(node) = node("a dead mounter", "") else { return };
    for round in 0..3 {
        let target = mount(&node, &[round, round + 1], "target");
        let worker = node.status().unwrap()["pid"].to_string();
        let children = fs::read_dir(format!("/proc/{worker}/task")).unwrap().flatten();
        for child in children.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()) {
            for pid in child.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().unwrap())) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        }
        umount(&node, &target);
    }
    assert_eq!(mounted(&node), Vec::<String>::new());
}

#[test]
fn a_second_daemon_on_the_same_cache_takes_nothing_from_the_first() {
    let Some(node) = node("one cache, two daemons", "") else { return };
    let target = mount(&node, &[0, 1], "target");
    let before = mounted(&node);
    let config = fs::read_to_string(node.config()).unwrap();
    let other = node.path("other.toml");
    fs::write(&other, config.replace("/run\"", "/other-run\"")).unwrap();
    let second = Command::new(program("laminad")).arg("--config").arg(&other).stdin(Stdio::null()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another process uses this cache") && said.contains("[cache] dir"), "{said}");
    assert_eq!(mounted(&node), before);
    umount(&node, &target);
}

#[test]
fn a_worker_that_dies_on_a_full_or_read_only_disk_is_replaced() {
    let Some(mut node) = node("a full disk", "") else { return };
    assert!(node.stop_daemon());
    fs::remove_dir_all(node.path("cache")).unwrap();
    let cache = node.new_dir("cache");
    let tmpfs = |flags, options| rustix::mount::mount("tmpfs", &cache, "tmpfs", flags, options).unwrap();
    tmpfs(rustix::mount::MountFlags::empty(), Some(c"size=256k"));
    node.start_daemon();
    let target = mount(&node, &[0, 1], "target");
    assert!(shows(&target, 0));
    assert!(fs::write(cache.join("fill"), vec![1; 1 << 20]).is_err(), "it is full");
    for read_only in [false, true] {
        if read_only {
            // What holds files open for writing keeps a file system from becoming read-only; a bind mount does not ask.
            let flags = rustix::mount::MountFlags::BIND | rustix::mount::MountFlags::RDONLY;
            bind(&cache, &cache);
            rustix::mount::mount_remount(&cache, flags, c"").unwrap();
        }
        let worker = tests::node::pid(&node.status().unwrap());
        rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
        node.wait("a successor", |node| node.status().is_some_and(|s| tests::node::pid(&s) != worker));
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert!(shows(&target, 0) && shows(&target, 1));
    }
    umount(&node, &target);
    assert!(node.stop_daemon());
    (0..2).for_each(|_| unmount(&cache));
}

#[test]
fn what_is_in_use_stays_and_the_words_say_what_to_do() {
    let Some(node) = node("a busy mount", "") else { return };
    let target = mount(&node, &[0, 1], "target");
    let link = node.path("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let file = fs::File::open(target.join("file0")).unwrap();
    assert!(node.fail(1, &["umount", target.to_str().unwrap()]).contains("is in use"));
    assert!(shows(&target, 1));
    drop(file);
    umount(&node, &link);
    assert_eq!(mounted(&node), Vec::<String>::new());
}

#[test]
fn two_stacks_do_not_write_to_one_directory() {
    let Some(node) = node("one directory for writes", "") else { return };
    let (upper, link) = (node.new_dir("up per,1"), node.path("link"));
    std::os::unix::fs::symlink(&upper, &link).unwrap();
    let (one, two) = (node.new_dir("one"), node.new_dir("two"));
    let [at_one, at_two, way, other_way] = [&one, &two, &upper, &link].map(|path| path.to_str().unwrap());
    node.run(&["mount", "base/n0:1", at_one, "--rw", way]);
    for way in [way, other_way] {
        let error = node.fail(1, &["mount", "base/n1:1", at_two, "--rw", way]);
        assert!(error.contains("takes the writes of") && error.contains(at_one), "{error}");
    }
    fs::write(one.join("new"), "x").unwrap();
    node.run(&["umount", at_one]);
    node.run(&["mount", "base/n1:1", at_two, "--rw", other_way]);
    assert_eq!(fs::read_to_string(two.join("new")).unwrap(), "x");
    node.run(&["umount", at_two]);
}
