//! Cold starts of programs from a store some milliseconds away: without anything fetched ahead, with readahead of runs, and
//! with likely neighbours as well, which is what is built. In each round every contender runs once.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{STARTS, Start, image, run_program};
use benches::lazy::{Contender, Lamina};
use benches::{Report, Row, median, tiny};
use std::time::Instant;

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
            let contender =
                |(name, fetch): &(&str, &str)| Lamina::with_fetch((*name).to_owned(), &layout, &[], latency, fetch);
            let mut contenders: Vec<Lamina> = CONTENDERS.iter().map(contender).collect();
            let mut seconds = vec![Vec::new(); contenders.len()];
            let mut notes = vec![Vec::new(); contenders.len()];
            for _ in 0..if tiny() { 1 } else { ROUNDS } {
                for (i, contender) in contenders.iter_mut().enumerate() {
                    let root = contender.begin();
                    let start = Instant::now();
                    run_program(&root, program);
                    seconds[i].push(start.elapsed().as_secs_f64());
                    notes[i].push(contender.end());
                }
            }
            for (i, contender) in contenders.iter().enumerate() {
                let figure = |n: usize| {
                    let values: Vec<f64> = notes[i].iter().map(|round: &Vec<(String, f64)>| round[n].1).collect();
                    (notes[i][0][n].0.clone(), format!("{:.1}", median(&values)))
                };
                report.rows.push(Row {
                    task: format!("{task}, {latency}"),
                    name: contender.name(),
                    seconds: seconds[i].clone(),
                    notes: (0..notes[i][0].len()).map(figure).collect(),
                });
            }
        }
    }
    report.finish();
}
