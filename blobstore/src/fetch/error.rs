//! Why a chunk or a head could not be had, and which failures are worth another attempt.

use crate::layer::{LayerError, LayerId};
use crate::store::StoreError;
use std::fmt;
use std::time::Duration;

/// The kind of a failure; the label `kind` of `lamina_fetch_errors_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FetchKind {
    /// The store could not be reached or failed.
    Transport,
    /// The store answered something else than what was asked for.
    Answer,
    /// The store does not let us.
    Denied,
    /// The store has no such object.
    NotFound,
    /// The bytes do not match their hash.
    Verify,
    /// No answer in time.
    Timeout,
    /// The bytes are those that were written, and yet no layer.
    Malformed,
    /// The layer is of a version or has a feature that this build does not know.
    Unsupported,
    /// The caller's check did not accept the metadata.
    Refused,
    /// The local disk failed.
    Local,
}

impl FetchKind {
    /// The kind's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Answer => "answer",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Verify => "verify",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::Refused => "refused",
            Self::Local => "local",
        }
    }

    pub(super) const fn again(self) -> Again {
        match self {
            Self::Transport | Self::Timeout => Again::UntilDeadline,
            Self::Answer | Self::Denied | Self::Verify => Again::FewTimes,
            Self::NotFound | Self::Malformed | Self::Unsupported | Self::Refused | Self::Local => Again::Never,
        }
    }
}

/// Why a chunk or a head could not be had. Everybody who waited for it gets a copy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("layer {layer}, {}: {cause} (store {store}, attempts: {attempts})", Part(*.chunk))]
pub struct FetchError {
    /// The last failure's kind.
    pub kind: FetchKind,
    /// The layer.
    pub layer: LayerId,
    /// The data chunk; `None` = the head.
    pub chunk: Option<u32>,
    /// URL of the store.
    pub store: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The last failure.
    pub cause: String,
}

struct Part(Option<u32>);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(chunk) => write!(f, "chunk {chunk}"),
            None => f.write_str("head"),
        }
    }
}

/// One attempt that failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: FetchKind,
    pub(super) cause: String,
    /// How long the store asks to wait before the next attempt.
    pub(super) after: Option<Duration>,
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Try until the deadline: it may pass.
    UntilDeadline,
    /// Try a few times: it should not happen at all.
    FewTimes,
    /// It will be the same next time.
    Never,
}

impl Failure {
    pub(super) fn new(kind: FetchKind, cause: impl ToString) -> Self {
        Self { kind, cause: cause.to_string(), after: None }
    }

    pub(super) fn again(&self) -> Again {
        self.kind.again()
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::NotFound { .. } | StoreError::NoStore { .. } => FetchKind::NotFound,
            StoreError::Io { .. } | StoreError::Busy { .. } => FetchKind::Transport,
            StoreError::Denied { .. } => FetchKind::Denied,
            // Also a server that gives the whole object for a range: some do now and then.
            StoreError::Answer { .. } | StoreError::Unsupported { .. } => FetchKind::Answer,
            // Of writes only.
            StoreError::AlreadyExists { .. } | StoreError::Local { .. } => FetchKind::Local,
        };
        let after = if let StoreError::Busy { after, .. } = &error { *after } else { None };
        Self { after, ..Self::new(kind, error) }
    }
}

impl From<LayerError> for Failure {
    fn from(error: LayerError) -> Self {
        let kind = match error {
            LayerError::Store(error) => return error.into(),
            LayerError::Corrupt { .. } => FetchKind::Verify,
            LayerError::Malformed(_) => FetchKind::Malformed,
            LayerError::Unsupported(_) => FetchKind::Unsupported,
            LayerError::Io { .. } => FetchKind::Local,
        };
        Self::new(kind, error)
    }
}
