//! Attempts, all within the deadline where there is one, with growing pauses between them.

use super::Fetcher;
use super::error::{Again, Failure, FetchError, FetchKind};
use crate::layer::LayerId;
use crate::pause::pause;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The longest that a store may ask us to stay away: where readers wait for the end of an outage, it is noticed so soon.
const LONGEST_AWAY: Duration = Duration::from_secs(30);

/// What is left for the last attempt where a store asks to stay away past the deadline.
const LAST: Duration = Duration::from_secs(1);

/// What is being fetched, and until when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) layer: LayerId,
    pub(super) chunk: Option<u32>,
    /// When somebody began to wait for it.
    pub(super) since: Instant,
    /// `None` = however long it takes.
    pub(super) deadline: Option<Instant>,
}

/// The result in time; `None` at the deadline.
pub(super) async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

impl Fetcher {
    /// Tries `once` (told the number of the attempt, from 1) until it succeeds, there is no point in going on, or nobody
    /// wants it: what only might be read is tried once.
    pub(super) async fn attempts<T, F>(
        &self,
        task: Task,
        wanted: impl Fn() -> bool,
        mut once: impl FnMut(u32) -> F,
    ) -> Result<T, FetchError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut attempt = 0;
        let mut before: Option<Failure> = None;
        loop {
            attempt += 1;
            let failure = match within(task.deadline, once(attempt)).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(failure)) => failure,
                None => {
                    let late = FetchKind::Timeout;
                    // An attempt can begin a moment before the deadline: what ended the one before it tells more.
                    let failure = match before {
                        Some(Failure { kind, cause, .. }) => {
                            Failure::new(kind, format!("{cause}; then the deadline passed"))
                        }
                        None => Failure::new(late, "no answer within the deadline"),
                    };
                    // What only might be read may have waited in the queue all the time: nothing has failed.
                    if wanted() {
                        self.inner.meter.fetch_failed(late.as_str());
                        self.note(&task, &failure, attempt);
                    }
                    return Err(self.error(&task, failure, attempt));
                }
            };
            if !wanted() {
                return Err(self.error(&task, failure, attempt));
            }
            self.note(&task, &failure, attempt);
            let enough = match failure.again() {
                Again::UntilDeadline => false,
                Again::FewTimes => attempt >= self.inner.options.attempts,
                Again::Never => true,
            };
            let left = task.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match wait(pause(self.inner.options.pause, LONGEST_PAUSE, attempt), failure.after, left) {
                Some(pause) if !enough => sleep(pause).await,
                _ => return Err(self.error(&task, failure, attempt)),
            }
            before = Some(failure);
        }
    }

    /// Logs a failed attempt.
    fn note(&self, task: &Task, failure: &Failure, attempt: u32) {
        if let Some(unsaid) = self.inner.log.allow() {
            let (layer, chunk, store) = (task.layer, task.chunk, self.inner.store.url());
            let (cause, kind) = (&failure.cause, failure.kind.as_str());
            tracing::warn!(%layer, chunk, store, kind, cause, attempt, unsaid, "a fetch failed");
        }
    }

    pub(super) fn error(&self, task: &Task, failure: Failure, attempts: u32) -> FetchError {
        FetchError {
            kind: failure.kind,
            layer: task.layer,
            chunk: task.chunk,
            store: self.inner.store.url().to_owned(),
            attempts,
            cause: failure.cause,
        }
    }
}

/// How long to wait before the next attempt: what is due, and as long as the store asks for. `None` where no time is left.
fn wait(due: Duration, after: Option<Duration>, left: Option<Duration>) -> Option<Duration> {
    let asked = after.map_or(due, |after| due.max(after.min(LONGEST_AWAY)));
    match left {
        None => Some(asked),
        Some(left) if asked < left => Some(asked),
        // Better asked once too soon than a reader who fails although the store is back.
        Some(left) if after.is_some() => left.checked_sub(LAST).filter(|pause| *pause > due),
        Some(_) => None,
    }
}

/// Lets so many log lines through in a while.
#[derive(Debug)]
pub(super) struct Quiet(std::sync::Mutex<(Option<Instant>, u32)>);

impl Quiet {
    const WINDOW: Duration = Duration::from_secs(10);
    const LINES: u32 = 10;

    pub(super) fn new() -> Self {
        Self(std::sync::Mutex::new((None, 0)))
    }

    /// Whether to write a line now; and if so, how many were kept back in the window before.
    pub(super) fn allow(&self) -> Option<u32> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (start, count) = &mut *state;
        let mut unsaid = 0;
        if start.is_none_or(|s| s.elapsed() >= Self::WINDOW) {
            unsaid = count.saturating_sub(Self::LINES);
            (*start, *count) = (Some(Instant::now()), 0);
        }
        *count += 1;
        (*count <= Self::LINES).then_some(unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_left_alone_as_long_as_it_asks_and_the_deadline_allows() {
        let seconds = Duration::from_secs;
        let due = Duration::from_millis(50);
        for (after, left, expected) in [
            (None, None, Some(due)),
            (None, Some(seconds(1)), Some(due)),
            (None, Some(due), None),
            (Some(Duration::ZERO), Some(seconds(1)), Some(due)),
            (Some(seconds(7)), Some(seconds(30)), Some(seconds(7))),
            (Some(seconds(600)), None, Some(LONGEST_AWAY)),
            (Some(seconds(120)), Some(seconds(30)), Some(seconds(29))),
            (Some(seconds(120)), Some(seconds(1)), None),
        ] {
            assert_eq!(wait(due, after, left), expected, "{after:?} {left:?}");
        }
    }

    #[test]
    fn the_log_is_limited() {
        let quiet = Quiet::new();
        let said = (0..100).filter(|_| quiet.allow().is_some()).count();
        assert_eq!(said, 10);
    }
}
