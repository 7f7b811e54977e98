//! Attempts: each with its own time, all within the deadline, with growing pauses between them.

use super::error::{Again, Failure, FetchError, FetchKind};
use super::{Fetcher, Options};
use crate::layer::LayerId;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout_at};

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What is being fetched, and until when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) layer: LayerId,
    pub(super) chunk: Option<u32>,
    pub(super) deadline: Instant,
    /// Longest time of one attempt.
    pub(super) attempt: Duration,
}

impl Fetcher {
    /// Tries `once` (told the number of the attempt, from 1) until it succeeds or there is no point in going on.
    /// An attempt counts as one request in flight.
    pub(super) async fn attempts<T, F>(&self, task: Task, mut once: impl FnMut(u32) -> F) -> Result<T, FetchError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let deadline = task.deadline.into();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let Ok(Ok(permit)) = timeout_at(deadline, self.inner.requests.acquire()).await else {
                let failure = Failure::new(FetchKind::Timeout, "too many requests in flight before this one");
                self.note(&task, &failure, attempt - 1);
                return Err(self.error(&task, failure, attempt - 1));
            };
            let begun = Instant::now();
            let end = task.deadline.min(begun + task.attempt);
            let failure = match timeout_at(end.into(), once(attempt)).await {
                Ok(Ok(value)) => {
                    self.inner.meter.fetch_done(begun.elapsed());
                    return Ok(value);
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::new(FetchKind::Timeout, format!("no answer within {:?}", end - begun)),
            };
            drop(permit);
            self.note(&task, &failure, attempt);
            let pause = pause(&self.inner.options, attempt);
            let enough = match failure.again() {
                Again::UntilDeadline => false,
                Again::FewTimes => attempt >= self.inner.options.attempts,
                Again::Never => true,
            };
            if enough || Instant::now() + pause >= task.deadline {
                return Err(self.error(&task, failure, attempt));
            }
            sleep(pause).await;
        }
    }

    /// Counts and logs a failed attempt.
    fn note(&self, task: &Task, failure: &Failure, attempt: u32) {
        let meter = &self.inner.meter;
        meter.fetch_failed(failure.kind.as_str());
        if failure.kind == FetchKind::Verify {
            meter.verify_failed();
        }
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

/// The pause after an attempt: doubled each time, and somewhere between half and all of that, so that many readers
/// (and nodes) do not come back together.
fn pause(options: &Options, attempt: u32) -> Duration {
    let doubled = options.pause.saturating_mul(1 << (attempt - 1).min(16));
    let full = doubled.min(LONGEST_PAUSE);
    // Seeded anew by the standard library for each use: randomness enough to spread, without a dependency.
    let random = std::hash::RandomState::new().build_hasher().finish();
    full.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
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
    fn pauses_grow_and_end_growing() {
        let options = Options { pause: Duration::from_millis(100), ..Options::default() };
        for attempt in 1..100 {
            let full = Duration::from_millis(100 << (attempt - 1).min(10)).min(LONGEST_PAUSE);
            let pause = pause(&options, attempt);
            assert!(pause >= full / 2 && pause <= full, "{attempt}: {pause:?}");
        }
    }

    #[test]
    fn the_log_is_limited() {
        let quiet = Quiet::new();
        let said = (0..100).filter(|_| quiet.allow().is_some()).count();
        assert_eq!(said, 10);
    }
}
