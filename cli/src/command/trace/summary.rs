//! What a trace comes to: totals, and the files that readers waited for.

use super::names::Named;
use super::{cause, millis, short, source};
use crate::output::{self, printable};
use control::v1::TraceEvent;
use control::v1::trace_event::{Cause, Source};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Files that are listed for people; JSON has all.
const LISTED: usize = 40;
/// Waits after which those that touch are put together.
const MERGE: usize = 64;

/// Waits of one kind.
#[derive(Default)]
struct Sum {
    count: u64,
    bytes: u64,
    failed: u64,
    /// In which they went on: those at the same time count once.
    waits: Spans,
}

impl Sum {
    fn add(&mut self, event: &TraceEvent, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.waits.add(event.at_us, event.at_us.saturating_add(event.waited_us));
        self.failed += u64::from(event.source() == Source::None);
    }

    fn as_json(&self) -> Value {
        json!({"count": self.count, "bytes": self.bytes, "ms": millis(self.waits.total()), "failed": self.failed})
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Summary {
    /// How long was traced.
    pub(super) seconds: f64,
    /// Events that laminad had no room for.
    pub(super) lost: u64,
    /// Of what came from the store, or should have.
    causes: BTreeMap<&'static str, Sum>,
    /// Of reads that the node answered itself.
    local: BTreeMap<&'static str, Sum>,
    /// By layer and path: what readers waited for.
    files: HashMap<(String, String), Sum>,
}

impl Summary {
    /// No more events come.
    pub(super) fn close(&mut self) {
        let sums = self.causes.values_mut().chain(self.local.values_mut()).chain(self.files.values_mut());
        sums.for_each(|sum| sum.waits.merge());
    }

    /// Counts an event. A read of several files is a wait for each of them.
    pub(super) fn count(&mut self, event: &TraceEvent, files: &[Named]) {
        if matches!(event.source(), Source::Memory | Source::Cache) {
            return self.local.entry(source(event.source())).or_default().add(event, event.bytes);
        }
        self.causes.entry(cause(event.cause())).or_default().add(event, event.bytes);
        if event.cause() != Cause::Read {
            return;
        }
        for file in files {
            let key = (event.layer.clone(), file.path.clone());
            self.files.entry(key).or_default().add(event, file.bytes);
        }
    }

    /// The files, the longest wait first.
    fn files(&self) -> Vec<(&(String, String), &Sum)> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by(|(a, x), (b, y)| y.waits.total().cmp(&x.waits.total()).then_with(|| a.cmp(b)));
        files
    }

    pub(super) fn as_json(&self) -> Value {
        let sums =
            |sums: &BTreeMap<&str, Sum>| sums.iter().map(|(k, s)| ((*k).to_owned(), s.as_json())).collect::<Value>();
        let file = |((layer, path), sum): (&(String, String), &Sum)| {
            let mut value = sum.as_json();
            value["layer"] = layer.as_str().into();
            value["file"] = path.as_str().into();
            value
        };
        json!({
            "event": "summary", "seconds": self.seconds, "lost": self.lost,
            "causes": sums(&self.causes), "local": sums(&self.local),
            "files": self.files().into_iter().map(file).collect::<Vec<_>>(),
        })
    }

    pub(super) fn print(&self) {
        let waiting = self.causes.get("read").map_or(0, |sum| sum.waits.total()) as f64 / 1e6;
        output::line(format!("\n{:.3} s traced; in {waiting:.3} s of them readers waited for the store", self.seconds));
        for (cause, sum) in &self.causes {
            output::line(total(cause, sum, if *cause == "read" { "read" } else { "chunk" }));
        }
        for (source, sum) in &self.local {
            output::line(total(source, sum, "read"));
        }
        if self.lost > 0 {
            output::line(format!(
                "{} that no line was printed for: these totals lack them",
                output::count(self.lost, "event")
            ));
        }
        let files = self.files();
        if files.is_empty() {
            return;
        }
        output::line("\n        MS    READS       BYTES  LAYER         FILE");
        for ((layer, path), sum) in files.iter().take(LISTED) {
            let (ms, bytes) = (millis(sum.waits.total()), output::bytes(sum.bytes));
            let (layer, path) = (short(layer), printable(path));
            output::line(format!("{ms:>10.1} {:>8} {bytes:>11}  {layer}  {path}", sum.count));
        }
        if let Some(more @ 1..) = files.len().checked_sub(LISTED) {
            output::line(format!("and {}; --json lists all", output::count(more as u64, "more file")));
        }
    }
}

fn total(what: &str, sum: &Sum, unit: &str) -> String {
    let failed = if sum.failed > 0 { format!(", {} failed", sum.failed) } else { String::new() };
    let (count, bytes, ms) = (output::count(sum.count, unit), output::bytes(sum.bytes), millis(sum.waits.total()));
    format!("{what:<10} {count}, {bytes}, {ms:.1} ms{failed}")
}

/// Times in which somebody waited, microseconds; readers wait side by side.
#[derive(Default)]
struct Spans {
    spans: Vec<(u64, u64)>,
    merge_at: usize,
}

impl Spans {
    fn add(&mut self, start: u64, end: u64) {
        self.spans.push((start, end));
        if self.spans.len() >= self.merge_at.max(MERGE) {
            self.merge();
            self.merge_at = self.spans.len() * 2;
        }
    }

    fn merge(&mut self) {
        self.spans.sort_unstable();
        self.spans.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
    }

    /// To be asked once all are merged.
    fn total(&self) -> u64 {
        self.spans.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at_us: u64, waited_us: u64) -> TraceEvent {
        TraceEvent { at_us, waited_us, bytes: 4096, source: Source::Store.into(), ..TraceEvent::default() }
    }

    fn named(path: &str) -> Named {
        Named { path: path.to_owned(), bytes: 4096 }
    }

    #[test]
    fn waits_at_the_same_time_are_one_time_and_files_are_listed_by_theirs() {
        let mut summary = Summary::default();
        summary.count(&read(1000, 5000), &[named("/a")]);
        summary.count(&read(2000, 5000), &[named("/b")]);
        summary.count(&read(20_000, 1000), &[named("/b")]);
        summary.count(&TraceEvent { cause: Cause::Readahead.into(), ..read(0, 90_000) }, &[named("/c")]);
        summary.count(&TraceEvent { source: Source::Cache.into(), ..read(0, 10) }, &[named("/d")]);
        summary.count(&read(2100, 5000), &[named("/a")]);
        summary.close();
        let json = summary.as_json();
        assert_eq!(json["causes"]["read"]["ms"], 7.1);
        assert_eq!(json["causes"]["readahead"]["count"], 1);
        assert_eq!(json["local"]["cache"]["count"], 1);
        let files: Vec<_> = json["files"].as_array().unwrap().iter().map(|f| (&f["file"], &f["count"])).collect();
        assert_eq!(files, [(&json!("/a"), &json!(2)), (&json!("/b"), &json!(2))]);
    }

    #[test]
    fn a_long_trace_keeps_no_wait_twice() {
        let mut spans = Spans::default();
        (0..10 * MERGE as u64).for_each(|n| spans.add(n * 10, n * 10 + 10));
        assert!(spans.spans.len() < 2 * MERGE);
        spans.merge();
        assert_eq!(spans.total(), 100 * MERGE as u64);
    }
}
