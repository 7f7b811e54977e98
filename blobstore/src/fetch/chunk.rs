//! Chunks for readers, and chunks ahead of them: who waits for what, and what becomes of what came.
//!
//! Each chunk that is under way has one flight, with a task of its own, however many wait for it. All that one read
//! needs is asked for together, with what is to be fetched ahead of the next reads, so that neighbours become one
//! request. A flight that was begun ahead becomes a need when a reader joins it.

use super::decoded::{Key, key};
use super::dispatch::{Ask, Share, Wish};
use super::error::{Again, Failure, FetchError, FetchKind};
use super::flight::{Joined, Landing, wait};
use super::queue::Place;
use super::retry::{Task, within};
use super::{Fetched, Fetcher, Layer, OnOutage};
use crate::cache::Chunks;
use crate::layer::Located;
use crate::meter::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// How long a waiter waits past its deadline for the fetch's own error, which knows more, and comes at the same deadline.
const GRACE: Duration = Duration::from_millis(250);
/// How often a reader begins anew when another's fetch that it had joined failed.
const REJOINS: u32 = 4;

/// A chunk that a reader waits for.
enum Waiting {
    Done(Fetched),
    /// Somebody brings it; whether it was begun for this reader.
    Flight(watch::Receiver<Option<Fetched>>, bool),
}

impl Fetcher {
    /// A chunk's content, from wherever it is. Must be called within a tokio runtime. Answers within the deadline, or,
    /// where outages are waited for, when the store does.
    pub async fn get(&self, layer: &Layer, chunk: u32) -> Result<Arc<[u8]>, FetchError> {
        let mut all = self.get_all(layer, &[chunk], &[]).await?;
        all.pop().ok_or_else(|| self.no_such(&self.task(layer, chunk)))
    }

    /// As [`Fetcher::get`], of all chunks that one read needs, in their order. What is to be fetched `ahead` (see
    /// [`Fetcher::noticed`]) is asked for together with them, and not waited for.
    pub async fn get_all(&self, layer: &Layer, chunks: &[u32], ahead: &[u32]) -> Result<Vec<Arc<[u8]>>, FetchError> {
        let mut asks = Vec::new();
        let mut waits = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let task = self.task(layer, *chunk);
            let located = layer.index.chunk_at(*chunk).ok_or_else(|| self.no_such(&task))?;
            waits.push((task, located, self.need(layer, located, task, &mut asks)));
        }
        self.begin_readahead(layer, ahead, &mut asks);
        self.inner.dispatcher.ask(asks);
        let mut all = Vec::with_capacity(waits.len());
        for (task, located, waiting) in waits {
            let (content, source) = self.wait(layer, located, task, waiting).await?;
            self.inner.meter.read(source, content.len());
            all.push(content);
        }
        Ok(all)
    }

    fn task(&self, layer: &Layer, chunk: u32) -> Task {
        let deadline = match self.inner.options.on_outage {
            OnOutage::Fail => Some(Instant::now() + self.inner.options.deadline),
            OnOutage::Wait => None,
        };
        Task { layer: layer.id, chunk: Some(chunk), deadline }
    }

    fn no_such(&self, task: &Task) -> FetchError {
        self.error(task, Failure::new(FetchKind::Malformed, "the layer has no such chunk"), 0)
    }

    /// Begins to bring a chunk for a reader, or joins who does.
    fn need(&self, layer: &Layer, located: Located, task: Task, asks: &mut Vec<Ask>) -> Waiting {
        let key = key(&located.entry);
        let wish = wish(layer, &located, true, true);
        let ready = || self.inner.memory(&key).map(|content| Ok((content, Source::Memory)));
        match self.inner.flights.join(&key, &wish, ready) {
            Joined::Done(value) => Waiting::Done(value),
            Joined::Wait(receiver, wish) => {
                self.inner.dispatcher.raise(&wish);
                Waiting::Flight(receiver, false)
            }
            Joined::Start(landing, receiver) => {
                asks.extend(self.start(layer, located, task, wish, landing, None));
                Waiting::Flight(receiver, true)
            }
        }
    }

    /// Begins to bring chunks that nobody waits for and that are neither here nor under way; gives what to wait for. Where
    /// they are not to be kept in memory, what is there is not looked at either.
    pub(super) fn begin_ahead(
        &self,
        layer: &Layer,
        chunks: &[u32],
        keep: bool,
        asks: &mut Vec<Ask>,
    ) -> Vec<(Place, watch::Receiver<Option<Fetched>>)> {
        let mut begun = Vec::new();
        for chunk in chunks {
            let Some(located) = layer.index.chunk_at(*chunk) else { continue };
            let key = key(&located.entry);
            if (keep && self.inner.decoded.contains(&key)) || self.inner.is_cached(&located) {
                continue;
            }
            let (wish, task) = (wish(layer, &located, false, keep), self.task(layer, *chunk));
            if let Joined::Start(landing, receiver) = self.inner.flights.join(&key, &wish, || None) {
                begun.push((wish.place, receiver));
                let share = keep.then(|| self.inner.ahead.share(u64::from(located.entry.data_len)));
                asks.extend(self.start(layer, located, task, wish, landing, share));
            }
        }
        begun
    }

    /// Starts the flight of a chunk; `ahead` is what it counts for until it has come. Gives what is to be asked of the store for it: not yet of one that the cache may have.
    fn start(
        &self,
        layer: &Layer,
        located: Located,
        task: Task,
        wish: Arc<Wish>,
        landing: Landing<Key, Fetched, Arc<Wish>>,
        ahead: Option<super::ahead::Share>,
    ) -> Option<Ask> {
        let (ask, answer) = match self.inner.may_be_cached(&located) {
            true => (None, None),
            false => {
                let (reply, answer) = oneshot::channel();
                (Some(Ask { wish: wish.clone(), layer: layer.clone(), located, reply }), Some(answer))
            }
        };
        let (fetcher, layer) = (self.clone(), layer.clone());
        tokio::spawn(async move {
            let (fetched, share) = fetcher.bring(&layer, located, task, &wish, answer).await;
            landing.land(fetched);
            drop((share, ahead));
        });
        ask
    }

    /// What a reader waits for. Another's fetch of an equal chunk can fail for reasons that are not this reader's: it was
    /// from another layer, which may be gone where this one is not, or at a deadline earlier than this one's, or nobody
    /// needed it and it was given up.
    async fn wait(&self, layer: &Layer, located: Located, task: Task, mut waiting: Waiting) -> Fetched {
        for _ in 0..REJOINS {
            let (receiver, own) = match waiting {
                Waiting::Done(value) => return value,
                Waiting::Flight(receiver, own) => (receiver, own),
            };
            let late = task.deadline.map(|deadline| deadline + GRACE);
            let failed = |kind, what: &str| Err(self.error(&task, Failure::new(kind, what), 0));
            match within(late, wait(receiver)).await {
                None => return failed(FetchKind::Timeout, "no answer within the deadline"),
                Some(Some(fetched)) if own || fetched.is_ok() || is_past(task.deadline) => return fetched,
                Some(Some(Err(error))) if error.layer == layer.id && !self.may_pass(&error) => return Err(error),
                Some(None) if own => return failed(FetchKind::Local, "the fetch ended without a result"),
                Some(_) => {}
            }
            let mut asks = Vec::new();
            waiting = self.need(layer, located, task, &mut asks);
            self.inner.dispatcher.ask(asks);
        }
        Err(self.error(&task, Failure::new(FetchKind::Local, "every fetch that was joined failed"), 0))
    }

    /// Whether another attempt might end better than the one that a reader had joined.
    fn may_pass(&self, error: &FetchError) -> bool {
        match error.kind.again() {
            Again::UntilDeadline => true,
            Again::FewTimes => error.attempts < self.inner.options.attempts,
            Again::Never => false,
        }
    }

    /// A chunk from the cache, else from the store; and the memory that it is counted with until it is handed over.
    async fn bring(
        &self,
        layer: &Layer,
        located: Located,
        task: Task,
        wish: &Arc<Wish>,
        mut answer: Option<oneshot::Receiver<super::dispatch::Outcome>>,
    ) -> (Fetched, Option<Share>) {
        if answer.is_none() {
            let (inner, layer) = (self.inner.clone(), layer.clone());
            let local = tokio::task::spawn_blocking(move || inner.local(&layer, &located, Chunks::get)).await;
            if let Ok(Some(found)) = local {
                return (Ok(found), None);
            }
        }
        let once = |_| {
            let answer = answer.take().unwrap_or_else(|| {
                let (reply, answer) = oneshot::channel();
                self.inner.dispatcher.ask([Ask { wish: wish.clone(), layer: layer.clone(), located, reply }]);
                answer
            });
            async move { answer.await.unwrap_or_else(|_| Err(Failure::new(FetchKind::Timeout, "given up in the queue"))) }
        };
        let piece = match self.attempts(task, || wish.needed.load(Relaxed), once).await {
            Ok(piece) => piece,
            Err(error) => {
                self.inner.dispatcher.forget(wish.place);
                return (Err(error), None);
            }
        };
        let unread = !wish.needed.load(Relaxed);
        if unread && wish.keep {
            self.inner.meter.prefetched(u64::from(located.entry.stored_len));
        }
        if !unread || wish.keep {
            self.inner.decoded.put(key(&located.entry), piece.content.clone(), unread);
        }
        if let Some(chunks) = &self.inner.chunks {
            chunks.put(located.entry.hash, piece.stored);
        }
        (Ok((piece.content, Source::Store)), piece.share)
    }
}

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn wish(layer: &Layer, located: &Located, needed: bool, keep: bool) -> Arc<Wish> {
    let place = Place { layer: layer.id, chunk: located.chunk };
    Arc::new(Wish { place, needed: AtomicBool::new(needed), keep })
}
