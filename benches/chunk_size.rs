//! The chunk size by evidence: for images of four kinds and chunks of 64 KiB to 4 MiB, what the image takes in the store, and
//! what a cold start of its program fetches and waits, from a store that is 5 ms away.
//!
//! Small chunks fetch little that is not read, large ones compress better and need fewer requests. Each chunk is a request of
//! its own here, and nothing is fetched ahead: that would hide what a size costs. The images are those of
//! tests/images; the program of each reads a part of it. Every run begins with a new cache, a new daemon and cold kernel
//! caches; in each round every size runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{STARTS, Start, image, run_program};
use benches::lazy::{Contender, Lamina, NOTHING_AHEAD, compare};
use benches::{Report, tiny};

const ROUNDS: usize = 3;
const KIB: &[usize] = &[64, 128, 256, 512, 1024, 2048, 4096];
const DEFAULT: &str = "512 KiB";

fn main() {
    if !tests::possible("chunk_size") {
        return;
    }
    let mut report = Report::new("chunk_size", DEFAULT);
    // One start is enough to see it work.
    for Start { builder, task, program } in if tiny() { &STARTS[..1] } else { STARTS } {
        let layout = image(builder);
        let contender = |kib: &usize| -> Box<dyn Contender> {
            let options = ["--chunk-size", &(kib << 10).to_string()];
            Box::new(Lamina::with_fetch(format!("{kib} KiB"), &layout, &options, "5ms", NOTHING_AHEAD))
        };
        let mut contenders: Vec<_> = if tiny() { &KIB[2..4] } else { KIB }.iter().map(contender).collect();
        compare(&mut report, task, &mut contenders, if tiny() { 1 } else { ROUNDS }, |root| run_program(root, program));
    }
    report.finish();
}
