//! What every comparison prints: medians of paired rounds and their ratio to a baseline, as text, JSON and SVG.
//!
//! The machines that this runs on are shared and noisy: single times mean little. In each round every contender runs once,
//! one after the other, so that a slow minute hits all of them; ratios are formed within a round, and their median counts.

use crate::target;
use serde::Serialize;
use std::fs;

/// One contender's figures.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured, the same for all that compare.
    pub task: String,
    /// Who.
    pub name: String,
    /// Seconds of each round, in order.
    pub seconds: Vec<f64>,
    /// Further figures, such as bytes fetched.
    pub notes: Vec<(String, String)>,
}

/// A whole comparison.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark: its file.
    pub name: String,
    /// The command that makes it again.
    pub command: String,
    /// Kernel and processors.
    pub machine: String,
    /// The figures.
    pub rows: Vec<Row>,
    /// Name of the contender that ratios are to.
    pub baseline: String,
}

/// The middle value; the mean of the two middle ones of an even number. NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

impl Report {
    /// An empty report, made again by `cargo bench --bench NAME`.
    pub fn new(name: &str, baseline: &str) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            name: name.to_owned(),
            command: format!("cargo build --release && cargo bench -p benches --bench {name}"),
            machine: format!("Linux {}, {cores} processors", kernel.trim()),
            rows: Vec::new(),
            baseline: baseline.to_owned(),
        }
    }

    /// Median of the ratios to the baseline, round by round; where a task has none, to its first row.
    pub fn ratio(&self, row: &Row) -> f64 {
        let mut task = self.rows.iter().filter(|r| r.task == row.task);
        let base = task.clone().find(|r| r.name == self.baseline).or_else(|| task.next());
        let pairs = base.into_iter().flat_map(|b| row.seconds.iter().zip(&b.seconds));
        median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// Prints the table, and writes `target/bench/NAME.json` and `.svg`.
    pub fn finish(&self) {
        println!("{} on {}", self.name, self.machine);
        println!("{:<24} {:<34} {:>9} {:>7}  notes", "task", "contender", "median s", "ratio");
        for row in &self.rows {
            let notes: Vec<String> = row.notes.iter().map(|(k, v)| format!("{k} {v}")).collect();
            let (seconds, ratio) = (median(&row.seconds), self.ratio(row));
            println!("{:<24} {:<34} {seconds:>9.3} {ratio:>7.2}  {}", row.task, row.name, notes.join(", "));
        }
        println!("again: {}", self.command);
        let dir = target().join("bench");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{}.json", self.name)), serde_json::to_string_pretty(self).unwrap()).unwrap();
        fs::write(dir.join(format!("{}.svg", self.name)), self.svg()).unwrap();
        println!("figures: {}", dir.join(format!("{}.{{json,svg}}", self.name)).display());
    }

    /// One bar a row, its length the median ratio to the baseline.
    fn svg(&self) -> String {
        const LINE: usize = 22;
        let most = self.rows.iter().map(|r| self.ratio(r)).fold(1.0, f64::max);
        let height = (self.rows.len() + 1) * LINE + 10;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <text x=\"10\" y=\"18\">{}: time as a multiple of {} ({})</text>\n",
            self.name, self.baseline, self.machine
        );
        for (i, row) in self.rows.iter().enumerate() {
            let y = (i + 1) * LINE + 10;
            let ratio = self.ratio(row);
            let colour = if row.name == self.baseline { "#999" } else { "#37a" };
            out += &format!(
                "<text x=\"10\" y=\"{}\">{}: {}</text><rect x=\"400\" y=\"{y}\" width=\"{:.0}\" height=\"14\" fill=\"{colour}\"/>\
                 <text x=\"{:.0}\" y=\"{}\">{ratio:.2}</text>\n",
                y + 12,
                row.task,
                row.name,
                ratio / most * 420.0,
                ratio / most * 420.0 + 406.0,
                y + 12
            );
        }
        out + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_formed_within_a_round() {
        let row = |name: &str, seconds: &[f64]| Row {
            task: "t".into(),
            name: name.into(),
            seconds: seconds.to_vec(),
            notes: Vec::new(),
        };
        let mut report = Report::new("x", "base");
        report.rows = vec![row("base", &[1.0, 10.0, 2.0]), row("other", &[2.0, 30.0, 2.0])];
        assert_eq!(report.ratio(&report.rows[1]), 2.0);
        report.baseline = "none".into();
        assert_eq!(report.ratio(&report.rows[1]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert!(report.svg().contains("other"));
    }
}
