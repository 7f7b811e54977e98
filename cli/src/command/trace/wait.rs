//! A wait as it is shown. The kernel cuts one readahead of a file into single pages: what was asked for at once, of one file, and
//! came from one place, is one wait of several reads.

use super::names::Named;
use super::{cause, micros, millis, short, source};
use crate::output::{self, printable};
use control::v1::TraceEvent;
use control::v1::trace_event::Source;
use serde_json::{Value, json};

/// Microseconds between the first and the last read that are one wait.
const AT_ONCE: u64 = 5000;

pub(super) struct Wait {
    /// The first, grown by the others.
    event: TraceEvent,
    files: Vec<Named>,
    reads: u64,
}

impl Wait {
    pub(super) fn new(event: TraceEvent, files: Vec<Named>) -> Self {
        Self { event, files, reads: 1 }
    }

    /// Takes a read that belongs to it; `false` where it is another wait.
    pub(super) fn join(&mut self, event: &TraceEvent, files: &[Named]) -> bool {
        let mine = &mut self.event;
        let same = (mine.cause, mine.source) == (event.cause, event.source) && mine.layer == event.layer;
        let ([file], [other]) = (&mut self.files[..], files) else { return false };
        if !same || file.path != other.path || mine.at_us.abs_diff(event.at_us) > AT_ONCE {
            return false;
        }
        let end = (mine.at_us.saturating_add(mine.waited_us)).max(event.at_us.saturating_add(event.waited_us));
        mine.at_us = mine.at_us.min(event.at_us);
        mine.waited_us = end - mine.at_us;
        mine.offset = mine.offset.min(event.offset);
        mine.bytes = mine.bytes.saturating_add(event.bytes);
        file.bytes = file.bytes.saturating_add(other.bytes);
        self.reads += 1;
        true
    }

    pub(super) fn as_json(&self) -> Value {
        let (event, files) = (&self.event, &self.files);
        json!({
            "event": "wait", "time": micros(event.at_us), "layer": event.layer, "cause": cause(event.cause()),
            "source": source(event.source()), "offset": event.offset, "bytes": event.bytes, "reads": self.reads,
            "ms": millis(event.waited_us), "file": files.first().map(|file| &file.path),
            "more": files.iter().skip(1).map(|file| &file.path).collect::<Vec<_>>(),
        })
    }

    /// A line, of a trace that began so many microseconds after 1970.
    pub(super) fn text(&self, began: u64) -> String {
        let event = &self.event;
        let time = micros(event.at_us.saturating_sub(began));
        let what = match event.source() {
            Source::Store => cause(event.cause()).to_owned(),
            source => format!("{} ({})", cause(event.cause()), super::source(source)),
        };
        let (bytes, ms, layer) = (output::bytes(event.bytes), millis(event.waited_us), short(&event.layer));
        let file = self.files.first().map_or("-".into(), |file| printable(&file.path));
        let more = match self.files.len() {
            0 | 1 => String::new(),
            n => format!(" and {}", output::count(n as u64 - 1, "more file")),
        };
        format!("{time:10.3}  {what:<16} {bytes:>11} {ms:>10.1}  {layer}  {file}{more}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_asked_for_at_once_are_one_wait_and_others_are_not() {
        let event = |at_us, offset| TraceEvent { at_us, offset, bytes: 4096, waited_us: 900, ..TraceEvent::default() };
        let named = |path: &str| vec![Named { path: path.to_owned(), bytes: 4096 }];
        let mut wait = Wait::new(event(1000, 8192), named("/a"));
        assert!(wait.join(&event(900, 4096), &named("/a")));
        assert!(wait.join(&event(1100, 12_288), &named("/a")));
        assert!(!wait.join(&event(1000, 0), &named("/b")));
        assert!(!wait.join(&event(1000, 0), &[]));
        assert!(!wait.join(&event(9000, 0), &named("/a")));
        let json = wait.as_json();
        assert_eq!((&json["reads"], &json["bytes"], &json["offset"]), (&json!(3), &json!(3 * 4096), &json!(4096)));
        assert_eq!(json["ms"], 1.1);
    }
}
