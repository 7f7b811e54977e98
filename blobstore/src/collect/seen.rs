//! What can be told of an object's time, where not everybody's clock is right.
//!
//! A bucket's times are its service's: of one clock. In a directory they are of whoever has written, on file systems over the network
//! often the writer's own machine's, and that can be wrong by years. So nothing is taken for dead by its date alone there.
//! What somebody who is alive writes again and again changes: what has been seen not to change for long enough, by the watcher's own
//! time, is dead, whatever its date says.

use crate::store::Listed;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Dates further in the future than this are nobody's who writes now, by any clock that is nearly right.
pub(super) const SKEW: Duration = Duration::from_secs(900);

/// Whether the objects of this store have their times from one clock.
pub(super) fn has_one_clock(url: &str) -> bool {
    url.starts_with("s3:")
}

/// How long ago it was written; `None` where that is in the future, by more than clocks differ that are nearly right.
pub(super) fn age(written: SystemTime, now: SystemTime) -> Option<Duration> {
    match now.duration_since(written) {
        Ok(age) => Some(age),
        Err(ahead) if ahead.duration() <= SKEW => Some(Duration::ZERO),
        Err(_) => None,
    }
}

/// Objects as they were seen first, and when that was by the watcher's own time.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<String, (SystemTime, u64, Duration)>);

/// What is known of an object's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Seen for the first time.
    New,
    /// Written again since it was seen last.
    Changed,
    /// As it was, for so long.
    Same(Duration),
}

impl Seen {
    /// Looks at an object, at this moment of the watcher's own time.
    pub(super) fn look(&mut self, object: &Listed, now: Duration) -> Sight {
        let (written, size) = (object.stat.modified, object.stat.size);
        match self.0.insert(object.key.clone(), (written, size, now)) {
            None => Sight::New,
            Some((before, length, since)) if (before, length) == (written, size) => {
                self.0.insert(object.key.clone(), (written, size, since));
                Sight::Same(now.saturating_sub(since))
            }
            Some(_) => Sight::Changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Stat;

    #[test]
    fn what_changes_is_alive_and_a_date_is_not_all_that_tells() {
        let (mut seen, second) = (Seen::default(), Duration::from_secs(1));
        let object = |at: u64| {
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            Listed { key: "k".to_owned(), stat: Stat { size: 1, modified } }
        };
        assert_eq!(seen.look(&object(5), second), Sight::New);
        assert_eq!(seen.look(&object(5), 3 * second), Sight::Same(2 * second));
        // Also where its clock goes back.
        assert_eq!(seen.look(&object(4), 4 * second), Sight::Changed);
        assert_eq!(seen.look(&object(4), 9 * second), Sight::Same(5 * second));
        let now = object(10_000).stat.modified;
        assert_eq!(age(now - second, now), Some(second));
        assert_eq!((age(now + SKEW, now), age(now + SKEW + second, now)), (Some(Duration::ZERO), None));
    }
}
