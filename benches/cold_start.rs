//! Cold `import numpy`, and a cold read of the whole tree: Lamina from a directory store with added latency, against the same
//! tree on ext4 and on a kernel EROFS image, both wholly local.
//!
//! The image is the quickstart's. Every run of a contender begins cold: caches dropped, and for Lamina a new cache directory
//! and a new daemon. In the test pass a busybox image takes its place and each contender runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{image, run_program};
use benches::lazy::{Contender, Ext4, Lamina, compare};
use benches::{Report, drop_caches, tiny};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

const ROUNDS: usize = 7;
/// Threads of the parallel tree read.
const THREADS: usize = 16;

/// What is timed on a mounted tree.
#[derive(Clone, Copy, PartialEq)]
enum Task {
    /// A program of the image is run in it.
    Program,
    /// Every file is read, by so many threads.
    Tree(usize),
}

impl Task {
    fn name(self) -> String {
        match self {
            Self::Program if tiny() => "busybox true".to_owned(),
            Self::Program => "import numpy".to_owned(),
            Self::Tree(threads) => format!("whole tree, {threads} threads"),
        }
    }

    fn run(self, root: &Path) {
        match self {
            Self::Program => run_program(root, &["/usr/bin/python3", "-B", "-c", "import numpy"]),
            Self::Tree(threads) => read_tree(root, threads),
        }
    }
}

fn files(at: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(&entry.path(), out);
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
}

fn read_tree(root: &Path, threads: usize) {
    let mut found = Vec::new();
    files(root, &mut found);
    let queue = Mutex::new(found.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; 1 << 20];
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some(path) = next else { return };
                    let mut file = File::open(path).unwrap();
                    while file.read(&mut buffer).unwrap() > 0 {}
                }
            });
        }
    });
}

struct KernelErofs {
    image: PathBuf,
    mount: PathBuf,
    kind: &'static str,
}

impl Contender for KernelErofs {
    fn name(&self) -> String {
        format!("EROFS of the kernel, {}, local", self.kind)
    }

    fn begin(&mut self) -> PathBuf {
        let mounted =
            Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).arg(&self.image).arg(&self.mount).status();
        assert!(mounted.unwrap().success());
        drop_caches();
        self.mount.clone()
    }

    fn end(&mut self) -> Vec<(String, f64)> {
        assert!(Command::new("umount").arg(&self.mount).status().unwrap().success());
        Vec::new()
    }
}

fn lamina(image: &Path, latency: &str) -> Lamina {
    Lamina::new(format!("Lamina, nothing local, {latency} away"), image, &[], latency)
}

fn kernel_image(tree: &Path, work: &Path, kind: &'static str, options: &[&str]) -> KernelErofs {
    let image = work.join(format!("{kind}.erofs"));
    let made = Command::new("mkfs.erofs").args(options).arg(&image).arg(tree).stdout(Stdio::null()).status();
    assert!(made.expect("mkfs.erofs: apt-get install erofs-utils").success());
    let mount = work.join(format!("{kind}.mnt"));
    fs::create_dir(&mount).unwrap();
    KernelErofs { image, mount, kind }
}

fn main() {
    if !tests::possible("cold_start") {
        return;
    }
    let image = image("python-image");
    // On the disk that holds the clone, not on what /tmp may be.
    let work = tempfile::tempdir_in(image.parent().unwrap()).unwrap();
    let mut near = lamina(&image, "0s");
    let local = Ext4::copied(&mut near, &work.path().join("tree"));
    let tree = local.0.clone();
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(local),
        Box::new(kernel_image(&tree, work.path(), "plain", &[])),
        Box::new(kernel_image(&tree, work.path(), "lz4hc", &["-zlz4hc"])),
        Box::new(near),
        Box::new(lamina(&image, "5ms")),
    ];
    let rounds = if tiny() { 1 } else { ROUNDS };
    let mut report = Report::new("cold_start", "ext4, local");
    for task in [Task::Program, Task::Tree(1), Task::Tree(THREADS)] {
        // A whole tree takes long enough that fewer rounds say as much.
        let rounds = if task == Task::Program { rounds } else { rounds.div_ceil(2) };
        compare(&mut report, &task.name(), &mut contenders, rounds, |root| task.run(root));
    }
    report.finish();
}
