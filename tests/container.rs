//! A container of a collapsed image under Debian's containerd: on fewer mounts it sees, and can change, the same tree.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tests::containerd::{Containerd, Setup, shown};
use tests::image::{Image, layer};
use tests::node::Node;

const NAME: &str = "deep.local/image:1";

/// What lies over what: names that are hidden, replaced, linked and made again.
const LAYERS: &[&[&str]] = &[
    &["d/:3", "d/x:4", "d/y:5", "t/f:6", "gone:7", "many/a:8", "many/b = many/a", "many/c = many/a", "lib -> d"],
    &["d/.wh.x", "t:9", ".wh.gone", "o/:10", "o/p:11", "many/b:12"],
    &["t/:13", "t/g:14", "d/.wh..wh..opq", "d/z:15", "o/q = o/p"],
    &[".wh.o", "lib/:16", "gone/again:17", "big:20000019"],
    &["d/x:18", "t/.wh.g", "many/.wh.a", "gone/.wh.again", "big2:20000019"],
];

/// Everything that a container can see of its files, but for times, numbers of inodes, and what directories take.
const LIST: &str = "find / -xdev -type d -exec stat -c '%n %F %a %u:%g' {} + | sort; \
    find / -xdev ! -type d -exec stat -c '%n %F %a %u:%g %s %N' {} + | sort; \
    find / -xdev -type f -exec sha256sum {} + | sort -k 2; [ /many/c -ef /many/a ]; echo same $?";

/// Changes of all kinds: what is below is hidden, covered, copied up, renamed, and made anew.
const CHANGE: &str = "set -e; echo new >/d/new; rm /d/z; echo more >>/d/x; rm -r /t; mkdir /t; echo fresh >/t/fresh; \
    mv /big /moved; rm /big2; mkdir /big2; ln /many/c /many/d; chmod 600 /many/c; mkdir /o; echo o >/o/o; rm -r /lib; set +e";

/// busybox by the names that it is called by here, and what is done in the container.
fn base() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o755);
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    // Where containers have mounts: made by the runtime, they would change the root's time.
    for name in ["bin/", "dev/", "proc/", "run/", "sys/"] {
        builder.append_data(&mut header.clone(), name, &[][..]).unwrap();
    }
    // But of what is mounted there.
    let times = "find / -xdev -exec stat -c '%n %Y' {} + | grep -v '^/\\(dev\\|proc\\|run\\|sys\\) ' | sort";
    let script = shown(&format!("{times}; echo ----; {LIST}; echo ----; {CHANGE}; {LIST}")).into_bytes();
    header.set_entry_type(tar::EntryType::Regular);
    for (name, content) in [("bin/busybox", fs::read("/bin/busybox").unwrap()), ("script", script)] {
        header.set_size(content.len() as u64);
        builder.append_data(&mut header.clone(), name, &content[..]).unwrap();
    }
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    for name in ["sh", "find", "grep", "stat", "sort", "sha256sum", "rm", "mkdir", "mv", "ln", "chmod"] {
        builder.append_link(&mut header.clone(), format!("bin/{name}"), "busybox").unwrap();
    }
    builder.into_inner().unwrap()
}

/// A container of the image: what it showed, where its mounts came from, and what its writing left.
struct Seen {
    before: String,
    after: String,
    /// Directories below its own.
    lower: usize,
    /// Layers that the node had mounted.
    mounted: usize,
    /// Names in its own directory, and whether they are whiteouts.
    upper: HashMap<PathBuf, bool>,
    /// Times of the image's files and directories, before it wrote.
    times: String,
}

fn run(options: &[&str]) -> Seen {
    let mut node = Node::default();
    let layers = [base()].into_iter().chain(LAYERS.iter().map(|entries| layer(entries))).collect();
    let source = Image::new(layers).write(&node.path("image"), NAME);
    node.convert(&source, options);
    node.start_daemon();
    node.start_snapshotter();
    let more =
        format!("[proxy_plugins.lamina]\ntype = \"snapshot\"\naddress = \"{}\"\n", node.path("sn.sock").display());
    let programs = Path::new("/usr/bin");
    let name = if options.is_empty() { "plain" } else { "collapsed" };
    let setup = Setup { name, programs, tools: &node.new_dir("tools"), version: 2, more: &more };
    let containerd = Containerd::start(&node, &setup);
    containerd.pull(&node, NAME);
    containerd.run(&["containers", "create", "--snapshotter", "lamina", NAME, "one", "/bin/sh", "/script"]);
    let mounts = containerd.run(&["snapshots", "--snapshotter", "lamina", "mounts", "/x", "one"]);
    let mounted = node.status().unwrap()["mounts"].as_array().unwrap().len();
    let shown = containerd.show(&["tasks", "start", "one"]);
    let mut parts = shown.split("----\n").map(str::to_owned);
    let (times, before, after) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let option = |name: &str| {
        let value = mounts.split([',', ' ']).find_map(|word| word.strip_prefix(name)).unwrap();
        value.trim().to_owned()
    };
    let upper = whiteouts(Path::new(&option("upperdir=")));
    let lower = option("lowerdir=").split(':').count();
    containerd.run(&["containers", "rm", "one"]);
    containerd.run(&["images", "rm", "--sync", NAME]);
    Seen { before, after, lower, mounted, upper, times }
}

fn whiteouts(root: &Path) -> HashMap<PathBuf, bool> {
    let (mut found, mut open) = (HashMap::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            found.insert(
                path.strip_prefix(root).unwrap().to_owned(),
                meta.file_type().is_char_device() && meta.rdev() == 0,
            );
            if meta.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

#[test]
fn a_container_of_a_collapsed_image_sees_and_changes_the_same_tree_on_fewer_mounts() {
    const TEST: &str = "a container of a collapsed image";
    if !tests::possible(TEST) {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) || !Path::new("/usr/bin/containerd").exists() {
        return tests::skipped(TEST, "/usr/bin/containerd, and amd64");
    }
    let (plain, collapsed) = (run(&[]), run(&["--collapse", "1GiB"]));
    assert_eq!((plain.lower, collapsed.lower), (6, 1));
    assert_eq!((plain.mounted, collapsed.mounted), (6, 1));
    for (one, other) in [(&plain.before, &collapsed.before), (&plain.times, &collapsed.times)] {
        assert!(one.lines().count() > 20, "{one}");
        one.lines().zip(other.lines()).for_each(|(one, other)| assert_eq!(one, other));
        assert_eq!(one.lines().count(), other.lines().count());
    }
    // What lower layers had and higher ones hid is not there; what came again is.
    let shows = |listing: &str, name: &str| listing.lines().any(|line| line.starts_with(&format!("{name} ")));
    for (name, there) in [("/o", false), ("/d/y", false), ("/gone/again", false), ("/d/x", true), ("/gone", true)] {
        assert_eq!(shows(&collapsed.before, name), there, "{name}: {}", collapsed.before);
    }
    assert_eq!(plain.after, collapsed.after);
    for (name, there) in [("/d/z", false), ("/d/new", true), ("/moved", true), ("/big2", true), ("/lib", false)] {
        assert_eq!(shows(&collapsed.after, name), there, "{name}: {}", collapsed.after);
    }
    // Its own directory hides what the layer has by whiteouts.
    for name in ["d/z", "big", "lib"] {
        assert_eq!(collapsed.upper.get(Path::new(name)), Some(&true), "{name}: {:?}", collapsed.upper);
    }
    assert_eq!(plain.upper, collapsed.upper);
}
