//! Collapsed stacks as the kernel shows them: equal to the plain ones in every name, attribute, link and byte, with fewer
//! mounts.

use containerd::snapshots::PrepareSnapshotRequest;
use containerd::snapshots::snapshots_client::SnapshotsClient;
use containerd::types::Mount;
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tests::image::{Image, digest, layer, layer_file};
use tests::node::Node;
use tests::tree::noise;

/// All that can be seen of a tree, but for link counts: overlayfs shows those of the layer, with names that are hidden.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut open, mut nodes) = (BTreeMap::new(), vec![root.to_owned()], BTreeMap::new());
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut what = format!(
            "{:o} {}:{} {}.{} {:x} {}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.rdev(),
            xattrs(&path)
        );
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_symlink() {
            what += &format!(" -> {}", fs::read_link(&path).unwrap().display());
        } else if meta.is_file() {
            what += &format!(" {} {}", meta.len(), digest(&fs::read(&path).unwrap()));
        }
        let name = path.strip_prefix(root).unwrap().to_owned();
        if !meta.is_dir() {
            nodes.entry((meta.dev(), meta.ino())).or_insert_with(Vec::new).push(name.clone());
        }
        found.insert(name, what);
    }
    for mut names in nodes.into_values().filter(|names| names.len() > 1) {
        names.sort();
        names.iter().for_each(|name| found.get_mut(name).unwrap().push_str(&format!(" is {}", names[0].display())));
    }
    found
}

fn xattrs(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut shown: Vec<String> = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        shown.push(format!("{}={:?}", name.escape_ascii(), &value[..length]));
    }
    shown.sort();
    shown.join(",")
}

fn strings(value: &serde_json::Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// Converts an image with --collapse, mounts both stacks, and compares what they show; gives how many layers the collapsed
/// one has.
fn compare(node: &Node, name: &str, layers: Vec<Vec<u8>>, size: &str) -> usize {
    let count = layers.len();
    let reference = format!("{name}.local/image:1");
    let source = Image::new(layers).write(&node.path(name), &reference);
    let report = node.convert(&source, &["--collapse", size]);
    let report = &report["images"][0];
    let plain: Vec<String> = report["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| format!("layer:{}", l["layer"].as_str().unwrap()))
        .collect();
    let (one, two) = (node.new_dir(&format!("{name}-plain")), node.new_dir(&format!("{name}-collapsed")));
    let mut arguments: Vec<&str> = vec!["mount"];
    arguments.extend(plain.iter().map(String::as_str));
    arguments.push(one.to_str().unwrap());
    node.run(&arguments);
    let mounted = node.json(&["mount", &reference, two.to_str().unwrap()]);
    let stack = strings(&report["collapsed"]["stack"]);
    assert_eq!(strings(&mounted["layers"]), stack);
    let status = node.status().unwrap();
    let target = two.canonicalize().unwrap();
    let mounts = status["mounts"].as_array().unwrap();
    // A stack of one layer is a mount of that, too.
    let mut told = mounts.iter().filter(|m| m["kind"] == "stack" && m["target"] == target.to_str().unwrap());
    assert_eq!(strings(&told.next().unwrap()["layers"]), stack);
    let (plain, collapsed) = (seen(&one), seen(&two));
    for name in plain.keys().chain(collapsed.keys()) {
        assert_eq!(plain.get(name), collapsed.get(name), "{}", name.display());
    }
    assert!(plain.len() > 1 && stack.len() < count, "{} names, {} layers of {count}", plain.len(), stack.len());
    node.run(&["umount", one.to_str().unwrap()]);
    assert_eq!(node.json(&["umount", two.to_str().unwrap()])["unmounted"], target.to_str().unwrap());
    stack.len()
}

#[test]
fn both_stacks_show_the_same_to_the_last_attribute() {
    if !tests::possible("collapsed stacks") {
        return;
    }
    let mut node = Node::default();
    node.start_daemon();
    let layers: &[&[&str]] = &[
        &[
            "bin/:1",
            "bin/a:2",
            "bin/b = bin/a",
            "bin/c = bin/a",
            "lib -> bin",
            "d/:3",
            "d/x:4",
            "d/y:5",
            "t/f:6",
            "gone:7",
        ],
        &["bin/b:8", "d/.wh.x", "t:9", ".wh.gone", "o/:10", "o/p:11"],
        &["t/:12", "t/g:13", "d/.wh..wh..opq", "d/z:14", "o/q = o/p", "bin/d = bin/c"],
        &[".wh.o", "o/r:15", "lib/:16", "gone/again:17", "d/.wh.z"],
        &["d/x:18", "bin/.wh.a", "big:20000019"],
        &["big2:20000019", "t/.wh.g", "gone/.wh.again"],
    ];
    let tars = || layers.iter().map(|entries| layer(entries)).collect::<Vec<_>>();
    assert_eq!(compare(&node, "all", tars(), "1GiB"), 1);
    // In groups, with whiteouts over what remains below.
    let some = compare(&node, "some", tars().into_iter().chain([layer(&["last:21"])]).collect(), "30kB");
    assert!((2..7).contains(&some), "{some} layers");
    // Over a base image that has its own.
    compare(&node, "base", tars()[..2].to_vec(), "1GiB");
    assert_eq!(
        compare(&node, "over", tars()[..2].iter().cloned().chain(tars()[3..].iter().cloned()).collect(), "1GiB"),
        2
    );
}

#[test]
fn random_stacks_show_the_same_collapsed() {
    if !tests::possible("random collapsed stacks") {
        return;
    }
    let mut node = Node::default();
    node.start_daemon();
    let mut bytes = noise(11, 1 << 16).into_iter();
    let mut random = move |below: usize| usize::from(bytes.next().unwrap()) % below;
    let paths = ["a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/b/c"];
    for round in 0..6 {
        let mut owner = 0;
        let layers = (0..12).map(|_| {
            let mut entries: Vec<String> = Vec::new();
            for _ in 0..random(6) + 2 {
                let path = paths[random(paths.len())];
                owner += 1;
                let (parent, name) = path.rsplit_once('/').map_or((String::new(), path), |(p, n)| (format!("{p}/"), n));
                entries.push(match random(6) {
                    0 => format!("{parent}.wh.{name}"),
                    1 if !parent.is_empty() => format!("{parent}.wh..wh..opq"),
                    2 => format!("{path}/:{owner}"),
                    3 => format!("{parent}link -> {name}:{owner}"),
                    _ => format!("{path}:{owner}"),
                });
            }
            entries.push(format!("always:{owner}"));
            layer(&entries.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let size = ["200kB", "500kB", "1GiB"][round % 3];
        compare(&node, &format!("random{round}"), layers.collect(), size);
    }
}

async fn prepare(node: &Node, key: &str, parent: &str, chain: Option<&str>) -> Result<Vec<Mount>, tonic::Status> {
    let mut client = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    let label = |chain: &str| ("containerd.io/snapshot.ref".to_owned(), chain.to_owned());
    let labels: HashMap<String, String> = chain.map(label).into_iter().collect();
    let request =
        PrepareSnapshotRequest { snapshotter: "lamina".into(), key: key.into(), parent: parent.into(), labels };
    Ok(client.prepare(request).await?.into_inner().mounts)
}

/// Commits every chain of an image, as containerd does when it unpacks, and prepares a container; gives how many lower
/// directories its mount has.
async fn start(node: &Node, image: &Image) -> usize {
    let mut parent = String::new();
    for chain in image.chain_ids() {
        let answer = prepare(node, &format!("default/1/extract-1 {chain}"), &parent, Some(&chain)).await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::AlreadyExists, "{chain} is lazy");
        parent = chain;
    }
    let mounts = prepare(node, "default/2/c1", &parent, None).await.unwrap();
    let lowers = mounts[0].options.iter().find_map(|option| option.strip_prefix("lowerdir=")).unwrap();
    let top = Path::new(lowers.split(':').next().unwrap());
    assert_eq!(fs::read_to_string(top.join("shared")).unwrap(), image.layers.len().to_string());
    lowers.split(':').count()
}

/// An image in which every layer has a file of its own and one that all have.
fn deep(count: usize) -> Image {
    let layer = |n: usize| {
        let (own, content) = (format!("d/{n}"), (n + 1).to_string());
        tests::image::tar(&[(own.as_str(), content.as_bytes()), ("shared", content.as_bytes())])
    };
    Image::new((0..count).map(layer).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_a_hundred_layers_starts_on_one_mount() {
    if !tests::possible("a collapsed image under containerd's API") {
        return;
    }
    let mut node = Node::default();
    let image = deep(100);
    node.convert(&image.write(&node.path("image"), "deep.local/image:1"), &["--collapse", "3GiB"]);
    let inspected = node.json(&["inspect", "deep.local/image:1"]);
    let count = |stack: &str| inspected[stack].as_array().unwrap().len();
    assert_eq!((count("layers"), count("collapsed")), (100, 1));
    assert!(node.run(&["verify", "deep.local/image:1"]).contains("101 layers"));
    node.start_daemon();
    node.start_snapshotter();
    assert_eq!(start(&node, &image).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collapsed_layer_that_is_damaged_or_revoked_costs_mounts_and_nothing_else() {
    if !tests::possible("a damaged collapsed layer") {
        return;
    }
    for damage in ["cut", "revoked"] {
        let mut node = Node::default();
        let image = deep(4);
        let report =
            node.json(&["convert", &image.write(&node.path("image"), "deep.local/image:1"), "--collapse", "3GiB"]);
        let id = strings(&report["images"][0]["collapsed"]["stack"]).remove(0);
        let file = layer_file(&node.path("store"), &id);
        match damage {
            "cut" => fs::File::options().write(true).open(file).unwrap().set_len(100).unwrap(),
            _ => {
                let folder = node.new_dir("store/revoked");
                rustix::fs::open(folder.join(&id), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            }
        }
        node.start_daemon();
        node.start_snapshotter();
        assert_eq!(start(&node, &image).await, 4, "{damage}");
    }
}

#[test]
fn collapsing_is_for_images_and_sizes_have_units() {
    let node = Node::default();
    let tree = node.new_dir("tree");
    let error =
        node.fail(2, &["convert", &format!("dir:{}", tree.display()), "--tag", "base/x:1", "--collapse", "1GiB"]);
    assert!(error.contains("--collapse is for images"), "{error}");
    assert!(node.fail(2, &["convert", "oci:x", "--collapse", "many"]).contains("3GiB"));
}
