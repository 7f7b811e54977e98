//! One request: a range of a layer's file, cut into chunks as it comes. Each chunk is verified and handed over by itself,
//! the moment it is there; those behind it do not hold it up, and neither does a damaged one.
//!
//! A request that takes longer than its like is made a second time, for what has not come yet (`pace.rs` says when); of each
//! chunk the first copy that verifies counts, and who is second is broken off.

use super::dispatch::{Ask, Dispatcher, Outcome, Permit, Share, Wish};
use super::error::{Failure, FetchKind};
use super::queue::Class;
use super::{Hedge, Layer};
use crate::layer::{ChunkEntry, check_stored, decode};
use crate::store::Pieces;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// A request is not made a second time sooner than this: a store that near gains nothing by it.
const SOONEST: Duration = Duration::from_millis(5);

/// A verified chunk, and the memory that it takes until it is handed over.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) stored: Bytes,
    /// `None` where nobody waited for it.
    pub(super) content: Option<Bytes>,
    pub(super) share: Option<Share>,
}

/// A chunk of a request.
#[derive(Debug)]
pub(super) struct Slot {
    wish: Arc<Wish>,
    entry: ChunkEntry,
    range: Range<u64>,
    open: Mutex<Open>,
}

/// What is left to do for a chunk.
#[derive(Debug)]
struct Open {
    reply: Option<oneshot::Sender<Outcome>>,
    share: Option<Share>,
    failure: Option<Failure>,
}

impl Slot {
    pub(super) fn new(ask: Ask, share: Share) -> Arc<Self> {
        let (entry, start) = (ask.located.entry, ask.located.file_offset);
        let range = start..start.saturating_add(u64::from(entry.stored_len));
        let open = Open { reply: Some(ask.reply), share: Some(share), failure: None };
        Arc::new(Self { wish: ask.wish, entry, range, open: Mutex::new(open) })
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_done(&self) -> bool {
        self.open().reply.is_none()
    }

    /// Whether nobody waits for the chunk: it was handed over, or its deadline has passed.
    fn is_given_up(&self) -> bool {
        self.open().reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Verifies the bytes that came and hands the chunk over, where nobody has yet. Works for milliseconds.
    fn settle(&self, stored: Bytes) -> Result<(), FetchKind> {
        if self.is_done() {
            return Ok(());
        }
        let content = match self.wish.may_stay_stored() {
            true => check_stored(&stored, &self.entry).map(|()| None),
            false => decode(&stored, &self.entry).map(|content| Some(content.into())),
        };
        let mut open = self.open();
        match content {
            Ok(content) => {
                let share = open.share.take();
                if let Some(reply) = open.reply.take() {
                    let _ = reply.send(Ok(Piece { stored, content, share }));
                }
                Ok(())
            }
            Err(error) => {
                let failure = Failure::from(error);
                let kind = failure.kind;
                open.failure = Some(failure);
                Err(kind)
            }
        }
    }

    /// Ends what was not handed over: with what was wrong with it, else with what ended the request.
    fn fail(&self, cause: &Failure) {
        let mut open = self.open();
        let failure = open.failure.take().unwrap_or_else(|| cause.clone());
        open.share = None;
        if let Some(reply) = open.reply.take() {
            let _ = reply.send(Err(failure));
        }
    }
}

/// Makes the request and hands out what it brings: everybody gets a chunk or a failure.
pub(super) async fn run(dispatcher: Arc<Dispatcher>, layer: Layer, slots: Vec<Arc<Slot>>, permit: Permit) {
    let (begun, bytes) = (Instant::now(), length(&slots));
    let due = dispatcher.pace.begin(bytes).filter(|_| dispatcher.options.hedge == Hedge::P95);
    let ended = made(&dispatcher, &layer, &slots, due.map(|after| after.max(SOONEST))).await;
    drop(permit);
    let took = begun.elapsed();
    if ended.is_ok() {
        dispatcher.pace.took(bytes, took);
        dispatcher.meter.fetch_done(took);
    }
    let ended = ended.err().unwrap_or_else(|| Failure::new(FetchKind::Local, "the request ended without it"));
    slots.iter().for_each(|slot| slot.fail(&ended));
}

/// The request, and a second one once that is due. Who is first to bring everything ends it; where neither does, the
/// first one's failure counts.
async fn made(
    dispatcher: &Arc<Dispatcher>,
    layer: &Layer,
    slots: &[Arc<Slot>],
    due: Option<Duration>,
) -> Result<(), Failure> {
    let first = poured(dispatcher, &layer.key, slots);
    let Some(due) = due else { return first.await };
    tokio::pin!(first);
    if let Ok(ended) = timeout(due, &mut first).await {
        return ended;
    }
    let second = second(dispatcher, layer, slots);
    tokio::pin!(second);
    tokio::select! {
        biased;
        ended = &mut first => match ended {
            Ok(()) => Ok(()),
            // The second may bring what this one did not.
            Err(failure) => if second.await { Ok(()) } else { Err(failure) },
        },
        brought = &mut second => if brought { Ok(()) } else { first.await },
    }
}

/// The same request once more for what has not come; whether it brought that. It is not made where there is no room to
/// spare.
async fn second(dispatcher: &Arc<Dispatcher>, layer: &Layer, slots: &[Arc<Slot>]) -> bool {
    let from = slots.iter().position(|slot| !slot.is_done());
    let Some(left) = from.and_then(|from| slots.get(from..)) else { return false };
    let needed = left.iter().any(|slot| !slot.is_done() && slot.wish.class() == Class::Need);
    let class = if needed { Class::Need } else { Class::Ahead };
    let Some(_room) = dispatcher.spare(class, length(left)) else { return false };
    dispatcher.meter.hedged();
    let brought = poured(dispatcher, &layer.key, left).await.is_ok();
    if brought {
        dispatcher.meter.hedge_won();
    }
    brought
}

fn length(slots: &[Arc<Slot>]) -> u64 {
    let ends = slots.first().zip(slots.last());
    ends.map_or(0, |(first, last)| last.range.end.saturating_sub(first.range.start))
}

/// As [`pour`]; a failure is counted.
async fn poured(dispatcher: &Arc<Dispatcher>, key: &str, slots: &[Arc<Slot>]) -> Result<(), Failure> {
    pour(dispatcher, key, slots).await.inspect_err(|failure| dispatcher.count(failure.kind))
}

/// Reads the range of these chunks, and has each verified as it comes. An error is the request's; what is wrong with a
/// chunk is kept with it.
async fn pour(dispatcher: &Arc<Dispatcher>, key: &str, slots: &[Arc<Slot>]) -> Result<(), Failure> {
    let (Some(first), Some(last)) = (slots.first(), slots.last()) else { return Ok(()) };
    let begun = Instant::now();
    let pieces = dispatcher.store.read(key, first.range.start..last.range.end);
    let pieces = heard(dispatcher.options.attempt, pieces).await??;
    let mut body = Body { pieces, rest: Bytes::new(), at: first.range.start, begun: Some(begun), dispatcher, slots };
    let mut checks = Vec::with_capacity(slots.len());
    let mut broken = None;
    for slot in slots {
        match body.take(&slot.range).await {
            Ok(stored) => {
                let slot = slot.clone();
                checks.push(tokio::task::spawn_blocking(move || slot.settle(stored)));
            }
            Err(failure) => {
                broken = Some(failure);
                break;
            }
        }
    }
    // Also where the rest did not come: what did is good.
    for check in checks {
        let failure = match check.await {
            Ok(Ok(())) => continue,
            Ok(Err(kind)) => Failure::new(kind, "a chunk was not what it should be"),
            Err(error) => Failure::new(FetchKind::Local, error),
        };
        broken.get_or_insert(failure);
    }
    broken.map_or(Ok(()), Err)
}

/// What comes within the time in which something must come.
async fn heard<T>(patience: Duration, something: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure::new(FetchKind::Timeout, format!("nothing came within {patience:?}"));
    timeout(patience, something).await.map_err(late)
}

/// What comes, and up to where it has been used.
struct Body<'a> {
    pieces: Pieces,
    rest: Bytes,
    at: u64,
    begun: Option<Instant>,
    dispatcher: &'a Dispatcher,
    slots: &'a [Arc<Slot>],
}

impl Body<'_> {
    /// The bytes of `range`, which does not begin before what was taken last; what lies between is thrown away.
    async fn take(&mut self, range: &Range<u64>) -> Result<Bytes, Failure> {
        while self.at < range.start {
            let skip = usize::try_from(range.start - self.at).unwrap_or(usize::MAX).min(self.rest.len());
            drop(self.rest.split_to(skip));
            self.at += skip as u64;
            if self.at < range.start {
                self.rest = self.next(range).await?;
            }
        }
        // Bounded by the format: a verified index says so.
        let length = (range.end - range.start) as usize;
        if self.rest.is_empty() && length > 0 {
            self.rest = self.next(range).await?;
        }
        self.at += length as u64;
        if self.rest.len() >= length {
            return Ok(self.rest.split_to(length));
        }
        let mut whole = BytesMut::with_capacity(length);
        loop {
            let part = self.rest.len().min(length - whole.len());
            whole.extend_from_slice(&self.rest.split_to(part));
            if whole.len() == length {
                return Ok(whole.freeze());
            }
            self.rest = self.next(range).await?;
        }
    }

    /// The next bytes, however slowly they come, as long as some do and somebody waits for them.
    async fn next(&mut self, range: &Range<u64>) -> Result<Bytes, Failure> {
        if self.slots.iter().all(|slot| slot.is_given_up()) {
            return Err(Failure::new(FetchKind::Timeout, "so slow that nobody waits for it any longer"));
        }
        let some = async {
            loop {
                match self.pieces.next().await {
                    Some(Ok(piece)) if piece.is_empty() => {}
                    other => return other,
                }
            }
        };
        let Some(piece) = heard(self.dispatcher.options.attempt, some).await? else {
            let what = format!("the body ended within bytes {}..{}", range.start, range.end);
            return Err(Failure::new(FetchKind::Answer, what));
        };
        let piece = piece?;
        if let Some(begun) = self.begun.take() {
            self.dispatcher.pace.first_byte(begun.elapsed());
        }
        self.dispatcher.meter.fetched(piece.len() as u64);
        Ok(piece)
    }
}
