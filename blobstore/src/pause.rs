//! Pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pause after so many failed attempts, at least one: doubled with each, from `first` up to `longest`, and somewhere between
/// half and all of that, so that many who wait for the same do not come back together.
pub(crate) fn pause(first: Duration, longest: Duration, attempts: u32) -> Duration {
    let full = first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(longest);
    full.mul_f64(0.5 + (random() % 1024) as f64 / 2048.0)
}

/// Seeded anew by the standard library for each use: enough to spread, and for a name that nobody else has.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_growing_and_are_not_all_alike() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(2));
        for attempts in 1..100 {
            let full = Duration::from_millis(100 << (attempts - 1).min(10)).min(longest);
            let pause = pause(first, longest, attempts);
            assert!(pause >= full / 2 && pause <= full, "{attempts}: {pause:?}");
        }
        let all: std::collections::HashSet<_> = (0..20).map(|_| pause(first, longest, 1)).collect();
        assert!(all.len() > 1);
    }
}
