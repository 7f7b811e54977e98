//! Turns at the store: so many requests at once, within so much memory, readers' needs before everything else.
//!
//! What is wanted waits in the queue (`queue.rs`) until a request and memory are free. The lock is held while the queue is
//! looked at, never while anything is fetched, verified or waited for. What is fetched ahead may have three quarters of
//! both at most, so that a reader who comes finds room at once. Whatever was handed out comes back by being dropped.

use super::error::{Failure, FetchKind};
use super::pace::Pace;
use super::queue::{Class, Place, Queue, Reach, Room, Want};
use super::request::{self, Piece, Slot};
use super::watch::Cause;
use super::{Layer, Options};
use crate::layer::{LayerId, Located};
use crate::meter::Meter;
use crate::store::Store;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{Notify, oneshot};

/// Bytes between two wanted chunks that are read through: asking twice costs more than a few blocks.
const GAP: u64 = 64 << 10;
/// A place that no chunk has: the index's bound keeps their numbers far below.
const HEAD: u32 = u32::MAX;

/// One attempt's result for one chunk.
pub(super) type Outcome = Result<Piece, Failure>;

/// What is known of a wanted chunk by everybody who is concerned with it.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) place: Place,
    /// Set once a reader waits for it; never taken back.
    pub(super) needed: AtomicBool,
    /// Why it was begun.
    pub(super) cause: Cause,
}

impl Wish {
    pub(super) fn new(place: Place, cause: Cause) -> Arc<Self> {
        Arc::new(Self { place, needed: AtomicBool::new(cause == Cause::Read), cause })
    }

    /// Whether its content is not needed yet: a list is longer than what memory holds of it, decompressed.
    pub(super) fn may_stay_stored(&self) -> bool {
        matches!(self.cause, Cause::Prefetch | Cause::Fill) && !self.needed.load(Relaxed)
    }

    pub(super) fn class(&self) -> Class {
        if self.needed.load(Relaxed) { Class::Need } else { Class::Ahead }
    }
}

/// A chunk to be brought.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) wish: Arc<Wish>,
    pub(super) layer: Layer,
    pub(super) located: Located,
    pub(super) reply: oneshot::Sender<Outcome>,
}

#[derive(Debug)]
enum Payload {
    Chunk(Ask),
    /// Something that makes its one request itself.
    Turn(oneshot::Sender<Permit>),
}

#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) store: Arc<dyn Store>,
    pub(super) meter: Meter,
    pub(super) options: Options,
    pub(super) pace: Pace,
    state: Mutex<State>,
    freed: Arc<Notify>,
    watched: AtomicBool,
}

#[derive(Debug)]
struct State {
    queue: Queue<Payload>,
    /// In use, by class.
    requests: [usize; 2],
    memory: [u64; 2],
    /// Kept by others, of the same memory.
    kept: Arc<AtomicU64>,
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Permit {
    dispatcher: Arc<Dispatcher>,
    class: Class,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.dispatcher.lock().requests[self.class as usize] -= 1;
        self.dispatcher.freed.notify_one();
    }
}

/// Memory in use.
#[derive(Debug)]
pub(super) struct Share {
    dispatcher: Arc<Dispatcher>,
    class: Class,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.dispatcher.lock().memory[self.class as usize] -= self.bytes;
        self.dispatcher.freed.notify_one();
    }
}

impl Dispatcher {
    /// `kept` are the bytes that came for lists, and take their part of the memory.
    pub(super) fn new(store: Arc<dyn Store>, meter: Meter, options: Options, kept: Arc<AtomicU64>) -> Arc<Self> {
        let state = State { queue: Queue::new(), requests: [0; 2], memory: [0; 2], kept };
        Arc::new(Self {
            store,
            meter,
            options,
            pace: Pace::default(),
            state: Mutex::new(state),
            freed: Arc::default(),
            watched: AtomicBool::new(false),
        })
    }

    /// Lets chunks wait for their turn. Must be called within a tokio runtime.
    pub(super) fn ask(self: &Arc<Self>, asks: impl IntoIterator<Item = Ask>) {
        let mut state = self.lock();
        for ask in asks {
            let (entry, start) = (ask.located.entry, ask.located.file_offset);
            let want = Want {
                place: ask.wish.place,
                // Under the lock that `raise` takes too: whichever comes later sees the other.
                class: ask.wish.class(),
                bytes: start..start.saturating_add(u64::from(entry.stored_len)),
                memory: u64::from(entry.stored_len) + u64::from(entry.data_len),
                payload: Payload::Chunk(ask),
            };
            // What stood there before had been given up by whoever waited for it.
            drop(state.queue.push(want));
        }
        drop(state);
        self.pump();
    }

    /// Waits for a turn for one request that is not a chunk's.
    pub(super) async fn turn(self: &Arc<Self>, layer: LayerId) -> Option<Permit> {
        let (reply, turn) = oneshot::channel();
        let place = Place { layer, chunk: HEAD };
        let payload = Payload::Turn(reply);
        let before =
            self.lock().queue.push(Want { place, class: Class::Need, bytes: u64::MAX..u64::MAX, memory: 0, payload });
        drop(before);
        self.pump();
        turn.await.ok()
    }

    /// A reader waits for it now.
    pub(super) fn raise(self: &Arc<Self>, wish: &Wish) {
        if !wish.needed.swap(true, Relaxed) {
            self.lock().queue.raise(wish.place);
            self.pump();
        }
    }

    /// Takes a chunk that nobody waits for out of the queue; one that is being fetched is let go on.
    pub(super) fn cancel(&self, place: Place) {
        let removed = self.lock().queue.remove(place, |want| want.class == Class::Ahead);
        drop(removed);
    }

    /// Takes out of the queue what nobody will wait for any longer.
    pub(super) fn forget(&self, place: Place) {
        let removed = self.lock().queue.remove(place, |_| true);
        drop(removed);
    }

    /// Room for a second request for so many bytes of the same, where there is any to spare: not while a need waits for
    /// what it would take, and not more for what is fetched ahead than that may have.
    pub(super) fn spare(self: &Arc<Self>, class: Class, bytes: u64) -> Option<(Permit, Share)> {
        let mut state = self.lock();
        let room = state.room(&self.options);
        let fits = match class {
            Class::Need => bytes <= room.bytes,
            Class::Ahead => bytes <= room.bytes.min(room.ahead),
        };
        let may = fits && state.may_begin(class, &self.options) && !state.queue.is_waiting(Class::Need);
        (may && self.pace.spend()).then(|| self.grant(&mut state, class, bytes))
    }

    /// Counts a request that failed, and what was wrong with its bytes.
    pub(super) fn count(&self, kind: FetchKind) {
        self.meter.fetch_failed(kind.as_str());
        if kind == FetchKind::Verify {
            self.meter.verify_failed();
        }
    }

    /// Bytes in use for requests in flight and what they bring, until it is handed over.
    pub(super) fn memory(&self) -> u64 {
        self.lock().memory.iter().sum()
    }

    fn grant(self: &Arc<Self>, state: &mut State, class: Class, bytes: u64) -> (Permit, Share) {
        state.requests[class as usize] += 1;
        state.memory[class as usize] += bytes;
        (Permit { dispatcher: self.clone(), class }, Share { dispatcher: self.clone(), class, bytes })
    }

    /// Begins all requests that may begin.
    fn pump(self: &Arc<Self>) {
        self.watch();
        while let Some((class, wants)) = self.next() {
            self.start(class, wants);
        }
    }

    /// The next request; its permit and memory are counted already.
    fn next(&self) -> Option<(Class, Vec<Want<Payload>>)> {
        let mut state = self.lock();
        // A little more: two chunks of 512 KiB that do not compress are some bytes longer than 1 MiB.
        let reach = Reach { bytes: self.options.coalesce + self.options.coalesce / 16, gap: GAP };
        if !state.may_begin(Class::Need, &self.options) {
            return None;
        }
        let room = state.room(&self.options);
        let mut taken = state.queue.take(Class::Need, reach, room).map(|wants| (Class::Need, wants));
        // A need that waits for memory is not overtaken: what came ahead of it would take that memory.
        let may = state.may_begin(Class::Ahead, &self.options) && !state.queue.is_waiting(Class::Need);
        if taken.is_none() && may {
            taken = state.queue.take(Class::Ahead, reach, room).map(|wants| (Class::Ahead, wants));
        }
        let (class, wants) = taken?;
        state.requests[class as usize] += 1;
        wants.iter().for_each(|want| state.memory[want.class as usize] += want.memory);
        Some((class, wants))
    }

    fn start(self: &Arc<Self>, class: Class, wants: Vec<Want<Payload>>) {
        let permit = Permit { dispatcher: self.clone(), class };
        let mut asks = Vec::with_capacity(wants.len());
        for want in wants {
            let share = Share { dispatcher: self.clone(), class: want.class, bytes: want.memory };
            match want.payload {
                Payload::Chunk(ask) => asks.push((ask, share)),
                // Alone: nothing lies beside it.
                Payload::Turn(reply) => return drop(reply.send(permit)),
            }
        }
        let Some(layer) = asks.first().map(|(ask, _)| ask.layer.clone()) else { return };
        let slots = asks.into_iter().map(|(ask, share)| Slot::new(ask, share)).collect();
        tokio::spawn(request::run(self.clone(), layer, slots, permit));
    }

    /// Has the queue looked at whenever something comes back. A task of its own does it: what comes back may be dropped
    /// anywhere, also where nothing can be begun.
    fn watch(self: &Arc<Self>) {
        if self.watched.swap(true, Relaxed) {
            return;
        }
        let (freed, dispatcher): (_, Weak<Self>) = (self.freed.clone(), Arc::downgrade(self));
        tokio::spawn(async move {
            loop {
                freed.notified().await;
                let Some(dispatcher) = dispatcher.upgrade() else { return };
                dispatcher.pump();
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing below panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.freed.notify_one();
    }
}

impl State {
    /// Whether one more request is within their number.
    fn may_begin(&self, class: Class, options: &Options) -> bool {
        let most = options.concurrency.max(1);
        self.requests.iter().sum::<usize>() < most
            && (class == Class::Need || self.requests[Class::Ahead as usize] < (most * 3 / 4).max(1))
    }

    /// Memory that a request may take.
    fn room(&self, options: &Options) -> Room {
        let in_flight = options.in_flight().saturating_sub(self.kept.load(Relaxed));
        Room {
            bytes: in_flight.saturating_sub(self.memory.iter().sum()),
            ahead: (in_flight / 4 * 3).saturating_sub(self.memory[Class::Ahead as usize]),
            exceed: self.memory == [0; 2],
        }
    }
}
