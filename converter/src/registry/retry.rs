//! Trying again: what may pass is tried again after a pause that doubles, as long as the registry asks for at least.

use super::trouble::Trouble;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);

/// Also of what a registry asks for: a longer pause is as good as a failure, and clearer.
const LONGEST: Duration = Duration::from_secs(60);

/// How often a thing is tried that does not get any further.
const TRIES: u32 = 7;

/// The tries of one thing.
#[derive(Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// It got further: patience begins again.
    pub(super) fn progress(&mut self) {
        self.0 = 0;
    }

    /// Waits until the next try; what cannot pass, and what did not in all tries, is given back.
    pub(super) async fn pause(&mut self, trouble: Trouble) -> Result<(), Trouble> {
        let pause = self.next(trouble)?;
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// How long to wait until the next try.
    fn next(&mut self, trouble: Trouble) -> Result<Duration, Trouble> {
        let Trouble::Passing { what, wait } = trouble else { return Err(trouble) };
        self.0 += 1;
        let asked = wait.unwrap_or_default();
        if self.0 == TRIES || asked > LONGEST {
            return Err(Trouble::Lasting(format!("{what}; tried {} times", self.0)));
        }
        let pause = asked.max((FIRST * 2_u32.pow(self.0 - 1)).min(LONGEST));
        tracing::debug!(what, ?pause, "trying again");
        Ok(pause)
    }
}

/// Does it until it works, or cannot.
pub(super) async fn retrying<T>(mut work: impl AsyncFnMut() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let mut tries = Tries::default();
    loop {
        match work().await {
            Ok(done) => return Ok(done),
            Err(trouble) => tries.pause(trouble).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing(seconds: Option<u64>) -> Trouble {
        Trouble::Passing { what: "x".to_owned(), wait: seconds.map(Duration::from_secs) }
    }

    #[test]
    fn pauses_double_until_patience_ends_and_progress_renews_it() {
        let mut tries = Tries::default();
        for _ in 0..2 {
            let pauses: Vec<_> = (1..TRIES).map(|_| tries.next(passing(None)).unwrap()).collect();
            assert!(pauses.iter().zip(&pauses[1..]).all(|(a, b)| *b == 2 * *a), "{pauses:?}");
            tries.progress();
        }
        (1..TRIES).for_each(|_| assert!(tries.next(passing(None)).is_ok()));
        assert!(tries.next(passing(None)).unwrap_err().to_string().contains("tried 7 times"));
    }

    #[test]
    fn a_registry_is_waited_for_as_it_asks_but_not_longer_than_a_minute() {
        assert_eq!(Tries::default().next(passing(Some(7))).unwrap(), Duration::from_secs(7));
        assert!(Tries::default().next(passing(Some(3600))).is_err());
    }

    #[tokio::test]
    async fn what_cannot_pass_is_not_tried_again() {
        let mut count = 0;
        let missing = retrying(async || {
            count += 1;
            if count == 1 { Err::<(), _>(passing(None)) } else { Err(Trouble::Missing("x".to_owned())) }
        });
        assert!(matches!(missing.await, Err(Trouble::Missing(_))));
        assert_eq!(count, 2);
    }
}
