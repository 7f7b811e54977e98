//! Being told to end: SIGINT, SIGTERM, SIGQUIT, and SIGHUP, which a terminal that goes away sends.

use crate::failure::Failure;
use std::future::poll_fn;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Takes these signals, which end nothing by themselves from then on.
pub(crate) struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// From now on. Must be called within a tokio runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit(), SignalKind::hangup()];
        // Who started it with nohup wants it to stay when the terminal goes; a shell's script, when Ctrl-C is for others.
        let kinds = kinds.into_iter().filter(|kind| !is_ignored(*kind));
        let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
        let all: std::io::Result<Vec<_>> = kinds.map(listen).collect();
        all.map(Self).map_err(|e| Failure::because("waiting for signals", &e))
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let come = self.0.iter_mut().find_map(|(number, signal)| match signal.poll_recv(context) {
                Poll::Ready(Some(())) => Some(*number),
                _ => None,
            });
            come.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A write past the limit on file sizes (`ulimit -f`) is a failure of that write from now on, and does not end the process.
/// Must be called within a tokio runtime.
pub(crate) fn outlive_file_limits() {
    // Where it cannot be taken it does what it did.
    let _taken = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()));
}

/// Whether this process passes over a signal; no, where the system does not say.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status).is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// The signals that are passed over, a bit each, the first for signal 1.
fn ignored(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_system() {
        let status = "Name:\tnohup\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert_eq!(ignored(status), Some(0x1001));
        assert_eq!(ignored("Name:\tx\n"), None);
        assert!(!is_ignored(SignalKind::terminate()));
    }
}
