//! What the whole-system tests share: a node in a directory of its own, images, trees.
//!
//! Tests run the built programs, never their insides. They need root, /dev/fuse and EROFS; where one is missing they say
//! aloud that they are skipped.

// Tests fail by panicking.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

pub mod containerd;
pub mod faults;
pub mod front;
pub mod image;
pub mod node;
pub mod registry;
pub mod s3;
pub mod tls;
pub mod tree;
pub mod web;
pub mod wire;

/// Whether this machine can run whole-system tests; says aloud when it cannot.
pub fn possible(test: &str) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !std::path::Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else if !std::fs::read_to_string("/proc/filesystems").unwrap().contains("erofs") && !modprobe("erofs") {
        "a kernel with EROFS"
    } else {
        return true;
    };
    skipped(test, missing);
    false
}

/// Whether the kernel is recent enough for a test; says aloud when it is not.
pub fn linux(test: &str, least: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let recent = (numbers.next().unwrap(), numbers.next().unwrap()) >= least;
    if !recent {
        skipped(test, &format!("Linux {}.{}", least.0, least.1));
    }
    recent
}

/// Says aloud that a test does not run here, and why.
pub fn skipped(test: &str, missing: &str) {
    println!("SKIPPED: {test} needs {missing}");
}

fn modprobe(name: &str) -> bool {
    std::process::Command::new("modprobe").arg(name).status().is_ok_and(|s| s.success())
}
