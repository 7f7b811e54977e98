//! The chunk size by evidence: for images of four kinds and chunks of 64 KiB to 4 MiB, what the image takes in the store, and
//! what a cold start of its program fetches and waits, from a store that is 5 ms away.
//!
//! Small chunks fetch little that is not read, large ones compress better and need fewer requests. The images are those of
//! tests/images; the program of each reads a part of it. Every run begins with a new cache, a new daemon and cold kernel
//! caches; in each round every size runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{STARTS, Start, image, run_program};
use benches::lazy::{Contender, Lamina};
use benches::{Report, Row, median, tiny};
use std::time::Instant;

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
        let sizes = if tiny() { &KIB[2..4] } else { KIB };
        let contender = |kib: &usize| {
            Lamina::new(format!("{kib} KiB"), &layout, &["--chunk-size", &(kib << 10).to_string()], "5ms")
        };
        let mut contenders: Vec<Lamina> = sizes.iter().map(contender).collect();
        let mut seconds = vec![Vec::new(); contenders.len()];
        let mut fetched = vec![Vec::new(); contenders.len()];
        for _ in 0..if tiny() { 1 } else { ROUNDS } {
            for (i, contender) in contenders.iter_mut().enumerate() {
                let root = contender.begin();
                let start = Instant::now();
                run_program(&root, program);
                seconds[i].push(start.elapsed().as_secs_f64());
                fetched[i].push(contender.end());
            }
        }
        for (i, contender) in contenders.iter().enumerate() {
            let figure =
                |n: usize| format!("{:.1}", median(&fetched[i].iter().map(|f: &Vec<_>| f[n].1).collect::<Vec<_>>()));
            let notes = vec![
                ("MB stored".to_owned(), format!("{:.1}", contender.stored() as f64 / 1e6)),
                ("MB fetched".to_owned(), figure(0)),
                ("requests".to_owned(), figure(1)),
            ];
            report.rows.push(Row {
                task: (*task).to_owned(),
                name: contender.name(),
                seconds: seconds[i].clone(),
                notes,
            });
        }
    }
    report.finish();
}
