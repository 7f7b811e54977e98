//! Why a reference cannot be had.

use super::name::NameError;
use crate::layer::LayerId;
use crate::store::StoreError;

/// Why a reference could not be read, written or resolved. The key or the name asked for stands in the text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed; its own text says where.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object uses something this build does not know. Callers go on as if it were not converted.
    #[error("{key}: {what}, which this build of Lamina does not understand: it counts as not converted here")]
    Unsupported {
        /// Key of the object.
        key: String,
        /// The feature, schema or payload type.
        what: String,
    },
    /// The object is not what its key promises.
    #[error("{key}: malformed: {what}")]
    Malformed {
        /// Key of the object.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// The object was written for another key: moved, copied or forged.
    #[error("{key}: the object says it belongs at '{claims}': refused")]
    WrongKey {
        /// Key it was read from.
        key: String,
        /// Key it carries.
        claims: String,
    },
    /// The store went back behind what this process has already seen.
    #[error("{key}: sequence {sequence} is older than {seen}, which was seen before: refused")]
    Older {
        /// Key of the object, or of its series.
        key: String,
        /// What the store has now.
        sequence: u64,
        /// What it had.
        seen: u64,
    },
    /// There is no such place.
    #[error(
        "{store}: there is no store: is the directory's name right, and what it lies on mounted? (lamina convert makes one; \
         --store and [store] url name it)"
    )]
    NoStore {
        /// URL of the store.
        store: String,
    },
    /// The stack has a layer that was revoked.
    #[error(
        "{name}: layer {layer} is revoked, so this counts as not converted (why: lamina store ls --revoked; to take it back: \
         lamina store unrevoke)"
    )]
    Revoked {
        /// What was asked for.
        name: String,
        /// The revoked layer.
        layer: LayerId,
    },
    /// The store has nothing of this name.
    #[error("{name}: {what}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// What exactly is missing.
        what: String,
    },
    /// A short layer id that fits more than one layer.
    #[error("{name}: more than one layer starts so: {first}, {second}")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// One that fits.
        first: LayerId,
        /// Another one.
        second: LayerId,
    },
    /// The text is no reference.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Too many writers at one key.
    #[error("{key}: other writers were faster {times} times in a row; try again")]
    Contended {
        /// Key, or prefix of the series.
        key: String,
        /// How often it was tried.
        times: u32,
    },
    /// A file on this machine: not the store's to resolve.
    #[error("file:{path}: a layer file on this machine, not a reference in the store")]
    LocalFile {
        /// Its path.
        path: String,
    },
    /// The caller's value cannot be stored as it is.
    #[error("{key}: not written: {what}")]
    Refused {
        /// Key it would have had.
        key: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Result of a reference operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the right answer is to go on as if the thing had never been converted: absent, revoked, or written by
    /// a newer Lamina. Anything else is a failure to report.
    pub fn is_not_converted(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Revoked { .. } | Self::Unsupported { .. })
    }

    /// Whether the object's own bytes are at fault: no build can read it, and a writer who has something to say puts it in
    /// its place.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::WrongKey { .. })
    }

    pub(crate) fn malformed(key: &str, what: impl ToString) -> Self {
        Self::Malformed { key: key.to_owned(), what: what.to_string() }
    }

    pub(crate) fn not_found(name: impl ToString, what: impl ToString) -> Self {
        Self::NotFound { name: name.to_string(), what: what.to_string() }
    }
}
