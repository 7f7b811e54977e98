//! The images that comparisons run on, and programs that start in them.

use crate::{target, tiny};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An image, and a program that starts in it.
#[derive(Debug)]
pub struct Start {
    /// The image by its builder in tests/images.
    pub builder: &'static str,
    /// What the program does.
    pub task: &'static str,
    /// The program and its arguments.
    pub program: &'static [&'static str],
}

const fn start(builder: &'static str, task: &'static str, program: &'static [&'static str]) -> Start {
    Start { builder, task, program }
}

/// Programs of four kinds of images.
pub const STARTS: &[Start] = &[
    start("python-image", "import numpy, pandas", &["/usr/bin/python3", "-B", "-c", "import numpy, pandas"]),
    start("node-image", "load typescript", &["/usr/bin/node", "-e", "require('/usr/share/nodejs/typescript')"]),
    start("java-image", "compile C++", &["/usr/bin/g++", "-x", "c++", "-fsyntax-only", "/srv/app/main.cc"]),
    start(
        "java-image",
        "run Java",
        &["/usr/lib/jvm/java-17-openjdk-amd64/bin/java", "-Xshare:off", "/srv/app/Main.java"],
    ),
    start("torch-image", "import torch", &["/usr/bin/python3", "-B", "-c", "import torch"]),
];

/// The image that `tests/images/BUILDER` makes, as an OCI layout: made once, and kept in the target directory. In the test
/// pass a busybox image takes the place of every other.
pub fn image(builder: &str) -> PathBuf {
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let builder = if tiny() { "busybox-image" } else { builder };
    let kept = target().join("bench").join(builder);
    if !kept.exists() {
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        let work = tempfile::tempdir_in(kept.parent().unwrap()).unwrap();
        let made = work.path().join("image");
        let script = repo.join("tests/images").join(builder);
        let status = Command::new(script).arg(&made).arg(work.path().join("work")).stdout(Stdio::null()).status();
        assert!(status.unwrap().success());
        fs::rename(made, &kept).unwrap();
    }
    kept
}

/// Runs a program in a root directory, with /proc, /dev and /tmp as programs want them; in the test pass, busybox's `true`,
/// which wants nothing.
pub fn run_program(root: &Path, program: &[&str]) {
    const IN_ROOT: &str = r#"mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" &&
        exec chroot "$0" "$@""#;
    let (command, program): (&[&str], &[&str]) = match tiny() {
        true => (&["chroot"], &["/bin/busybox", "true"]),
        false => (&["unshare", "--mount", "sh", "-c", IN_ROOT], program),
    };
    let mut run = Command::new(command[0]);
    run.args(&command[1..]).arg(root).args(program).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(run.status().unwrap().success(), "{program:?}");
}

/// A command that runs a script with arguments.
pub fn shell(script: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    command
}

/// Runs a command, which must succeed.
pub fn succeed(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// Unpacks all layers of an image in one tree: links into /usr stay links.
pub fn unpack(layout: &Path, tree: &Path) {
    let document = |digest: &Value| -> Value {
        let path = layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
    let manifest = document(&index["manifests"][0]["digest"]);
    for layer in manifest["layers"].as_array().unwrap() {
        let blob = layout.join("blobs").join(layer["digest"].as_str().unwrap().replace(':', "/"));
        succeed(&mut shell(r#"tar -xpf "$1" -C "$2" --numeric-owner --keep-directory-symlink"#, &[&blob, tree]));
    }
}
