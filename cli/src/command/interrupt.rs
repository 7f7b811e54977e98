//! Signals to a command that writes to the store: what it was sending is taken back before it ends.

use crate::failure::Failure;
use crate::signals::Signals;
use blobstore::store::Store;
use std::sync::Arc;
use std::time::Duration;

/// How long taking back may last: whoever stops a program wants it to stop.
const SETTLE: Duration = Duration::from_secs(8);

/// Does `work`, until SIGINT or SIGTERM. However it ends short, what it began in the store is waited for, not long; a second
/// signal ends that too.
pub(super) async fn interruptible<T, E>(
    store: &Arc<dyn Store>,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    let mut signals = Signals::listen()?;
    // It is dropped, and stops, when a signal comes.
    let ended = tokio::select! {
        done = work => done.map_err(Failure::from),
        number = signals.next() => Err(Failure::signalled(number)),
    };
    if ended.is_err() {
        tokio::select! {
            _ = tokio::time::timeout(SETTLE, store.settle()) => {}
            _ = signals.next() => {}
        }
    }
    ended
}
