//! What can go wrong in the daemon: a small, stable kind for callers, and a text for people.

use blobstore::cache::CacheError;
use blobstore::fetch::{FetchError, FetchKind};
use blobstore::layer::LayerId;
use blobstore::refs::Error as RefError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a caller can tell errors apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The store has no such thing, or none that this build understands.
    NotFound,
    /// The request itself is at fault.
    Invalid,
    /// The store or the kernel did not answer in time; trying again may help.
    Unavailable,
    /// What the store gave is not what its name says.
    Corrupt,
    /// A layer of a kind that this build does not know.
    Unsupported,
    /// Anything else on this node.
    Internal,
}

/// An error of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon has the run directory.
    #[error("another laminad uses {}; stop it, or set [daemon] run to another directory", run.display())]
    Busy {
        /// The run directory.
        run: PathBuf,
    },
    /// A file or directory of ours.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A system call that should not fail.
    #[error(transparent)]
    System(io::Error),
    /// The first worker ended before it was ready.
    #[error("the worker ended before it was ready; its own messages above say why")]
    Worker,
    /// No way to show layers on this kernel.
    #[error("this kernel cannot mount a layer ({tried}); EROFS with multiple devices is needed (Linux 5.16 and later)")]
    NoFace {
        /// Each form with its reason.
        tried: String,
    },
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// Past its deadline.
    #[error("{what}: no answer from the store within {deadline:?}")]
    Late {
        /// What was being done.
        what: String,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// A reference that leads to no stack.
    #[error("cannot resolve{}", unsaid(reference, source))]
    Resolve {
        /// As it was given.
        reference: String,
        /// Why.
        source: Box<RefError>,
    },
    /// A layer whose head cannot be had or is refused.
    #[error("cannot open layer {layer}")]
    Head {
        /// Which.
        layer: LayerId,
        /// Why.
        source: Box<FetchError>,
    },
    /// Chunks of a layer that cannot be fetched into the cache.
    #[error("cannot fetch all of layer {layer}")]
    Warm {
        /// Which.
        layer: LayerId,
        /// Why.
        source: Box<FetchError>,
    },
    /// Chunks that the cache does not keep.
    #[error("{0}")]
    Uncached(String),
    /// Layers of which nobody knows what starts read.
    #[error(
        "no layer of {reference} has a profile: nothing of it was started yet on a node that records starts for this one ([profile] \
         record). Start it once, or warm all of it, without --profile"
    )]
    NoProfile {
        /// As it was given.
        reference: String,
    },
    /// Profiles that cannot be read.
    #[error("cannot read the profiles of layer {layer}")]
    Profiles {
        /// Which.
        layer: LayerId,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pin that there is not.
    #[error("{reference} is not pinned; lamina cache ls shows what is")]
    NotPinned {
        /// As it was given.
        reference: String,
    },
    /// A layer that is in use and cannot be had from elsewhere.
    #[error("layer {layer} is in use, and the store does not give it: what is cached of it stays")]
    Needed {
        /// Which.
        layer: LayerId,
        /// What the store says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A mount that was not made.
    #[error("cannot mount {what}")]
    Mount {
        /// What was to be mounted.
        what: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A mount that is still used.
    #[error("{} is in use: end what has files open or works in it (fuser -vm shows it), then unmount it again", target.display())]
    InUse {
        /// Where.
        target: PathBuf,
    },
    /// A mount that is still there.
    #[error("cannot unmount {}", target.display())]
    Unmount {
        /// Where.
        target: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cache's directory cannot be had.
    #[error("cannot use the cache; every laminad needs one of its own ([cache] dir)")]
    CacheTaken(#[source] CacheError),
    /// The cache failed, or has no room.
    #[error(transparent)]
    Cache(CacheError),
    /// The store's address or its form.
    #[error("cannot use the store")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(crate) fn path(path: &Path, source: io::Error) -> Self {
        Self::Path { path: path.to_owned(), source }
    }

    pub(crate) fn system(source: io::Error) -> Self {
        Self::System(source)
    }

    pub(crate) fn cache(source: CacheError) -> Self {
        Self::Cache(source)
    }

    /// What a caller can decide by.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Invalid(_) => Kind::Invalid,
            Self::Late { .. } => Kind::Unavailable,
            Self::Resolve { source, .. } => of_reference(source),
            Self::NotPinned { .. } | Self::NoProfile { .. } => Kind::NotFound,
            Self::Needed { .. } | Self::Profiles { .. } => Kind::Unavailable,
            Self::Head { source, .. } | Self::Warm { source, .. } => match source.kind {
                FetchKind::NotFound => Kind::NotFound,
                FetchKind::Answer | FetchKind::Verify | FetchKind::Malformed | FetchKind::Refused => Kind::Corrupt,
                FetchKind::Unsupported => Kind::Unsupported,
                FetchKind::Transport | FetchKind::Timeout | FetchKind::Denied => Kind::Unavailable,
                FetchKind::Local => Kind::Internal,
            },
            _ => Kind::Internal,
        }
    }

    /// The error with all its causes, on one line.
    pub fn report(&self) -> String {
        blobstore::causes(self)
    }
}

fn of_reference(error: &RefError) -> Kind {
    match error {
        e if e.is_not_converted() => Kind::NotFound,
        RefError::Name(_) | RefError::Ambiguous { .. } | RefError::LocalFile { .. } => Kind::Invalid,
        RefError::Malformed { .. } | RefError::WrongKey { .. } | RefError::Older { .. } => Kind::Corrupt,
        RefError::Store(_) => Kind::Unavailable,
        _ => Kind::Internal,
    }
}

/// The reference, where the cause does not name it already.
fn unsaid(reference: &str, cause: &RefError) -> String {
    match blobstore::causes(cause).contains(reference) {
        true => String::new(),
        false => format!(" {reference}"),
    }
}
