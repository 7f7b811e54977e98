//! How far long work is, on a terminal; nothing elsewhere, and with `-q`.

use crate::output;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;

/// For work that is told in bytes; [`set_length`] says of how many.
pub(crate) fn bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {much}{left}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let much = |state: &ProgressState, text: &mut dyn Write| {
        // Before anything is known, what is being done says enough.
        if state.pos() > 0 || state.len().is_some() {
            let _ = write!(text, "{} {}/s", much(state.pos(), state.len()), output::bytes(state.per_sec() as u64));
        }
    };
    let left = |state: &ProgressState, text: &mut dyn Write| {
        if state.len().is_some() && state.pos() > 0 {
            let _ = write!(text, " {:#}", HumanDuration(state.eta()));
        }
    };
    bar.set_style(style.with_key("much", much).with_key("left", left).progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}

/// How many bytes it will be; 0 is not known: a bar of nothing would be a full one.
pub(crate) fn set_length(bar: &ProgressBar, length: u64) {
    match length {
        0 => bar.unset_length(),
        length => bar.set_length(length),
    }
}

/// A line that says what is being done; invisible where stderr is no terminal.
pub(crate) fn steps() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(target());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn target() -> ProgressDrawTarget {
    match output::is_terminal() && !output::is_quiet() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    }
}

fn much(done: u64, of: Option<u64>) -> String {
    let of = of.map_or(String::new(), |of| format!(" of {}", output::bytes(of)));
    output::bytes(done) + &of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_begins_empty_and_says_what_results_say() {
        let bar = bar("reading");
        set_length(&bar, 0);
        assert_eq!((bar.length(), much(0, bar.length())), (None, "0 B".to_owned()));
        set_length(&bar, 3_000_000);
        assert_eq!(much(1_500_000, bar.length()), "1.5 MB of 3.0 MB");
    }
}
