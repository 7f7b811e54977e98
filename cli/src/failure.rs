//! How a command fails: an exit status that means something, and a text with every cause in it.

use blobstore::causes;
use blobstore::layer::LayerError;
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
    /// 1 it failed, 2 wrong usage, 3 the input was refused, 128 and more a signal.
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

    /// The same, and this besides.
    pub(crate) fn with(mut self, more: &str) -> Self {
        self.text.push_str(more);
        self
    }

    /// A signal ended it.
    pub(crate) fn signalled(number: i32) -> Self {
        // Fits: signals end at 64. As shells tell it.
        Self { status: 128 + number as u8, text: "interrupted".to_owned() }
    }

    /// Whether a signal ended it.
    pub(crate) fn is_signal(&self) -> bool {
        self.status > 128
    }

    /// The input is malformed, hostile or unsupported; nothing was written.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self { status: REFUSED, text: text.into() }
    }

    /// A layer could not be read: wrong bytes are a refusal, a store or a disk that does not answer is a failure.
    pub(crate) fn layer(what: impl fmt::Display, error: &LayerError) -> Self {
        let (what, causes) = (what.to_string(), causes(error));
        // A file that cannot be read is named by what says so.
        let text = if causes.contains(&what) { causes } else { format!("{what}: {causes}") };
        match error {
            LayerError::Io { .. } | LayerError::Store(_) => Self::failed(text),
            LayerError::Malformed(_) | LayerError::Unsupported(_) | LayerError::Corrupt { .. } => Self::refused(text),
        }
    }

    /// `what` failed because of `error`, with all of its causes.
    pub(crate) fn because(what: impl fmt::Display, error: &(dyn StdError + 'static)) -> Self {
        Self::failed(format!("{what}: {}", causes(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What the converter says: it knows which inputs are refused.
impl From<converter::Error> for Failure {
    fn from(error: converter::Error) -> Self {
        match error.is_refusal() {
            true => Self::refused(format!("refused: {}", causes(&error))),
            false => Self::failed(causes(&error)),
        }
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
