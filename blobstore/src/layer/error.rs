//! Why a layer could not be read or written.

use crate::store::StoreError;

/// Result of an operation on a layer.
pub(super) type Result<T> = std::result::Result<T, LayerError>;

/// Why a layer could not be read or written. The kinds are stable; the texts say what and where.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The bytes do not follow the format, although they are those that were written; or the writer was given what
    /// the format cannot hold.
    #[error("not a layer: {0}")]
    Malformed(String),
    /// A layer of a version or with a feature that this build does not know. To be treated as not converted.
    #[error("layer of an unknown kind: {0}")]
    Unsupported(String),
    /// The bytes are not those that the layer's id or index names.
    #[error("corrupt layer: {}{what}", .chunk.map(|chunk| format!("chunk {chunk}: ")).unwrap_or_default())]
    Corrupt {
        /// What does not match.
        what: String,
        /// The data chunk concerned, where it is known; `None` for the index and the metadata.
        chunk: Option<u32>,
    },
    /// A local file failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to which file.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LayerError {
    /// The same error, of data chunk `number` where it is a corruption that does not yet say which.
    #[must_use]
    pub fn at_chunk(self, number: u32) -> Self {
        match self {
            Self::Corrupt { what, chunk: None } => Self::Corrupt { what, chunk: Some(number) },
            Self::Malformed(what) => Self::Malformed(format!("chunk {number}: {what}")),
            other => other,
        }
    }

    /// The same error, of the part of a layer that `place` names.
    pub(super) fn within(self, place: &str) -> Self {
        match self {
            Self::Corrupt { what, chunk } => Self::Corrupt { what: format!("{place}: {what}"), chunk },
            Self::Malformed(what) => Self::Malformed(format!("{place}: {what}")),
            other => other,
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), chunk: None }
    }

    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// `Malformed` with a formatted text.
macro_rules! malformed {
    ($($text:tt)*) => { $crate::layer::LayerError::Malformed(format!($($text)*)) };
}
pub(super) use malformed;
