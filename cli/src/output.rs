//! What a command prints: results on stdout, as text or JSON; logs on stderr.

#![allow(clippy::print_stdout, reason = "this is the one place that prints results")]

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;

/// Sends logs to stderr: warnings, or more with `-v`, or errors only with `-q`. `LAMINA_LOG` has the last word.
pub(crate) fn start_logs(default: &str) {
    let filter = EnvFilter::try_from_env("LAMINA_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(is_terminal())
        .log_internal_errors(false)
        .init();
}

/// Whether logs and progress go to one.
pub(crate) fn is_terminal() -> bool {
    io::IsTerminal::is_terminal(&io::stderr())
}

/// Set with `-q`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on, only errors and what was asked for: [`done`] prints nothing.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// A line of what was done, as opposed to what was asked for: not with `-q`.
pub(crate) fn done(text: impl Display) {
    if !is_quiet() {
        line(text);
    }
}

/// A last word, on stderr: that may be gone, as its terminal is after SIGHUP.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Why a result could not be written, the first time.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

/// A line of a result. A reader that has gone away is no failure of ours; [`finish`] tells of any other.
pub(crate) fn line(text: impl Display) {
    try_line(text);
}

/// As [`line`], of results without an end: `false` once nobody takes them.
pub(crate) fn try_line(text: impl Display) -> bool {
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => drop(UNWRITTEN.set(e)),
        Err(_) => {}
        Ok(()) => return true,
    }
    false
}

/// Whether every result was written: a full disk behind stdout must not look like success.
pub(crate) fn finish() -> Result<(), Failure> {
    UNWRITTEN.get().map_or(Ok(()), |e| Err(Failure::because("writing to the standard output", e)))
}

/// A result for scripts.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::because("writing JSON", &e))?;
    line(text);
    Ok(())
}

/// What somebody else wrote, so that it does nothing to a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// A number of things for people: `1 layer`, `2 layers`.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Bytes for people: `12.3 MB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_rounded_for_people() {
        assert_eq!(super::bytes(999), "999 B");
        assert_eq!(super::bytes(1500), "1.5 kB");
        assert_eq!(super::bytes(999_960), "1.0 MB");
        assert_eq!(super::bytes(3 * 1_000_000_000_000_000), "3000.0 TB");
    }
}
