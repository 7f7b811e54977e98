//! What comparisons share: the report, Lamina as a contender, and the images.

// Benchmarks fail by panicking, and print.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

pub mod away;
pub mod images;
pub mod lazy;
pub mod process;
mod report;
pub mod resident;

pub use report::{Report, Row, median};

use std::fs;
use std::path::PathBuf;

/// The build's target directory.
pub fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// Whether this is the test pass, which wants to see it work and not how fast: `cargo bench` says `--bench`.
pub fn tiny() -> bool {
    !std::env::args().any(|a| a == "--bench")
}

/// Drops clean pages, directory entries and inodes: the next reads are cold.
pub fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}
