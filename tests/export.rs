//! `lamina export` as people type it: pipes, what it chooses by itself, exit statuses.

use std::fs;
use std::process::{Command, Stdio};
use tests::image::{Image, layer_file, tar};
use tests::node::{Node, program};
use tests::tree::{listing, noise, write};

/// A node with a tag of one layer, and its tree.
fn node() -> Node {
    let node = Node::default();
    let tree = node.new_dir("tree");
    write(&tree.join("big"), noise(1, 600_000));
    write(&tree.join("d/small"), "small");
    node.convert_dir(&tree, "base/one:1");
    node
}

#[test]
fn a_tar_through_a_pipe_is_the_same_layer_again() {
    let node = node();
    let mut export = Command::new(program("lamina"))
        .arg("--config")
        .arg(node.config())
        .args(["export", "base/one:1", "--format", "tar"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let convert = Command::new(program("lamina"))
        .arg("--config")
        .arg(node.config())
        .args(["convert", "tar:-", "--tag", "base/two:1"])
        .stdin(export.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(export.wait().unwrap().success() && convert.status.success(), "{convert:?}");
    let layer = |tag: &str| node.json(&["inspect", tag])["layers"][0]["layer"].clone();
    assert_eq!(layer("base/one:1"), layer("base/two:1"));
}

#[test]
fn the_form_is_chosen_by_the_output_and_a_layer_file_is_enough() {
    let node = node();
    let out = |name: &str| node.path(name).display().to_string();
    let report = node.json(&["export", "base/one:1", "--output", &out("x.tar")]);
    assert_eq!((report["layers"].as_u64(), report["names"].as_u64()), (Some(1), Some(4)), "{report}");
    assert_eq!(report["bytes_out"].as_u64().unwrap(), fs::metadata(node.path("x.tar")).unwrap().len());
    let id = node.json(&["inspect", "base/one:1"])["layers"][0]["layer"].as_str().unwrap().to_owned();
    let file = format!("file:{}", layer_file(&node.path("store"), &id).display());
    node.run(&["export", &file, "-o", &out("y.tar")]);
    assert!(fs::read(node.path("x.tar")).unwrap() == fs::read(node.path("y.tar")).unwrap());
    node.run(&["export", "base/one:1", "-o", &out("image")]);
    assert_eq!(fs::read(node.path("image")).unwrap()[1024..1028], 0xE0F5_E1E2_u32.to_le_bytes());
    if rustix::process::geteuid().is_root() {
        node.run(&["export", "base/one:1", "-o", &format!("{}/", out("directory"))]);
        assert!(listing(&node.path("directory")) == listing(&node.path("tree")));
    } else {
        tests::skipped("an export into a directory", "root");
    }
}

#[test]
fn what_an_export_cannot_do_is_said_by_text_and_status() {
    let node = node();
    assert!(node.fail(2, &["export", "base/one:1", "--json"]).contains("--output"));
    assert!(node.fail(2, &["export", "base/one:1", "--format", "erofs"]).contains("--output"));
    assert!(node.fail(1, &["export", "base/none:1"]).contains("base/none:1"));
    let (tree, out) = (node.path("tree"), node.path("x"));
    if rustix::process::geteuid().is_root() {
        assert!(node.fail(1, &["export", "base/one:1", "-o", tree.to_str().unwrap()]).contains("not empty"));
    }
    // A flipped bit in the data: nothing of it gets out.
    let id = node.json(&["inspect", "base/one:1"])["layers"][0]["layer"].as_str().unwrap().to_owned();
    let file = layer_file(&node.path("store"), &id);
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    for format in ["tar", "erofs"] {
        let error = node.fail(3, &["export", "base/one:1", "--format", format, "-o", out.to_str().unwrap()]);
        assert!(error.contains("BLAKE3") && error.contains(&id), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn verify_lists_each_difference_with_both_values() {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"first")]), tar(&[("b", b"second")])]);
    let source = image.write(&node.path("image"), "judged.local/image:1");
    node.convert(&source, &[]);
    // The tag that stands for a directory is given to another tree.
    let tree = node.new_dir("tree");
    write(&tree.join("name"), "one");
    node.convert_dir(&tree, "base/tree:1");
    write(&tree.join("name"), "changed");
    write(&tree.join("more"), "");
    let verify = ["verify", &format!("dir:{}", tree.display()), "--tag", "base/tree:1"];
    let output = node.lamina(&verify);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["/name: type is a file of 3 bytes", "a file of 7 bytes", "/more: is missing in the store"] {
        assert!(text.contains(part), "{text}");
    }
}
