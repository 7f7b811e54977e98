//! Time, as holders and collectors measure and wait it: behind a trait, so that the model of them can turn the hands.
//!
//! This is a process's own time, for durations. What is compared between processes are the store's times of objects.

use async_trait::async_trait;
use std::fmt;
use std::time::{Duration, Instant};

/// A process's own time.
#[async_trait]
pub(super) trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Time since some moment before; never goes back.
    fn elapsed(&self) -> Duration;

    /// Waits.
    async fn sleep(&self, time: Duration);

    /// Waits beside something that does not take long as a rule.
    async fn watch(&self, time: Duration) {
        self.sleep(time).await;
    }
}

/// The machine's.
#[derive(Debug)]
pub(super) struct Machine(Instant);

impl Default for Machine {
    fn default() -> Self {
        Self(Instant::now())
    }
}

#[async_trait]
impl Clock for Machine {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
