//! What people and machines do to a conversion or an export: pipes where files belong, links that lead nowhere, stores that
//! lose what they had, disks that are full, and the same thing done twice at once. A clear word, the right status, nothing half
//! done.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::image::{Image, tar};
use tests::node::{Node, pid};
use tests::registry::{Options, Registry, layout, stderr};
use tests::tree::{files, noise, write};

const NAME: &str = "mishap.local/image:1";

/// A layout of an image of two layers.
fn image(node: &Node) -> String {
    let layers = vec![tar(&[("a", &noise(1, 3 << 20))]), tar(&[("b", &noise(2, 3 << 20)), ("c", b"c")])];
    Image::new(layers).write(&node.path("image"), NAME)
}

/// A file system of this size, for as long as it lives.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn new(at: &'a Path, size: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        let small = Self(at);
        small.mount(&format!("size={size}"));
        small
    }

    fn mount(&self, options: &str) {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.0).status();
        assert!(mounted.unwrap().success());
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_pipe_where_a_file_belongs_is_not_waited_for() {
    let node = Node::default();
    let pipe = node.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let pipe = pipe.to_str().unwrap();
    for kind in ["oci-archive", "docker-archive"] {
        let said = node.fail(3, &["convert", &format!("{kind}:{pipe}")]);
        assert!(said.contains(pipe) && said.contains("not a regular file"), "{said}");
    }
    let layer = format!("file:{pipe}");
    let out = node.path("out");
    for command in [&["verify", &layer][..], &["inspect", &layer], &["export", &layer, "-o", out.to_str().unwrap()]] {
        let said = node.fail(1, command);
        assert!(said.contains(pipe) && said.contains("not a regular file"), "{command:?}: {said}");
    }
    assert!(!out.exists());
}

#[test]
fn directories_of_odd_names_are_sources_and_stores() {
    let node = Node::default();
    image(&node);
    for name in ["with space", "with%20percent", "with:colon", "with ü and 中"] {
        let odd = node.path(name);
        fs::rename(node.path("image"), &odd).unwrap();
        let store = format!("file://{}", node.path(&format!("store {name}")).display());
        for source in [format!("oci:{}", odd.display()), format!("oci:{}:{NAME}", odd.display())] {
            node.run(&["--store", &store, "convert", &source]);
            node.run(&["--store", &store, "verify", &source]);
        }
        assert!(node.path(&format!("store {name}/layers")).exists(), "the name is taken as it is");
        fs::rename(odd, node.path("image")).unwrap();
    }
}

#[test]
fn links_as_the_output_of_an_export_are_followed_and_stay_or_are_refused_at_once() {
    if !tests::possible("an export through links") {
        return;
    }
    let node = Node::default();
    node.run(&["convert", &image(&node)]);
    let path = |name: &str| node.path(name).to_str().unwrap().to_owned();
    for (format, link) in [("dir", "nowhere-dir"), ("tar", "nowhere-file")] {
        symlink(path("missing"), path(link)).unwrap();
        let said = node.fail(1, &["export", NAME, "--format", format, "-o", &path(link)]);
        assert!(said.contains(link), "{said}");
        assert!(!node.path("missing").exists() && node.path(link).is_symlink());
    }
    node.new_dir("directory");
    symlink(path("directory"), path("to-dir")).unwrap();
    node.run(&["export", NAME, "-o", &format!("{}/", path("to-dir"))]);
    assert!(node.path("to-dir").is_symlink() && node.path("directory/a").exists());
    write(&node.path("file"), "before");
    symlink(path("file"), path("to-file")).unwrap();
    node.run(&["export", NAME, "--format", "tar", "-o", &path("to-file")]);
    assert!(node.path("to-file").is_symlink() && fs::metadata(node.path("file")).unwrap().len() > 6 << 20);
    let left: Vec<String> = names(&node.path("")).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_export_to_a_full_disk_leaves_nothing_that_looks_whole() {
    if !tests::possible("an export to a full disk") {
        return;
    }
    let node = Node::default();
    node.run(&["convert", &image(&node)]);
    let small = node.path("small");
    let _mounted = Small::new(&small, "4m");
    for (format, name) in [("tar", "x"), ("erofs", "x"), ("dir", "x")] {
        let out = small.join(name);
        let said = node.fail(1, &["export", NAME, "--format", format, "-o", out.to_str().unwrap()]);
        assert!(said.contains("No space left"), "{said}");
        assert_eq!(names(&small), Vec::<String>::new(), "{format}");
    }
    let said = node.fail(1, &["export", NAME, "--format", "dir", "-o", small.to_str().unwrap()]);
    assert!(said.contains("No space left") && said.contains("is unfinished"), "{said}");
}

#[test]
fn a_limit_on_the_size_of_files_is_named_and_leaves_nothing() {
    let node = Node::default();
    let source = image(&node);
    let limited = |arguments: &[&str]| {
        let lamina = node.command(arguments);
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 8; exec \"$@\"", "sh"]).arg(lamina.get_program()).args(lamina.get_args());
        command.envs(lamina.get_envs().filter_map(|(name, value)| Some((name, value?)))).output().unwrap()
    };
    let too_large = |arguments: &[&str]| {
        let output = limited(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("File too large"), "{said}");
    };
    let store = format!("file://{}", node.path("limited").display());
    too_large(&["--store", &store, "convert", &source]);
    let left: usize = files(&node.path("work")).values().map(Vec::len).sum();
    assert!(left < 64 << 10, "{left} bytes are left");
    assert!(!node.path("limited/layers").exists());
    node.run(&["convert", &source]);
    let out = node.new_dir("out");
    too_large(&["export", NAME, "--format", "tar", "-o", out.join("x").to_str().unwrap()]);
    assert_eq!(names(&out), Vec::<String>::new());
}

#[test]
fn layers_that_a_store_has_lost_are_made_again_whatever_still_names_them() {
    let node = Node::default();
    let source = image(&node);
    node.run(&["convert", &source]);
    fs::rename(node.path("store/layers"), node.path("lost")).unwrap();
    let other = "mishap.local/other:1";
    let report = node.json(&["convert", &source, "--name", other]);
    let layers = report["images"][0]["layers"].as_array().unwrap();
    assert!(!layers.is_empty() && layers.iter().all(|layer| layer["reused"] == false), "{report}");
    for name in [NAME, other] {
        node.run(&["verify", name]);
    }
    node.run(&["verify", &source]);
}

#[test]
fn a_work_directory_that_is_full_when_layers_become_one_is_named_and_nothing_is_lost() {
    if !tests::possible("a full work directory while collapsing") {
        return;
    }
    let node = Node::default();
    let (source, work) = (image(&node), node.new_dir("work"));
    // The layers fit, and what they become does not.
    let small = Small::new(&work, "11m");
    let said = node.fail(1, &["convert", &source, "--collapse", "1GiB"]);
    assert!(said.contains("is full") && said.contains("TMPDIR"), "{said}");
    assert!(!node.path("store").exists());
    small.mount("remount,size=64m");
    let report = node.convert(&source, &["--collapse", "1GiB"]);
    let resumed = report["images"][0]["layers"].as_array().unwrap().iter().map(|layer| &layer["resumed"]);
    assert_eq!(resumed.collect::<Vec<_>>(), [true, true]);
    assert_eq!(report["images"][0]["collapsed"]["stack"].as_array().unwrap().len(), 1);
}

#[test]
fn a_store_that_is_full_when_an_image_is_pushed_is_named_and_the_push_can_be_done_again() {
    if !tests::possible("a full store while pushing") {
        return;
    }
    let Some(registry) = Registry::start("a full store while pushing", &Options::default()) else { return };
    let node = Node::default();
    let source = format!("oci:{}", layout(&node).display());
    let store = node.path("store");
    let small = Small::new(&store, "64m");
    node.run(&["convert", &source, "--name", NAME]);
    // What is pushed has references of its own.
    let _ = fs::write(store.join("fill"), vec![1; 64 << 20]);
    let image = registry.image("app:1");
    let said = node.fail(1, &["convert", &source, "--name", NAME, "--push", &image]);
    assert!(said.contains("No space left"), "{said}");
    fs::remove_file(store.join("fill")).unwrap();
    node.run(&["convert", &source, "--name", NAME, "--push", &image]);
    node.run(&["verify", &image]);
    drop(small);
}

#[test]
fn whoever_gives_one_tag_or_collapses_one_image_at_once_ends_with_something_whole() {
    let node = Node::default();
    for n in 0..4 {
        write(&node.path(&format!("tree{n}/name")), n.to_string());
    }
    let all = |commands: Vec<Vec<String>>| {
        let start = |arguments: &Vec<String>| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            node.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let running: Vec<_> = commands.iter().map(start).collect();
        for child in running {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
        }
    };
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let tree = |n: usize| node.path(&format!("tree{n}")).display().to_string();
    all((0..4).map(|n| words(format!("convert dir:{} --tag base/one:1", tree(n)))).collect());
    let is = |n: usize| {
        let compared = node.lamina(&["verify", &format!("dir:{}", tree(n)), "--tag", "base/one:1"]);
        compared.status.success()
    };
    assert_eq!((0..4).filter(|&n| is(n)).count(), 1, "the tag is one of them");

    let layers = (0..6u8).map(|n| tar(&[(&format!("{n}"), &noise(n.into(), 100_000)), ("top", &[n])])).collect();
    let source = Image::new(layers).write(&node.path("image"), NAME);
    let sizes = ["220kB", "320kB", "1GiB", "1GiB"];
    all(sizes.map(|size| words(format!("convert {source} --collapse {size}"))).to_vec());
    node.run(&["verify", &source]);
    let inspected: Value = node.json(&["inspect", NAME]);
    assert!((1..6).contains(&inspected["collapsed"].as_array().unwrap().len()), "{inspected}");
}

#[test]
fn a_store_that_takes_no_writes_is_told_before_anything_is_converted() {
    if !tests::possible("a store that is mounted read-only") {
        return;
    }
    let node = Node::default();
    let source = image(&node);
    let at = node.path("mounted");
    let small = Small::new(&at, "64m");
    // One that is there, and one that would have to be made.
    node.run(&["--store", &format!("file://{}/there", at.display()), "convert", &source]);
    small.mount("remount,ro");
    for store in ["there", "new/store"] {
        let url = format!("file://{}/{store}", at.display());
        let said = node.fail(1, &["--store", &url, "convert", "docker://127.0.0.1:1/is-not:asked"]);
        assert!(said.contains("nothing was converted") && said.contains(&url), "{said}");
        assert!(said.contains("Read-only file system"), "{said}");
    }
    write(&node.path("file"), "x");
    let url = format!("file://{}/store", node.path("file").display());
    let said = node.fail(1, &["--store", &url, "convert", &source]);
    assert!(said.contains("nothing was converted") && said.to_lowercase().contains("not a directory"), "{said}");
    let said = node.fail(1, &["--store", "http://127.0.0.1:1/store", "convert", &source]);
    assert!(said.contains("http://127.0.0.1:1/store"), "{said}");
}

#[test]
fn a_file_without_an_end_is_refused_wherever_a_file_is_named() {
    let node = Node::default();
    let source = image(&node);
    let said = node.fail(2, &["convert", &source, "--profile", "/dev/zero"]);
    assert!(said.contains("--profile /dev/zero: longer than"), "{said}");
    let said = node.fail(2, &["store", "ls", "--config", "/dev/zero"]);
    assert!(said.contains("/dev/zero: longer than"), "{said}");
    let configured = |sections: &str| {
        let config = node.path("endless.toml");
        fs::write(&config, format!("[store]\nurl = \"https://127.0.0.1:1/x\"\n{sections}")).unwrap();
        config.to_str().unwrap().to_owned()
    };
    let config = configured("[fetch]\nca_file = \"/dev/zero\"\n");
    let said = node.fail(2, &["inspect", "x", "--config", &config]);
    assert!(said.contains("/dev/zero") && said.contains("longer than"), "{said}");
    let config = configured("[store.s3]\ncredentials_file = \"/dev/zero\"\n");
    let said = node.fail(2, &["inspect", "x", "--config", &config, "--store", "s3://bucket/x"]);
    assert!(said.contains("/dev/zero") && said.contains("longer than"), "{said}");
    // An object of a store, too.
    fs::create_dir(node.path("store")).unwrap();
    fs::File::create(node.path("store/format")).unwrap().set_len(1 << 40).unwrap();
    let said = node.fail(1, &["store", "ls"]);
    assert!(said.contains("format") && said.contains("too many"), "{said}");
}

#[test]
fn what_cannot_be_logged_is_lost_and_nothing_else() {
    let mut node = Node::default();
    let (source, content) = (node.path("source.tar"), noise(3, 1 << 20));
    // Its mark hides nothing: a warning.
    fs::write(&source, tar(&[("file", &content), ("d/.wh..wh..opq", b"")])).unwrap();
    let convert = ["convert", &format!("tar:{}", source.display()), "--tag", "base/logs:1"];
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let converted = node.command(&convert).stdout(Stdio::null()).stderr(full()).status().unwrap();
    assert!(converted.success(), "{converted}");
    if !tests::possible("a log on a full disk") || !tests::linux("a log on a full disk", (6, 9)) {
        return;
    }
    symlink("/dev/full", node.path("laminad.log")).unwrap();
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", "base/logs:1", target.to_str().unwrap()]);
    let worker = pid(&node.status().unwrap());
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    assert!(fs::read(target.join("file")).unwrap() == content);
    node.wait("a successor", |n| n.status().is_some_and(|s| pid(&s) != worker));
    assert!(node.stop_daemon());
}
