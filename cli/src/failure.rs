//! How a command fails: an exit status that means something, and a text with every cause in it.

use std::error::Error as StdError;
use std::fmt;

/// Exit status: 1.
pub(crate) const FAILED: u8 = 1;
/// Exit status: 2.
pub(crate) const USAGE: u8 = 2;
/// Exit status: 3.
pub(crate) const REFUSED: u8 = 3;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// 1 it failed, 2 wrong usage, 3 the input was refused.
    pub(crate) status: u8,
    text: String,
}

impl Failure {
    /// Something failed on this machine or on the way to the store.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self { status: FAILED, text: text.into() }
    }

    /// The command line or the configuration is wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { status: USAGE, text: text.into() }
    }

    /// The input is malformed, hostile or unsupported; nothing was written.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self { status: REFUSED, text: text.into() }
    }

    /// `what` failed because of `error`, with all of its causes.
    pub(crate) fn because(what: impl fmt::Display, error: &(dyn StdError + 'static)) -> Self {
        Self::failed(format!("{what}: {}", chain(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What the daemon answered. Its message already holds every cause.
impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        match status.code() {
            tonic::Code::DataLoss | tonic::Code::FailedPrecondition => Self::refused(status.message()),
            tonic::Code::InvalidArgument => Self::usage(status.message()),
            _ => Self::failed(status.message()),
        }
    }
}

/// An error's text with those of its causes, as long as they say something new.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}
