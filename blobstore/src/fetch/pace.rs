//! How fast the store answers of late, and so when a request is late enough to be made a second time.
//!
//! Times are kept by size class (powers of two from 64 KiB on), the last [`WINDOW`] of each: a 1 MiB range is not late for
//! taking longer than one of 60 KiB. A second request is due once the first has taken longer than the 95th percentile of
//! its class, not before [`ENOUGH`] times are known. Each request earns a twentieth of a second one, and few are
//! saved up: a store that has become slow as a whole is not asked twice as much for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Times kept of each class.
const WINDOW: usize = 128;
/// Times that a percentile takes.
const ENOUGH: usize = 20;
/// Second requests that one request earns: at most 5 % more requests.
const EARNED: f64 = 0.05;
/// Second requests saved up at most.
const SAVED: f64 = 4.0;
/// Size classes: up to 64 KiB, 128 KiB, … and all that is larger.
const CLASSES: usize = 8;
/// A store whose first byte takes longer is far: worth fetching what is only likely to be needed.
const FAR: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    times: [Times; CLASSES],
    saved: f64,
    /// Moving mean of the time to the first byte, seconds.
    first: Option<f64>,
}

/// The last times of a class, in no useful order once it is full.
#[derive(Debug, Default)]
struct Times {
    kept: Vec<Duration>,
    next: usize,
}

impl Times {
    fn add(&mut self, time: Duration) {
        match self.kept.get_mut(self.next) {
            Some(oldest) => *oldest = time,
            None => self.kept.push(time),
        }
        self.next = (self.next + 1) % WINDOW;
    }

    fn p95(&self) -> Option<Duration> {
        if self.kept.len() < ENOUGH {
            return None;
        }
        let mut sorted = self.kept.clone();
        let at = sorted.len() * 95 / 100;
        Some(*sorted.select_nth_unstable(at).1)
    }
}

fn class(bytes: u64) -> usize {
    let units = bytes.div_ceil(64 << 10).max(1);
    (units.next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

impl Pace {
    /// A request begins: it earns its part of a second one. Gives when a second one would be due.
    pub(super) fn begin(&self, bytes: u64) -> Option<Duration> {
        let mut inner = self.lock();
        inner.saved = (inner.saved + EARNED).min(SAVED);
        inner.times[class(bytes)].p95()
    }

    /// Whether a second request may be made: it is paid for then.
    pub(super) fn spend(&self) -> bool {
        let mut inner = self.lock();
        let may = inner.saved >= 1.0;
        inner.saved -= if may { 1.0 } else { 0.0 };
        may
    }

    /// A request for so many bytes was answered; or was given up after this time, and would have taken longer.
    pub(super) fn took(&self, bytes: u64, time: Duration) {
        self.lock().times[class(bytes)].add(time);
    }

    /// The first byte of an answer came after this time.
    pub(super) fn first_byte(&self, time: Duration) {
        let mut inner = self.lock();
        let (before, now) = (inner.first, time.as_secs_f64());
        inner.first = Some(before.map_or(now, |b| b + (now - b) / 8.0));
    }

    /// Whether a round trip to the store costs more than the bytes that might save one.
    pub(super) fn far(&self) -> bool {
        self.lock().first.is_some_and(|first| first > FAR.as_secs_f64())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_second_request_is_due_past_the_95th_percentile_of_the_last_times_of_its_size() {
        let pace = Pace::default();
        for n in 1..=19 {
            pace.took(50_000, n * MS);
            assert_eq!(pace.begin(50_000), None);
        }
        pace.took(50_000, 1000 * MS);
        assert_eq!(pace.begin(65_536), Some(1000 * MS));
        assert_eq!(pace.begin(65_537), None);
        for n in 1..=100 {
            pace.took(50_000, n * MS);
        }
        assert_eq!(pace.begin(1), Some(96 * MS));
        (0..WINDOW).for_each(|_| pace.took(1, MS));
        assert_eq!(pace.begin(1), Some(MS));
    }

    #[test]
    fn one_request_of_twenty_is_made_twice_at_most() {
        let pace = Pace::default();
        let spent = (0..1000).filter(|_| pace.begin(1).is_some() | pace.spend()).count();
        assert!((45..=50).contains(&spent), "{spent}");
        (0..1000).for_each(|_| assert!(pace.begin(1).is_none()));
        assert_eq!((0..100).filter(|_| pace.spend()).count(), 4);
    }

    #[test]
    fn a_store_is_far_when_its_first_bytes_take_long() {
        let pace = Pace::default();
        assert!(!pace.far());
        pace.first_byte(5 * MS);
        assert!(pace.far());
        (0..20).for_each(|_| pace.first_byte(MS / 10));
        assert!(!pace.far());
        assert_eq!((class(0), class(65_536), class(65_537), class(1 << 20), class(u64::MAX)), (0, 0, 1, 4, 7));
    }
}
