//! A pushed image: without lamina, containerd 2.4's own EROFS snapshotter runs our layers and Debian's containerd the original;
//! with our snapshotter the same layers are lazy.
//!
//! LAMINA_CONTAINERD24 is a directory with containerd 2.4, its shim and ctr; `./test` builds them.

// Tests fail by panicking.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tests::containerd::{Containerd, Setup, shown};
use tests::image::Image;
use tests::node::Node;
use tests::registry::{Options, Registry};

/// What the containers print: what a merged tree shows, and what it hides.
const SHOW: &str = "cat /etc/who; ls -a /opaque /mixed; stat -c '%a %u:%g' /mixed/kept /opaque; cat /link";

const SHOWN: &str = "top\n/mixed:\n.\n..\nadded\nkept\n\n/opaque:\n.\n..\nnew\n640 7:8\n750 0:0\nlinked\n";

enum Entry<'a> {
    Directory(&'a str, u32),
    File(&'a str, u32, &'a [u8]),
    Link(&'a str, &'a str),
}

fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mtime(1_700_000_000);
        match entry {
            Entry::Directory(name, mode) => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(*mode);
                header.set_size(0);
                builder.append_data(&mut header, name, &[][..]).unwrap();
            }
            Entry::File(name, mode, content) => {
                header.set_mode(*mode);
                header.set_uid(7);
                header.set_gid(8);
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, name, *content).unwrap();
            }
            Entry::Link(name, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, name, target).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

/// An image of three layers that hide, replace and add; pushed. Its name, and the registry.
fn pushed(test: &str, node: &Node) -> Option<(Registry, String)> {
    let registry = Registry::start(test, &Options::default())?;
    let busybox = fs::read("/bin/busybox").unwrap();
    let base = tar(&[
        Entry::Directory("bin", 0o755),
        Entry::File("bin/busybox", 0o755, &busybox),
        Entry::Link("bin/sh", "busybox"),
        Entry::Directory("etc", 0o755),
        Entry::File("etc/who", 0o644, b"base\n"),
        Entry::Directory("mixed", 0o755),
        Entry::File("mixed/kept", 0o640, b"kept"),
        Entry::File("mixed/gone", 0o644, b"gone"),
        Entry::Directory("opaque", 0o755),
        Entry::File("opaque/old", 0o644, b"old"),
    ]);
    let middle = tar(&[
        Entry::File("mixed/.wh.gone", 0o644, b""),
        Entry::File("mixed/added", 0o644, b"added"),
        Entry::Directory("opaque", 0o750),
        Entry::File("opaque/.wh..wh..opq", 0o644, b""),
        Entry::File("opaque/new", 0o644, b"new"),
    ]);
    let top = tar(&[
        Entry::File("etc/who", 0o644, b"top\n"),
        Entry::File("linked", 0o644, b"linked\n"),
        Entry::Link("link", "linked"),
    ]);
    let layout = node.path("layout");
    let source = Image::new(vec![base, middle, top]).write(&layout, "1");
    let image = registry.image("team/app:1");
    node.run(&["convert", &source, "--push", &image]);
    Some((registry, image))
}

fn script(show: &str) -> String {
    // busybox's applets by name, without links in the image.
    let applets = ["cat", "ls", "stat"].map(|name| format!("{name}() {{ /bin/busybox {name} \"$@\"; }}; "));
    shown(&(applets.concat() + show))
}

/// A `mkfs.erofs` that is new enough for containerd to load its differ, and makes nothing.
fn tools(node: &Node) -> PathBuf {
    let tools = node.new_dir("tools");
    let program = tools.join("mkfs.erofs");
    fs::write(&program, "#!/bin/sh\n[ \"$1\" = --help ] && echo ' --tar=X' && exit 0\nexit 1\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    tools
}

/// Where containerd 2.4 is; says aloud when it is nowhere.
fn containerd24(test: &str) -> Option<PathBuf> {
    let found = std::env::var_os("LAMINA_CONTAINERD24").map(PathBuf::from).filter(|path| path.exists());
    if found.is_none() {
        tests::skipped(test, "LAMINA_CONTAINERD24 (./test sets it)");
    }
    found
}

#[test]
fn containerds_own_erofs_snapshotter_runs_our_layers() {
    const TEST: &str = "containerd's EROFS snapshotter";
    if !tests::possible(TEST) {
        return;
    }
    let Some(programs) = containerd24(TEST) else { return };
    let node = Node::default();
    let Some((registry, _)) = pushed(TEST, &node) else { return };
    let (name, tools) = ("new", tools(&node));
    let setup = Setup { name, programs: &programs, tools: &tools, version: 2, more: "" };
    let containerd = Containerd::start(&node, &setup);
    // By its digest: for this platform, 2.4 pulls the original too, and converts it with mkfs.erofs.
    let index: serde_json::Value = serde_json::from_slice(&registry.get("/v2/team/app/manifests/1")).unwrap();
    let digest = |number: usize| index["manifests"][number]["digest"].as_str().unwrap().to_owned();
    let (platform, ours) = ("linux(+erofs)/amd64", registry.image(&format!("team/app@{}", digest(1))));
    containerd.run(&["images", "pull", "--plain-http", "--platform", platform, &ours]);
    let run = ["run", "--rm", "--snapshotter", "erofs", "--platform", platform, &ours, "eager", "/bin/sh", "-c"];
    assert_eq!(containerd.show(&[&run[..], &[&script(SHOW)]].concat()), SHOWN);
    // The original's layers were not even fetched.
    let original = registry.get(&format!("/v2/team/app/manifests/{}", digest(0)));
    let original: serde_json::Value = serde_json::from_slice(&original).unwrap();
    let content = containerd.run(&["content", "ls"]);
    assert!(!content.contains(original["layers"][0]["digest"].as_str().unwrap()), "{content}");
    containerd.run(&["images", "rm", "--sync", &ours]);
}

#[test]
fn our_snapshotter_makes_the_pushed_manifest_lazy() {
    const TEST: &str = "a pushed manifest with our snapshotter";
    if !tests::possible(TEST) {
        return;
    }
    let Some(programs) = containerd24(TEST) else { return };
    let mut node = Node::default();
    let Some((registry, _)) = pushed(TEST, &node) else { return };
    node.start_daemon();
    node.start_snapshotter();
    let more = format!(
        "[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\nplatform = 'linux(+erofs)/amd64'\n\
         snapshotter = 'lamina'\ndiffer = 'walking'\n[proxy_plugins.lamina]\ntype = 'snapshot'\naddress = '{}'\n",
        node.path("sn.sock").display()
    );
    let (name, tools) = ("lazy", tools(&node));
    let setup = Setup { name, programs: &programs, tools: &tools, version: 3, more: &more };
    let containerd = Containerd::start(&node, &setup);
    let index: serde_json::Value = serde_json::from_slice(&registry.get("/v2/team/app/manifests/1")).unwrap();
    let ours = registry.image(&format!("team/app@{}", index["manifests"][1]["digest"].as_str().unwrap()));
    let choice = ["--snapshotter", "lamina", "--platform", "linux(+erofs)/amd64", &ours];
    containerd.run(&[&["images", "pull", "--plain-http"], &choice[..]].concat());
    // The manifest and the config, and no layer.
    assert_eq!(containerd.run(&["content", "ls", "--quiet"]).lines().count(), 2);
    let shown = containerd.show(&[&["run", "--rm"], &choice[..], &["lazy", "/bin/sh", "-c", &script(SHOW)]].concat());
    assert_eq!(shown, SHOWN);
    containerd.run(&["images", "rm", "--sync", &ours]);
}

#[test]
fn debians_containerd_runs_the_original() {
    const TEST: &str = "Debian's containerd";
    if !tests::possible(TEST) {
        return;
    }
    let programs = Path::new("/usr/bin");
    if !programs.join("containerd").exists() {
        tests::skipped(TEST, "/usr/bin/containerd");
        return;
    }
    let node = Node::default();
    let Some((_registry, image)) = pushed(TEST, &node) else { return };
    let (name, tools) = ("old", tools(&node));
    let containerd = Containerd::start(&node, &Setup { name, programs, tools: &tools, version: 2, more: "" });
    containerd.run(&["images", "pull", "--plain-http", &image]);
    let run = ["run", "--rm", &image, "original", "/bin/sh", "-c"];
    assert_eq!(containerd.show(&[&run[..], &[&script(SHOW)]].concat()), SHOWN);
    containerd.run(&["images", "rm", "--sync", &image]);
}
