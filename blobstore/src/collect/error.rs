//! Why nothing was collected, or why something cannot be held.

use crate::refs;
use crate::store::StoreError;
use std::time::Duration;

/// Why a collector stopped, or a holder holds nothing. What was done until then was right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed; its own text says where.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A name or what it reaches cannot be read: nobody can tell what is needed.
    #[error(transparent)]
    Refs(#[from] refs::Error),
    /// There is nothing to collect from: most likely something is not mounted.
    #[error(
        "{store}: there is no store (it has no object 'format'): is the name right, and what it lies on mounted? (lamina convert \
         makes one; --store and [store] url name it)"
    )]
    NoStore {
        /// URL of the store.
        store: String,
    },
    /// A lease that may still hold something cannot be read.
    #[error("{key}: a lease that cannot be read ({what}): nobody can tell what it holds; delete it if nobody needs it")]
    Lease {
        /// Key of the lease.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another collector is deleting.
    #[error(
        "another collector is at work: {run}; if it was killed on another machine, it counts as dead {} minutes after its \
         last word", after.as_secs() / 60
    )]
    Busy {
        /// Which.
        run: String,
        /// When it counts as dead.
        after: Duration,
    },
    /// It was told to end before it was done.
    #[error("the collector was told to end")]
    Stopped,
    /// The collector was stopped for so long that writers may have stopped waiting for it.
    #[error("the collector was held up for {0:?} and deletes nothing more; run it again")]
    HeldUp(Duration),
    /// A holder was stopped for so long that its lease is over.
    #[error("the lease {key} was not renewed for {since:?}: what it held may be gone; begin again")]
    Expired {
        /// Key of the lease.
        key: String,
        /// Since when.
        since: Duration,
    },
    /// Others write the same references all the time.
    #[error("other writers replaced the same references {0} times in a row; try again")]
    Contended(u32),
}

/// Result of collecting and holding.
pub type Result<T> = std::result::Result<T, Error>;
