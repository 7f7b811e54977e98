//! What can go wrong: a small stable kind (which decides the gRPC status, in `service`), a sentence saying what and
//! where, and the cause. Cloneable, because one failed transaction is the answer to everybody who waited for it.

use std::fmt::Display;
use std::sync::Arc;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kinds; each is one gRPC status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such snapshot.
    NotFound,
    /// The key or name is taken.
    AlreadyExists,
    /// The request cannot be right whatever the state is.
    InvalidArgument,
    /// The request does not fit the state: it has children, it is of another kind.
    FailedPrecondition,
    /// laminad, or the store behind it, did not serve in time. Trying again may help.
    Unavailable,
    /// The disk, the database or the kernel failed.
    Internal,
    /// The state moved between planning and writing. Never leaves this crate: the caller plans again.
    Moved,
}

/// An error: kind, context, cause.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{context}{}", source.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
pub struct Error {
    /// What decides the gRPC status.
    pub kind: ErrorKind,
    /// What was tried, on what.
    pub context: String,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Display) -> Self {
        Self { kind, context: context.to_string(), source: None }
    }

    pub(crate) fn not_found(context: impl Display) -> Self {
        Self::new(ErrorKind::NotFound, context)
    }

    pub(crate) fn already_exists(context: impl Display) -> Self {
        Self::new(ErrorKind::AlreadyExists, context)
    }

    pub(crate) fn invalid(context: impl Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, context)
    }

    pub(crate) fn precondition(context: impl Display) -> Self {
        Self::new(ErrorKind::FailedPrecondition, context)
    }

    pub(crate) fn unavailable(context: impl Display) -> Self {
        Self::new(ErrorKind::Unavailable, context)
    }

    pub(crate) fn internal(context: impl Display) -> Self {
        Self::new(ErrorKind::Internal, context)
    }

    /// The disk, the database or the kernel failed with `cause`.
    pub(crate) fn caused(context: impl Display, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { kind: ErrorKind::Internal, context: context.to_string(), source: Some(Arc::new(cause)) }
    }
}

/// Says what was tried when a foreign error is turned into ours.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error::caused(what(), cause))
    }
}
