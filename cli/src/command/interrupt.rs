//! Signals to a command. Whatever it is at, its exit status is 128 and the signal's number, and nothing half done is left.

use crate::failure::Failure;
use crate::output;
use crate::signals::Signals;
use std::process::exit;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a command may take to end, once it was told to: whoever stops a program wants it to stop. Longer than what is
/// begun in a store may take to be taken back.
const END: Duration = Duration::from_secs(10);

/// Ends the process at the next signal, from another thread than the one that is at work, which may wait for a disk: for
/// commands that have nothing to take back. Must be called within a tokio runtime.
pub(super) fn end_at_once() -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    tokio::spawn(async move {
        let failure = Failure::signalled(signals.next().await);
        output::say(format_args!("lamina: {failure}"));
        exit(failure.status.into());
    });
    Ok(())
}

/// Does `work`, which is given what is done when a signal has come, and is to end short then: `None`. It is waited for, not
/// long, and a second signal ends that too. Once it is done there is nothing to take back: the next signal ends the process.
pub(super) async fn interruptible<T, F>(work: impl FnOnce(Stop) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Option<T>, Failure>>,
{
    let mut signals = Signals::listen()?;
    let (stop, stopped) = oneshot::channel();
    let mut work = std::pin::pin!(work(Stop(stopped)));
    let unasked = || Failure::failed("it ended before it was done");
    let number = tokio::select! {
        done = &mut work => {
            end_at_once()?;
            return done?.ok_or_else(unasked);
        }
        number = signals.next() => number,
    };
    drop(stop);
    let done = tokio::select! {
        done = &mut work => done.ok().flatten(),
        () = tokio::time::sleep(END) => None,
        _ = signals.next() => None,
    };
    // It may have been done just then.
    done.ok_or_else(|| Failure::signalled(number))
}

/// Says that it is time to end.
pub(super) struct Stop(oneshot::Receiver<()>);

impl Stop {
    /// Waits for that.
    pub(super) async fn wait(&mut self) {
        // Nothing is ever sent: the other end is dropped.
        let _ = (&mut self.0).await;
    }

    /// Does `work`, or goes away from it where it is time to end.
    pub(super) async fn or<T>(&mut self, work: impl Future<Output = Result<T, Failure>>) -> Result<Option<T>, Failure> {
        tokio::select! {
            done = work => done.map(Some),
            () = self.wait() => Ok(None),
        }
    }
}
