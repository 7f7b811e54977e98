//! A chunk: from memory, the local cache or the store. Verified before it is decompressed, before anybody sees it.
//!
//! [`Fetcher::cached`] answers at once or not at all (`local.rs`, `decoded.rs`, `stored.rs`); [`Fetcher::get_all`] goes to
//! the store: one flight per chunk however many wait (`flight.rs`, `chunk.rs`), turns by need and by layer (`queue.rs`,
//! `dispatch.rs`) within so many requests and so much memory, neighbours in one request that is made twice when it is late
//! (`request.rs`, `pace.rs`), attempts with pauses until a deadline (`retry.rs`), and then an error, also for who asks again at
//! once (`failures.rs`): never a wrong byte, never a wait without end unless that was asked for. Chunks that were fetched go to the cache off the reply path.
//! [`Fetcher::noticed`] says what to fetch ahead of reads (`pattern.rs`, `ahead.rs`), [`Fetcher::prefetch`] takes a list,
//! [`Fetcher::starts`] many (`list.rs`, `expected.rs`). Who wants to know what is read and fetched ahead watches (`watch.rs`).
//! [`Fetcher::open_head`] brings what a mount needs of a layer (`head.rs`).
//!
//! Deadlines and pauses are in tokio's time, so that tests can hold it. When something was read, or is expected to be
//! (`watch.rs`, `list.rs`), is the machine's.
//!
//! Which bytes of a file a chunk holds, and what an error means to a reader, are left to others.

mod ahead;
mod chunk;
mod decoded;
mod dispatch;
mod error;
mod expected;
mod failures;
mod flight;
mod head;
mod list;
mod local;
mod pace;
mod pattern;
mod queue;
mod request;
mod retry;
mod stored;
mod watch;

pub use error::{FetchError, FetchKind};
pub use failures::Failures;
pub use head::OpenHead;
pub use list::{Prefetch, Starts};
pub use watch::{Cause, Event, Watch};

use crate::cache::{Cache, Chunks, Heads};
use crate::layer::{Index, LayerId};
use crate::meter::{Meter, Source};
use crate::refs::layer_key;
use crate::store::Store;
use ahead::Begun;
use bytes::Bytes;
use decoded::{Decoded, Key};
use dispatch::{Dispatcher, Wish};
use error::Failure;
use flight::Flights;
use pattern::Pattern;
use retry::Quiet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stored::Stored;
use watch::Watchers;

/// What readers get when the store cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOutage {
    /// An error at the deadline.
    #[default]
    Fail,
    /// Nothing, until the store is back.
    Wait,
}

/// When a request is made a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hedge {
    /// When it has taken longer than 95 % of its like.
    #[default]
    P95,
    /// Never.
    Off,
}

/// How a [`Fetcher`] behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests to the store in flight at once.
    pub concurrency: usize,
    /// Longest time from asking for a chunk to an answer or an error.
    pub deadline: Duration,
    /// Whether readers get an error then.
    pub on_outage: OnOutage,
    /// Longest time of one attempt in which nothing comes.
    pub attempt: Duration,
    /// How often wrong answers (wrong bytes, short bodies) are asked for again. Failures of the store are retried until
    /// the deadline.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles with each.
    pub pause: Duration,
    /// Bytes of decoded chunks kept in memory.
    pub decoded: u64,
    /// Bytes of the chunks kept (`decoded`), and of those that requests bring, stored and decoded, until they are handed
    /// over. A request waits until there is room for what it brings. A quarter is for requests in any case: where
    /// `decoded` has more than the rest, both together take more than this. A single chunk for which there is never
    /// room is fetched alone. Not counted is what the chunk cache is still to write, which has its own bound.
    pub memory: u64,
    /// Bytes of a layer's file that one request asks for, where so many neighbours are wanted.
    pub coalesce: u64,
    /// Bytes of the data space fetched ahead of reads that follow each other; 0 = none. Of all runs together at most half of
    /// `decoded`, and a chunk of each.
    pub readahead: u64,
    /// Whether, of a store that is far, likely neighbours of chunks that are read are fetched too.
    pub neighbours: bool,
    /// Second requests.
    pub hedge: Hedge,
}

impl Options {
    /// Memory for what is in flight. A quarter at least, however much is kept.
    fn in_flight(&self) -> u64 {
        self.memory.saturating_sub(self.decoded).max(self.memory / 4)
    }

    /// Memory for what came for a list and is not read yet: taken from what is in flight, when it is used.
    fn stored(&self) -> u64 {
        self.memory / 8
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 64,
            deadline: Duration::from_secs(30),
            on_outage: OnOutage::Fail,
            attempt: Duration::from_secs(10),
            attempts: 4,
            pause: Duration::from_millis(50),
            decoded: 64 << 20,
            memory: 256 << 20,
            coalesce: 1 << 20,
            readahead: 16 << 20,
            neighbours: true,
            hedge: Hedge::P95,
        }
    }
}

/// A layer that chunks are read from.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Its id.
    pub id: LayerId,
    /// Key of its file in the store.
    pub key: String,
    /// Its verified index.
    pub index: Arc<Index>,
    /// What its reads look like.
    pattern: Arc<Mutex<Pattern>>,
}

impl Layer {
    /// The layer with this index, where stores have it.
    pub fn new(index: Arc<Index>) -> Self {
        let id = index.id();
        Self { id, key: layer_key(&id), index, pattern: Arc::default() }
    }
}

/// Brings chunks and heads. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    inner: Arc<Inner>,
}

/// A chunk that was brought.
#[derive(Debug, Clone)]
enum Brought {
    /// Its content.
    Content(Bytes),
    /// Verified, as it is stored: nobody waited for it.
    Stored(Bytes),
}

/// A chunk and where it came from; or why it did not.
type Fetched = Result<(Brought, Source), FetchError>;

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    heads: Heads,
    chunks: Option<Chunks>,
    options: Options,
    meter: Meter,
    decoded: Decoded,
    stored: Stored,
    watchers: Watchers,
    ahead: Arc<Begun>,
    flights: Arc<Flights<Key, Fetched, Arc<Wish>>>,
    opening: Arc<Flights<LayerId, Result<OpenHead, FetchError>>>,
    dispatcher: Arc<Dispatcher>,
    failures: Failures<(LayerId, u32), FetchError>,
    log: Quiet,
}

impl Fetcher {
    /// A fetcher from `store`. A cache without chunks works: every miss in memory goes to the store.
    pub fn new(store: Arc<dyn Store>, cache: Cache, options: Options, meter: Meter) -> Self {
        let kept = Arc::default();
        let inner = Inner {
            dispatcher: Dispatcher::new(store.clone(), meter.clone(), options.clone(), Arc::clone(&kept)),
            store,
            heads: cache.heads,
            chunks: cache.chunks,
            decoded: Decoded::new(options.decoded),
            stored: Stored::new(options.stored(), kept.clone()),
            watchers: Watchers::default(),
            ahead: Arc::default(),
            flights: Flights::new(),
            opening: Flights::new(),
            failures: Failures::default(),
            log: Quiet::new(),
            options,
            meter,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The heads on this node.
    pub fn heads(&self) -> &Heads {
        &self.inner.heads
    }

    /// The chunk cache, if there is one.
    pub fn chunks(&self) -> Option<&Chunks> {
        self.inner.chunks.as_ref()
    }

    /// The counters.
    pub fn meter(&self) -> &Meter {
        &self.inner.meter
    }

    /// Bytes of decoded chunks in memory.
    pub fn decoded_bytes(&self) -> u64 {
        self.inner.decoded.bytes()
    }

    /// Bytes of chunks in flight, with room for what they decode to, and of those just being handed over.
    pub fn in_flight_bytes(&self) -> u64 {
        self.inner.dispatcher.memory()
    }

    /// A chunk's content, if it is known to be on this node: in memory, or in the cache (then read, verified and
    /// decompressed by this thread). `None` also for a chunk number that the layer does not have, and while the cache is
    /// being read after a start, for what has not been come to: [`Fetcher::get`] looks for that.
    pub fn cached(&self, layer: &Layer, chunk: u32) -> Option<Bytes> {
        self.cached_from(layer, chunk).map(|(content, _)| content)
    }

    /// As [`Fetcher::cached`], and where it was.
    pub fn cached_from(&self, layer: &Layer, chunk: u32) -> Option<(Bytes, Source)> {
        let located = layer.index.chunk_at(chunk)?;
        self.inner.local(layer, &located, Chunks::get_known)
    }

    /// Forgets what memory has of a layer's chunks, decompressed or not. What is under way comes all the same.
    pub fn forget(&self, index: &Index) {
        index.chunks().for_each(|located| self.inner.forget(&located.entry));
    }

    /// Counts a request that failed, and what was wrong with its bytes.
    fn count(&self, failure: &Failure) {
        self.inner.dispatcher.count(failure.kind);
    }
}
