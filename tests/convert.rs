//! Conversions that run out of room, that run at once, and that use again what others made.

use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::image::{Image, tar};
use tests::node::Node;
use tests::tree::{listing, noise};

/// The layers of the first image of a report.
fn layers(report: &Value) -> &Vec<Value> {
    report["images"][0]["layers"].as_array().unwrap()
}

fn flags(report: &Value, name: &str) -> Vec<bool> {
    layers(report).iter().map(|layer| layer[name].as_bool().unwrap()).collect()
}

fn files(directory: &Path) -> Vec<String> {
    let names = Command::new("find").arg(directory).args(["-type", "f"]).output().unwrap().stdout;
    String::from_utf8(names).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn conversions_at_once_make_each_layer_once() {
    let node = Node::default();
    let base = [tar(&[("base/a", &noise(1, 3 << 20))]), tar(&[("base/b", &noise(2, 1 << 20))])];
    let sources: Vec<String> = (0..4u8)
        .map(|n| {
            let own = tar(&[("own", &[n; 10_000])]);
            let all = base.iter().cloned().chain([own, tar(&[("last", b"all have this above another layer")])]);
            Image::new(all.collect()).write(&node.path(&format!("image{n}")), &format!("once.local/image:{n}"))
        })
        .collect();
    let run = |source: &String| {
        node.command(&["convert", "--json", source]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = sources.iter().map(run).collect();
    let mut made: HashMap<String, usize> = HashMap::new();
    for process in running {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for layer in layers(&serde_json::from_slice(&output.stdout).unwrap()) {
            let count = made.entry(layer["diff_id"].as_str().unwrap().to_owned()).or_default();
            *count += usize::from(layer["reused"] == false);
        }
    }
    assert_eq!(made.values().copied().collect::<Vec<_>>(), [1; 7], "{made:?}");
    for source in &sources {
        node.run(&["verify", source]);
    }
}

fn tmpfs(at: &Path, options: &str) {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status();
    assert!(mounted.unwrap().success());
}

#[test]
fn a_full_work_directory_is_named_and_what_was_done_is_not_lost() {
    if !tests::possible("a full work directory") {
        return;
    }
    let node = Node::default();
    let work = node.new_dir("work");
    tmpfs(&work, "size=6m");
    let image = Image::new(vec![tar(&[("a", b"small")]), tar(&[("b", &noise(1, 8 << 20))])]);
    let source = image.write(&node.path("image"), "full.local/image:1");
    let error = node.fail(1, &["convert", &source]);
    for part in [work.to_str().unwrap(), "is full", "need more than", "TMPDIR", &digest_of(&image, &node, 1)] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!node.path("store").exists(), "nothing was written");
    assert_eq!(files(&work).iter().filter(|name| name.contains("/run-")).count(), 0);

    tmpfs(&work, "remount,size=64m");
    let report = node.convert(&source, &[]);
    assert_eq!(flags(&report, "resumed"), [true, false]);
    node.run(&["verify", &source]);
}

/// Digest of a layer's blob, as the layout names it.
fn digest_of(image: &Image, node: &Node, number: usize) -> String {
    let blobs = files(&node.path("image/blobs/sha256"));
    let documents = blobs.iter().filter_map(|path| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok());
    let manifest = documents.into_iter().find(|document| document["layers"].is_array()).unwrap();
    assert_eq!(manifest["layers"].as_array().unwrap().len(), image.layers.len());
    manifest["layers"][number]["digest"].as_str().unwrap().to_owned()
}

#[test]
fn a_full_store_has_no_reference_to_what_it_does_not_hold() {
    if !tests::possible("a full store") {
        return;
    }
    let node = Node::default();
    let store = node.new_dir("store");
    tmpfs(&store, "size=5m");
    let image = Image::new(vec![tar(&[("a", &noise(1, 2 << 20))]), tar(&[("b", &noise(2, 5 << 20))])]);
    let source = image.write(&node.path("image"), "full.local/image:1");
    let error = node.fail(1, &["convert", &source]);
    assert!(error.contains("uploading layers/") && error.contains("No space left"), "{error}");
    for absent in ["refs/chain", "images", "manifests"] {
        assert!(!store.join(absent).exists(), "{absent}");
    }
    tmpfs(&store, "remount,size=64m");
    let report = node.convert(&source, &[]);
    assert_eq!(layers(&report).iter().filter(|layer| layer["reused"] == false).count(), 0, "{report}");
    node.run(&["verify", &source]);
}

/// A tree that pip installed: python3's own bundled wheel needs no network.
fn site_packages(work: &Path) -> Option<PathBuf> {
    let made = Command::new("python3").args(["-m", "venv", "--copies"]).arg(work).output().ok()?;
    let lib = fs::read_dir(work.join("lib")).ok()?.next()?.ok()?.path();
    (made.status.success() && lib.join("site-packages/pip/__init__.py").exists()).then(|| lib.join("site-packages"))
}

/// A base image's layer: directories with their modes and group, and a file of its own.
fn base(usr_local: (u32, u64), own: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let directories =
        [("usr/", (0o755, 0)), ("usr/local/", usr_local), ("usr/local/lib/", (0o755, 0)), ("etc/", (0o755, 0))];
    let entry = |kind, mode, gid, size| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(gid);
        header.set_mtime(1_700_000_000);
        header.set_size(size);
        header
    };
    for (path, (mode, gid)) in directories {
        builder.append_data(&mut entry(tar::EntryType::Directory, mode, gid, 0), path, &[][..]).unwrap();
    }
    let mut header = entry(tar::EntryType::Regular, 0o644, 0, own.len() as u64);
    builder.append_data(&mut header, "etc/os-release", own.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn one_pip_layer_serves_two_bases_and_is_made_anew_for_a_third_where_it_would_be_wrong() {
    let node = Node::default();
    let Some(packages) = site_packages(&node.new_dir("venv")) else {
        return tests::skipped("a pip layer on two bases", "python3 with venv and ensurepip");
    };
    // As a builder writes it that has no entries for what was there: the directories above are the base's.
    let mut pip = tar::Builder::new(Vec::new());
    pip.follow_symlinks(false);
    // pip itself, less what it carries of others: enough of them.
    let names = fs::read_dir(&packages).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let parts = names.filter(|name| name.starts_with("pip-")).chain(["pip/_internal".to_owned()]);
    for part in parts {
        pip.append_dir_all(format!("usr/local/lib/python3/site-packages/{part}"), packages.join(part)).unwrap();
    }
    let pip = pip.into_inner().unwrap();
    // Debian's /usr/local belongs to its group staff, or does not.
    let bases = [base((0o755, 0), "Debian 12"), base((0o755, 0), "Debian 13"), base((0o2775, 50), "Debian 9")];
    let mut top = Vec::new();
    for (number, base) in bases.into_iter().enumerate() {
        let image = Image::new(vec![base, pip.clone()]);
        let source = image.write(&node.path(&format!("image{number}")), &format!("pip.local/app:{number}"));
        let report = node.convert(&source, &[]);
        let layer = &layers(&report)[1];
        assert_eq!(layers(&report)[0]["reused"], false);
        top.push((layer["layer"].as_str().unwrap().to_owned(), layer["reused"].as_bool().unwrap()));
        node.run(&["verify", &source]);
    }
    assert_eq!(top.iter().map(|(_, reused)| *reused).collect::<Vec<_>>(), [false, true, false]);
    assert!(top[0].0 == top[1].0 && top[0].0 != top[2].0);
    // A fourth that is like the third finds that one, though the other comes first.
    let image = Image::new(vec![base((0o2775, 50), "Devuan"), pip]);
    let source = image.write(&node.path("image3"), "pip.local/app:3");
    let report = node.convert(&source, &[]);
    assert_eq!(
        (&layers(&report)[1]["layer"], &layers(&report)[1]["reused"]),
        (&Value::from(&*top[2].0), &Value::from(true))
    );
    node.run(&["verify", &source]);
    assert!(listing(&node.path("store/refs/diff")).iter().filter(|(_, what)| what != "directory").count() == 5);
}

#[test]
fn a_profile_that_lays_nothing_out_is_said_to() {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("a", &noise(1, 5000))]), tar(&[("b", &noise(2, 5000))])]);
    let source = image.write(&node.path("image"), "profile.local/image:1");
    let list = |text: &str| {
        fs::write(node.path("list"), text).unwrap();
        node.path("list").to_str().unwrap().to_owned()
    };
    let said = |arguments: &[&str]| {
        let output = node.lamina(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let convert = |list: &str, more: &[&str]| said(&[&["convert", &source, "--profile", list], more].concat());
    assert!(convert(&list("# nothing\n"), &[]).contains("names no file"));
    assert!(convert(&list("a\n"), &[]).contains("had them all already; --again"));
    assert!(convert(&list("no/such\n"), &["--again"]).contains("none has a file that it names"));
    assert_eq!(convert(&list("a\n"), &["--again"]), "");
    // One layer more.
    let more = Image::new(vec![image.layers[0].clone(), image.layers[1].clone(), tar(&[("c", &noise(3, 5000))])]);
    let source = more.write(&node.path("more"), "profile.local/image:2");
    let told = said(&["convert", &source, "--profile", &list("c\n")]);
    assert!(told.contains("2 of 3 layers are not laid out by it"), "{told}");
    let told = said(&["inspect", "profile.local/image:2", "--profile"]);
    assert!(told.contains("no start of image:profile.local/image:2 was recorded"), "{told}");
    assert_eq!(node.run(&["inspect", "profile.local/image:2", "--profile"]), "");
}

#[test]
fn a_collapsed_stack_that_converting_again_drops_is_told_of() {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("a", &noise(1, 5000)), ("z", b"z")]), tar(&[("b", &noise(2, 5000))])]);
    let source = image.write(&node.path("image"), "collapsed.local/image:1");
    node.run(&["convert", &source, "--collapse", "1GiB"]);
    fs::write(node.path("list"), "z\n").unwrap();
    let list = node.path("list");
    let again = ["convert", &source, "--again", "--profile", list.to_str().unwrap()];
    let told = |arguments: &[&str]| String::from_utf8(node.lamina(arguments).stderr).unwrap();
    // The same layers keep it, others do not.
    assert_eq!(told(&again[..3]), "");
    assert_eq!(node.json(&["inspect", "collapsed.local/image:1"])["collapsed"].as_array().unwrap().len(), 1);
    assert!(told(&again).contains("is dropped: --collapse SIZE"), "{}", told(&again));
    assert!(node.json(&["inspect", "collapsed.local/image:1"])["collapsed"].is_null());
    assert_eq!(told(&[&again[..], &["--collapse", "1GiB"]].concat()), "");
    node.run(&["verify", &source]);
}
