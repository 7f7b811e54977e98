//! Chunks for readers, and chunks ahead of them: who waits for what, and what becomes of what came.
//!
//! Each chunk that is under way has one flight, with a task of its own, however many wait for it. All that one read
//! needs is asked for together, with what is to be fetched ahead of the next reads, so that neighbours become one
//! request. A flight that was begun ahead becomes a need when a reader joins it.

use super::ahead::Claim;
use super::decoded::{Key, key};
use super::dispatch::{Ask, Share, Wish};
use super::error::{Again, Failure, FetchError, FetchKind};
use super::flight::{Joined, Landing, wait};
use super::queue::Place;
use super::retry::{Task, within};
use super::watch::Cause;
use super::{Brought, Fetched, Fetcher, Layer, OnOutage};
use crate::layer::Located;
use crate::meter::Source;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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
    pub async fn get(&self, layer: &Layer, chunk: u32) -> Result<Bytes, FetchError> {
        let mut all = self.get_all(layer, &[chunk], &[]).await?;
        all.pop().ok_or_else(|| self.no_such(&self.task(layer, chunk)))
    }

    /// As [`Fetcher::get`], of all chunks that one read needs, in their order. What is to be fetched `ahead` (see
    /// [`Fetcher::noticed`]) is asked for together with them, and not waited for.
    pub async fn get_all(&self, layer: &Layer, chunks: &[u32], ahead: &[u32]) -> Result<Vec<Bytes>, FetchError> {
        self.get_all_from(layer, chunks, ahead).await.map(|(all, _)| all)
    }

    /// As [`Fetcher::get_all`], and the farthest place where one was.
    pub async fn get_all_from(
        &self,
        layer: &Layer,
        chunks: &[u32],
        ahead: &[u32],
    ) -> Result<(Vec<Bytes>, Source), FetchError> {
        let mut asks = Vec::new();
        let mut waits = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let task = self.task(layer, *chunk);
            let located = layer.index.chunk_at(*chunk).ok_or_else(|| self.no_such(&task))?;
            waits.push((task, located, self.need(layer, located, task, &mut asks)));
        }
        self.begin_readahead(layer, ahead, &mut asks);
        self.inner.dispatcher.ask(asks);
        let (mut all, mut farthest) = (Vec::with_capacity(waits.len()), Source::Memory);
        for (task, located, waiting) in waits {
            let (brought, source) = self.wait(layer, located, task, waiting).await?;
            let content = self.content(located, task, brought).await?;
            self.inner.meter.read(source, content.len());
            farthest = farthest.max(source);
            all.push(content);
        }
        Ok((all, farthest))
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
        let wish = wish(layer, &located, Cause::Read);
        let ready = || self.inner.ready(&key).map(|brought| Ok((brought, Source::Memory)));
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

    /// Begins to bring a chunk that nobody waits for and that is neither here nor under way; gives what to wait for.
    pub(super) fn begin_ahead(
        &self,
        layer: &Layer,
        chunk: u32,
        cause: Cause,
        asks: &mut Vec<Ask>,
    ) -> Option<(Place, watch::Receiver<Option<Fetched>>)> {
        let located = layer.index.chunk_at(chunk)?;
        let key = key(&located.entry);
        if (cause != Cause::Fill && self.inner.is_in_memory(&key)) || self.inner.is_cached(&located) {
            return None;
        }
        let (wish, task) = (wish(layer, &located, cause), self.task(layer, chunk));
        let Joined::Start(landing, receiver) = self.inner.flights.join(&key, &wish, || None) else { return None };
        let place = wish.place;
        // What stays as it is stored takes nothing of the room for decoded chunks.
        let decoded = if cause == Cause::Readahead { located.entry.data_len } else { 0 };
        let claim = self.inner.ahead.claim(decoded.into());
        asks.extend(self.start(layer, located, task, wish, landing, Some(claim)));
        Some((place, receiver))
    }

    /// Starts the flight of a chunk; `ahead` is what it counts for until it has come. Gives what is to be asked of the store
    /// for it: not yet of one that the cache may have.
    fn start(
        &self,
        layer: &Layer,
        located: Located,
        task: Task,
        wish: Arc<Wish>,
        landing: Landing<Key, Fetched, Arc<Wish>>,
        ahead: Option<Claim>,
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
            let at = Instant::now();
            let (fetched, share) = fetcher.bring(&layer, located, task, &wish, answer).await;
            if wish.cause != Cause::Read {
                let bytes = located.data_start..located.data_start + u64::from(located.entry.data_len);
                fetcher.tell(
                    &layer,
                    bytes,
                    wish.cause,
                    fetched.as_ref().ok().map(|(_, source)| *source),
                    at.into_std(),
                );
            }
            landing.land(fetched);
            drop((share, ahead));
        });
        ask
    }

    /// What a reader gets: decompressed where it came for nobody.
    async fn content(&self, located: Located, task: Task, brought: Brought) -> Result<Bytes, FetchError> {
        let stored = match brought {
            Brought::Content(content) => return Ok(content),
            Brought::Stored(stored) => stored,
        };
        self.inner.meter.prefetch_used();
        let inner = self.inner.clone();
        let decoded = tokio::task::spawn_blocking(move || inner.keep_decoded(&located.entry, &stored, false)).await;
        let none = || self.error(&task, Failure::new(FetchKind::Malformed, "the chunk is not what the index says"), 1);
        decoded.ok().flatten().ok_or_else(none)
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
            let (inner, layer, wish) = (self.inner.clone(), layer.clone(), wish.clone());
            let found = tokio::task::spawn_blocking(move || inner.found(&layer, &located, &wish)).await;
            if let Ok(Some(found)) = found {
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
        let brought = self.inner.keep(&located.entry, wish, &piece);
        if let Some(chunks) = &self.inner.chunks {
            chunks.put(located.entry.hash, piece.stored);
        }
        (Ok((brought, Source::Store)), piece.share)
    }
}

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn wish(layer: &Layer, located: &Located, cause: Cause) -> Arc<Wish> {
    Wish::new(Place { layer: layer.id, chunk: located.chunk }, cause)
}
