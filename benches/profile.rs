//! Cold starts of programs from a bucket some milliseconds away (an S3 server behind a proxy, `away.rs`), by the profile that another node recorded: against none,
//! against one that is wrong in every chunk, with layers that were laid out by a profile, and against the same tree on ext4.
//!
//! Nothing is local but the programs of Lamina: each run has a new cache and a new daemon. The program begins the moment its
//! image is mounted. In the test pass a busybox image takes the place of the others, and each contender runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::away::Away;
use benches::images::{STARTS, Start, image, run_program};
use benches::lazy::{Contender, Ext4, Lamina, compare};
use benches::{Report, tiny};
use blobstore::layer::Index;
use blobstore::profile::{Profile, Seen};
use std::path::Path;
use std::time::Duration;

const ROUNDS: usize = 3;

/// As many chunks, and none of those that the start reads.
fn wrong(index: &Index, profile: Profile) -> Profile {
    let seen = Seen { runs: profile.runs, after: 0, parts: 1 };
    let others = (0..index.chunk_count()).filter(|chunk| !profile.chunks.contains_key(chunk));
    let chunks = others.take(profile.chunks.len()).map(|chunk| (chunk, seen)).collect();
    Profile { chunks, ..profile }
}

fn main() {
    if !tests::possible("profile") || Away::start("profile", Duration::ZERO).is_none() {
        return;
    }
    let mut report = Report::new("profile", "ext4, local");
    let only = std::env::var("LAMINA_BENCH_START").unwrap_or_default();
    let starts = STARTS.iter().filter(|start| start.task.contains(&only));
    // One start is enough to see it work.
    for Start { builder, task, program } in starts.take(if tiny() { 1 } else { STARTS.len() }) {
        let layout = image(builder);
        let work = tempfile::tempdir_in(layout.parent().unwrap()).unwrap();
        for latency in if tiny() { &[5][..] } else { &[5, 20] } {
            let run = |root: &Path| run_program(root, program);
            let away = Duration::from_millis(*latency);
            let lamina = |name| Lamina::in_bucket(name, &layout, away).unwrap().at_once();
            let (mut without, mut with, mut misled) =
                (lamina("no profile"), lamina("another node's profile"), lamina("a wrong profile"));
            let tree = work.path().join(latency.to_string());
            let local = Ext4::copied(&mut without, &tree);
            with.record(run);
            misled.record(run);
            misled.change_profiles(wrong);
            let mut laid_out = lamina("a profile, laid out by it");
            laid_out.record(run);
            laid_out.lay_out(&layout, run);
            let mut contenders: Vec<Box<dyn Contender>> =
                vec![Box::new(local), Box::new(without), Box::new(with), Box::new(laid_out), Box::new(misled)];
            let rounds = if tiny() { 1 } else { ROUNDS };
            compare(&mut report, &format!("{task}, {latency} ms"), &mut contenders, rounds, run);
            std::fs::remove_dir_all(tree).unwrap();
        }
    }
    report.finish();
}
