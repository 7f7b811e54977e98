//! Cold starts of programs from a store some milliseconds away: without anything fetched ahead, with readahead of runs, and
//! with likely neighbours as well, which is what is built. In each round every contender runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{STARTS, Start, image, run_program};
use benches::lazy::{Contender, Lamina, compare};
use benches::{Report, tiny};

const ROUNDS: usize = 3;
const AS_BUILT: &str = "as built";
const CONTENDERS: &[(&str, &str)] =
    &[("nothing ahead", "readahead = 0\nneighbours = false\n"), ("runs", "neighbours = false\n"), (AS_BUILT, "")];

fn main() {
    if !tests::possible("ahead") {
        return;
    }
    let mut report = Report::new("ahead", AS_BUILT);
    // One start is enough to see it work.
    for Start { builder, task, program } in if tiny() { &STARTS[..1] } else { STARTS } {
        let layout = image(builder);
        for latency in if tiny() { &["5ms"][..] } else { &["0s", "5ms", "20ms"] } {
            let contender = |(name, fetch): &(&str, &str)| -> Box<dyn Contender> {
                Box::new(Lamina::with_fetch((*name).to_owned(), &layout, &[], latency, fetch))
            };
            let mut contenders: Vec<_> = CONTENDERS.iter().map(contender).collect();
            let task = format!("{task}, {latency}");
            let rounds = if tiny() { 1 } else { ROUNDS };
            compare(&mut report, &task, &mut contenders, rounds, |root| run_program(root, program));
        }
    }
    report.finish();
}
