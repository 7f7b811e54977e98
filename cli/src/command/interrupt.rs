//! Signals to a command that writes to the store: what it was sending is taken back before it ends.

use crate::failure::Failure;
use blobstore::store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

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
    let listen = |kind| signal(kind).map_err(|e| Failure::because("waiting for signals", &e));
    let mut signals = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    // It is dropped, and stops, when a signal comes.
    let ended = tokio::select! {
        done = work => done.map_err(Failure::from),
        number = next(&mut signals) => Err(Failure::signalled(number)),
    };
    if ended.is_err() {
        tokio::select! {
            _ = tokio::time::timeout(SETTLE, store.settle()) => {}
            _ = next(&mut signals) => {}
        }
    }
    ended
}

async fn next((interrupt, terminate): &mut (Signal, Signal)) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
    }
}
