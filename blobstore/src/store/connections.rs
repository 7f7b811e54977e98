//! The connections to a store, and what to do when they are dead without saying so.
//!
//! What lies between (a firewall, a NAT, a load balancer that was replaced) can forget connections: what is sent on them
//! is swallowed, and nothing comes back, not even a reset. A client would try them one after the other, each for as long as it
//! waits for an answer. So a pool that has answered before and does not answer anything for [`SILENCE`] while it is asked is
//! given up as a whole: what is asked from then on goes over new connections, and reads that wait are asked for once more
//! there. A new pool is not suspected: requests are made twice only where they would most likely have been in vain. A store that
//! is slow and alive can look dead: where an old connection answers first after all, the old pool is taken back, and from then on silence
//! has to last twice as long. Connections that nobody used for [`IDLE`] are not used again at all.

use super::StoreError;
use super::client::{Wanted, client};
use super::settings::Settings;
use reqwest::Client;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A pool that was asked and answered nothing for so long is not to be relied on, at first.
const SILENCE: Duration = Duration::from_secs(2);
/// Nor is one of a store that is slow, and was taken for dead before, after at most so long.
const LONGEST_SILENCE: Duration = Duration::from_secs(32);

/// Connections are kept so long without use: NATs forget them after a minute and more.
pub(super) const IDLE: Duration = Duration::from_secs(30);

type Make = dyn Fn() -> Result<Client, StoreError> + Send + Sync;

/// See the module.
pub(super) struct Connections {
    make: Box<Make>,
    current: Mutex<Current>,
}

#[derive(Clone)]
struct Current {
    pool: Arc<Pool>,
    /// How long a silence makes it look dead.
    silence: Duration,
}

struct Pool {
    client: Client,
    /// When an answer came last.
    heard: Mutex<Option<Instant>>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connections")
    }
}

impl Pool {
    fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, heard: Mutex::default() })
    }

    fn heard(&self) -> MutexGuard<'_, Option<Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer, by a client of this pool.
    async fn ask<T, E>(&self, asked: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let answer = asked.await;
        if answer.is_ok() {
            *self.heard() = Some(Instant::now());
        }
        answer
    }

    /// Whether it answered before this moment, and nothing since.
    fn is_silent_since(&self, moment: Instant) -> bool {
        self.heard().is_some_and(|heard| heard <= moment)
    }
}

impl Connections {
    /// Connections to the store at `store`, by the settings.
    pub(super) fn new(store: &str, settings: &Settings, wanted: &Wanted) -> Result<Self, StoreError> {
        let (store, settings, wanted) = (store.to_owned(), settings.clone(), wanted.clone());
        let make: Box<Make> = Box::new(move || client(&store, &settings, &wanted));
        let current = Mutex::new(Current { pool: Pool::new(make()?), silence: SILENCE });
        Ok(Self { make, current })
    }

    /// The head of an answer to a request that `send` makes by a client; a second time where it may be done twice (`again`: it
    /// writes nothing) and the connections are dead.
    pub(super) async fn ask<T, E, F>(&self, again: bool, send: impl Fn(Client) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let begun = Instant::now();
        let Current { pool, silence } = self.current().clone();
        let mut first = pin!(pool.ask(send(pool.client.clone())));
        if let Ok(answer) = timeout(silence, &mut first).await {
            return answer;
        }
        // What is written has an answer only when all of it was sent: its silence tells nothing.
        let fresh = if again && pool.is_silent_since(begun) { self.after(&pool) } else { None };
        let Some(fresh) = fresh else { return first.await };
        let mut second = pin!(fresh.ask(send(fresh.client.clone())));
        tokio::select! {
            biased;
            answer = &mut first => match answer {
                Ok(answer) => {
                    self.back(&fresh, &pool, silence);
                    Ok(answer)
                }
                Err(_) => second.await,
            },
            answer = &mut second => match answer {
                Ok(answer) => Ok(answer),
                Err(_) => first.await,
            },
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool in use after this one was given up.
    fn after(&self, dead: &Arc<Pool>) -> Option<Arc<Pool>> {
        let mut current = self.current();
        if Arc::ptr_eq(&current.pool, dead) {
            let made = (self.make)().inspect_err(|error: &StoreError| tracing::warn!(%error, "no new connections"));
            current.pool = Pool::new(made.ok()?);
            tracing::info!("the store answers nothing on its connections: they are given up for new ones");
        }
        Some(current.pool.clone())
    }

    /// A pool was given up that was alive, after a silence of so long.
    fn back(&self, fresh: &Arc<Pool>, alive: &Arc<Pool>, silence: Duration) {
        let mut current = self.current();
        if Arc::ptr_eq(&current.pool, fresh) {
            current.pool = alive.clone();
        }
        current.silence = current.silence.max(silence.saturating_mul(2)).min(LONGEST_SILENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::CONNECT;
    use super::*;
    use reqwest::redirect::Policy;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// Connections, and a way to ask of which each answer is told: the first pool's requests are never answered once it is
    /// dead, all others at once.
    async fn asked(again: bool, heard_before: bool, heard_meanwhile: bool) -> (Option<&'static str>, usize) {
        let wanted = Wanted { target: None, plain_http: true, connect: CONNECT, redirects: Policy::none };
        let connections = Arc::new(Connections::new("s3://b", &Settings::default(), &wanted).unwrap());
        let pool = connections.current().pool.clone();
        if heard_before {
            connections.ask(again, |_| async { Ok::<_, ()>(()) }).await.unwrap();
        }
        if heard_meanwhile {
            let connections = connections.clone();
            tokio::spawn(async move {
                tokio::time::sleep(SILENCE / 2).await;
                connections.ask(false, |_| async { Ok::<_, ()>(()) }).await
            });
        }
        let sent = AtomicUsize::new(0);
        let answer = connections.ask(again, |_| {
            let first = sent.fetch_add(1, SeqCst) == 0;
            async move {
                match first {
                    true => std::future::pending().await,
                    false => Ok::<_, ()>("the second"),
                }
            }
        });
        let answer = timeout(10 * SILENCE, answer).await.ok().map(Result::unwrap);
        let renewed = usize::from(!Arc::ptr_eq(&pool, &connections.current().pool));
        (answer, renewed)
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_has_answered_before_and_then_nothing_is_given_up() {
        assert_eq!(asked(true, true, false).await, (Some("the second"), 1));
        assert_eq!(asked(false, true, false).await, (None, 0), "what may not be done twice is not, and tells nothing");
        assert_eq!(asked(true, true, true).await, (None, 0), "slow, and alive");
        assert_eq!(asked(true, false, false).await, (None, 0), "new, and as good as any other");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_slow_and_alive_keeps_its_connections_and_is_given_more_time() {
        let wanted = Wanted { target: None, plain_http: true, connect: CONNECT, redirects: Policy::none };
        let connections = Connections::new("s3://b", &Settings::default(), &wanted).unwrap();
        let pool = connections.current().pool.clone();
        connections.ask(true, |_| async { Ok::<_, ()>(()) }).await.unwrap();
        let sent = AtomicUsize::new(0);
        for expected in [2, 3, 4, 5] {
            let slow = |_| {
                sent.fetch_add(1, SeqCst);
                async {
                    tokio::time::sleep(SILENCE * 3 / 2).await;
                    Ok::<_, ()>(())
                }
            };
            connections.ask(true, slow).await.unwrap();
            assert_eq!(sent.load(SeqCst), expected, "twice once only");
            assert!(Arc::ptr_eq(&pool, &connections.current().pool));
        }
    }
}
