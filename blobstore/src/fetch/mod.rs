//! A chunk: from memory, the local cache or the store. Verified before it is decompressed, before anybody sees it.
//!
//! [`Fetcher::cached`] answers at once or not at all; [`Fetcher::get`] goes to the store: one fetch per chunk however
//! many wait (`flight.rs`), so many requests in flight, attempts with pauses until a deadline, and then an error:
//! never a wrong byte, never a wait without end. Chunks that were fetched go to the cache off the reply path.
//! [`Fetcher::open_head`] does the same for what a mount needs of a layer.
//!
//! Which bytes of a file a chunk holds, what to fetch ahead, and what an error means to a reader are left to others.

mod decoded;
mod error;
mod flight;
mod head;
mod retry;

pub use error::{FetchError, FetchKind};
pub use head::OpenHead;

use crate::cache::{Cache, Chunks, Heads};
use crate::layer::{ChunkEntry, Index, LayerError, LayerId, Located, decode};
use crate::meter::{Meter, Source};
use crate::refs::layer_key;
use crate::store::Store;
use bytes::Bytes;
use decoded::{Decoded, Key, key};
use error::Failure;
use flight::{Flights, Joined, wait};
use retry::{Quiet, Task};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

/// How long a waiter waits past its deadline for the fetch's own error, which knows more, and comes at the same deadline.
const GRACE: Duration = Duration::from_millis(250);

/// How a [`Fetcher`] behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests to the store in flight at once.
    pub concurrency: usize,
    /// Longest time from asking for a chunk to an answer or an error.
    pub deadline: Duration,
    /// Longest time of one attempt at a chunk.
    pub attempt: Duration,
    /// How often wrong answers (wrong bytes, short bodies) are asked for again. Failures of the store are retried until
    /// the deadline.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles with each.
    pub pause: Duration,
    /// Bytes of decoded chunks kept in memory.
    pub decoded: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 64,
            deadline: Duration::from_secs(30),
            attempt: Duration::from_secs(10),
            attempts: 4,
            pause: Duration::from_millis(50),
            decoded: 64 << 20,
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
}

impl Layer {
    /// The layer with this index, where stores have it.
    pub fn new(index: Arc<Index>) -> Self {
        let id = index.id();
        Self { id, key: layer_key(&id), index }
    }
}

/// Brings chunks and heads. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    inner: Arc<Inner>,
}

/// A chunk's content and where it came from; or why it did not.
type Fetched = Result<(Arc<[u8]>, Source), FetchError>;

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    heads: Heads,
    chunks: Option<Chunks>,
    options: Options,
    meter: Meter,
    decoded: Decoded,
    flights: Arc<Flights<Key, Fetched>>,
    opening: Arc<Flights<LayerId, Result<OpenHead, FetchError>>>,
    requests: Semaphore,
    log: Quiet,
}

impl Fetcher {
    /// A fetcher from `store`. A cache without chunks works: every miss in memory goes to the store.
    pub fn new(store: Arc<dyn Store>, cache: Cache, options: Options, meter: Meter) -> Self {
        let inner = Inner {
            store,
            heads: cache.heads,
            chunks: cache.chunks,
            decoded: Decoded::new(options.decoded),
            flights: Flights::new(),
            opening: Flights::new(),
            requests: Semaphore::new(options.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
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

    /// A chunk's content, if it is on this node: in memory, or in the cache (then read, verified and decompressed by
    /// this thread). `None` also for a chunk number that the layer does not have.
    pub fn cached(&self, layer: &Layer, chunk: u32) -> Option<Arc<[u8]>> {
        let located = layer.index.chunk_at(chunk)?;
        let (content, source) = self.inner.local(layer, &located)?;
        self.inner.meter.read(source, content.len());
        Some(content)
    }

    /// A chunk's content, from wherever it is. Must be called within a tokio runtime. Answers within the deadline.
    pub async fn get(&self, layer: &Layer, chunk: u32) -> Result<Arc<[u8]>, FetchError> {
        let deadline = Instant::now() + self.inner.options.deadline;
        let task = Task { layer: layer.id, chunk: Some(chunk), deadline, attempt: self.inner.options.attempt };
        let Some(located) = layer.index.chunk_at(chunk) else {
            return Err(self.error(&task, Failure::new(FetchKind::Malformed, "the layer has no such chunk"), 0));
        };
        let (mut fetched, own) = self.join(layer, &located, task).await;
        // Somebody else's fetch of an equal chunk failed: from another layer, which may be gone where ours is not, or
        // at a deadline earlier than ours.
        let not_ours = |e: &FetchError| !own && (e.layer != layer.id || e.kind == FetchKind::Timeout);
        if fetched.as_ref().is_err_and(not_ours) && Instant::now() < deadline {
            fetched = self.join(layer, &located, task).await.0;
        }
        let (content, source) = fetched?;
        self.inner.meter.read(source, content.len());
        Ok(content)
    }

    /// The result of the chunk's fetch, begun here where none is under way; and whether it was.
    async fn join(&self, layer: &Layer, located: &Located, task: Task) -> (Fetched, bool) {
        let key = key(&located.entry);
        let ready = || self.inner.decoded.get(&key).map(|content| Ok((content, Source::Memory)));
        let (receiver, own) = match self.inner.flights.join(&key, ready) {
            Joined::Done(value) => return (value, false),
            Joined::Wait(receiver) => (receiver, false),
            Joined::Start(landing, receiver) => {
                let (fetcher, layer, located) = (self.clone(), layer.clone(), *located);
                tokio::spawn(async move { landing.land(fetcher.fetch(layer, located, task).await) });
                (receiver, true)
            }
        };
        let failed = |kind, what: &str| Err(self.error(&task, Failure::new(kind, what), 0));
        let fetched = match timeout_at((task.deadline + GRACE).into(), wait(receiver)).await {
            Ok(Some(value)) => value,
            Ok(None) => failed(FetchKind::Local, "the fetch ended without a result"),
            Err(_) => failed(FetchKind::Timeout, "no answer within the deadline"),
        };
        (fetched, own)
    }

    /// A chunk from the cache, else from the store. The one place where chunks come from the store.
    async fn fetch(&self, layer: Layer, located: Located, task: Task) -> Fetched {
        if self.inner.chunks.as_ref().is_some_and(|c| c.contains(&located.entry.hash)) {
            let (inner, layer) = (self.inner.clone(), layer.clone());
            let local = tokio::task::spawn_blocking(move || inner.local(&layer, &located)).await;
            if let Ok(Some(found)) = local {
                return Ok(found);
            }
        }
        let entry = located.entry;
        let range = located.file_offset..located.file_offset.saturating_add(u64::from(entry.stored_len));
        let once = |_| {
            let (fetcher, key, range) = (self.clone(), layer.key.clone(), range.clone());
            async move {
                let stored = fetcher.inner.store.get_range(&key, range).await?;
                fetcher.inner.meter.fetched(stored.len() as u64);
                verified(stored, entry).await
            }
        };
        let (stored, content) = self.attempts(task, once).await?;
        self.inner.decoded.put(key(&entry), content.clone());
        if let Some(chunks) = &self.inner.chunks {
            chunks.put(entry.hash, stored);
        }
        Ok((content, Source::Store))
    }
}

/// The content of what the store answered, on a thread that may work for milliseconds.
async fn verified(stored: Bytes, entry: ChunkEntry) -> Result<(Bytes, Arc<[u8]>), Failure> {
    if stored.len() as u64 != u64::from(entry.stored_len) {
        let what = format!("{} bytes came, {} were asked for", stored.len(), entry.stored_len);
        return Err(Failure::new(FetchKind::Answer, what));
    }
    let decoded = tokio::task::spawn_blocking(move || {
        let content = decode(&stored, &entry)?;
        Ok::<_, LayerError>((stored, Arc::from(content)))
    });
    match decoded.await {
        Ok(result) => Ok(result?),
        Err(e) => Err(Failure::new(FetchKind::Local, e)),
    }
}

impl Inner {
    /// A chunk from memory or the cache. What the cache gives is believed only if its hash matches; else it is
    /// forgotten, and the store has it.
    fn local(&self, layer: &Layer, located: &Located) -> Option<(Arc<[u8]>, Source)> {
        let entry = &located.entry;
        if let Some(content) = self.decoded.get(&key(entry)) {
            return Some((content, Source::Memory));
        }
        let chunks = self.chunks.as_ref()?;
        let stored = chunks.get(&entry.hash, entry.stored_len)?;
        match decode(&stored, entry) {
            Ok(content) => {
                let content = Arc::<[u8]>::from(content);
                self.decoded.put(key(entry), content.clone());
                Some((content, Source::Cache))
            }
            Err(error) => {
                chunks.forget(&entry.hash);
                self.meter.verify_failed();
                if let Some(unsaid) = self.log.allow() {
                    let (layer, chunk) = (layer.id, located.chunk);
                    tracing::warn!(%layer, chunk, %error, unsaid, "a damaged chunk in the local cache is forgotten");
                }
                None
            }
        }
    }
}
