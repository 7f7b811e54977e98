//! Opening a layer: its head, from this node or fetched in one request, verified, prepared and kept.

use super::error::{Failure, FetchError, FetchKind};
use super::flight::{Joined, wait};
use super::retry::Task;
use super::{Fetcher, Layer};
use crate::cache::{CacheError, HeadFile};
use crate::layer::{Head, Index, parse_head, read_head};
use crate::refs::StackEntry;
use crate::store::Metered;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::{Instant, timeout, timeout_at};

/// Up to so many bytes a head gets the time of a chunk for an attempt; above, all the time that there is.
const SMALL: u64 = 8 << 20;

/// How many segments of the chunk cache may go to make room for a head.
const SHED: usize = 4;

/// A layer that can be mounted and read.
#[derive(Debug, Clone)]
pub struct OpenHead {
    /// To read chunks with.
    pub layer: Layer,
    /// The head file: prepared metadata from its first byte on.
    pub path: PathBuf,
    /// Bytes of metadata in it.
    pub metadata_len: u64,
}

impl From<HeadFile> for OpenHead {
    fn from(head: HeadFile) -> Self {
        Self { layer: Layer::new(head.index), path: head.path, metadata_len: head.metadata_len }
    }
}

/// Checks metadata before anything uses it, and changes what a node must change.
type Prepare = dyn Fn(&mut [u8], &Index) -> Result<(), String> + Send + Sync;

impl Fetcher {
    /// Opens a layer. Its head comes from this node, where it was kept after `prepare` had accepted it, or else from the
    /// store, verified; then `prepare` checks the metadata and may change it, and its refusal is an error. Many callers
    /// at once cause one fetch. Must be called within a tokio runtime; answers within the deadline, `prepare`'s own
    /// time aside.
    pub async fn open_head<P>(&self, entry: &StackEntry, prepare: P) -> Result<OpenHead, FetchError>
    where
        P: Fn(&mut [u8], &Index) -> Result<(), String> + Send + Sync + 'static,
    {
        let since = Instant::now();
        let deadline = since + self.inner.options.deadline;
        let task = Task { layer: entry.layer, chunk: None, since, deadline: Some(deadline) };
        let receiver = match self.inner.opening.join(&entry.layer, &(), || None) {
            Joined::Done(value) => return value,
            Joined::Wait(receiver, ()) => receiver,
            Joined::Start(landing, receiver) => {
                let (fetcher, entry) = (self.clone(), entry.clone());
                tokio::spawn(async move { landing.land(fetcher.open_once(&entry, task, Arc::new(prepare)).await) });
                receiver
            }
        };
        // The task has the deadline; past it, it may still be checking what came in time. That is work and no wait, and
        // takes less than one more attempt would.
        let patience = self.inner.options.attempt;
        match timeout_at(deadline + patience, wait(receiver)).await {
            Ok(Some(value)) => value,
            Ok(None) => Err(self.error(&task, Failure::new(FetchKind::Local, "opening it ended without a result"), 0)),
            Err(_) => Err(self.error(&task, Failure::new(FetchKind::Timeout, "not ready in time"), 0)),
        }
    }

    async fn open_once(&self, entry: &StackEntry, task: Task, prepare: Arc<Prepare>) -> Result<OpenHead, FetchError> {
        let (heads, layer) = (self.inner.heads.clone(), entry.layer);
        if let Some(head) = self.off_thread(&task, move || heads.get(&layer).map_err(local_failure)).await? {
            return Ok(head.into());
        }
        let Head { index, mut metadata } =
            self.attempts(task, || true, |attempt| self.clone().head_once(entry.clone(), attempt)).await?;
        let fetcher = self.clone();
        let head = self.off_thread(&task, move || {
            prepare(&mut metadata, &index).map_err(|e| Failure::new(FetchKind::Refused, e))?;
            fetcher.keep(&metadata, &index).map_err(local_failure)
        });
        Ok(head.await?.into())
    }

    /// One attempt at a head, in its turn and in its time.
    async fn head_once(self, entry: StackEntry, attempt: u32) -> Result<Head, Failure> {
        let patience = match entry.head {
            1..=SMALL => self.inner.options.attempt,
            _ => self.inner.options.deadline,
        };
        let (_turn, begun) = (self.inner.dispatcher.turn(entry.layer).await, Instant::now());
        let late = |_| Err(Failure::new(FetchKind::Timeout, format!("no answer within {patience:?}")));
        let head = timeout(patience, self.clone().head(entry, attempt)).await.unwrap_or_else(late);
        match &head {
            Ok(_) => self.inner.meter.fetch_done(begun.elapsed()),
            Err(failure) => self.count(failure),
        }
        head
    }

    /// One attempt at a head: one request where the reference tells its length.
    async fn head(self, entry: StackEntry, attempt: u32) -> Result<Head, Failure> {
        let (key, layer) = (crate::refs::layer_key(&entry.layer), entry.layer);
        // A reference can be wrong about the length: then the layer itself is asked.
        if entry.head != 0 && attempt <= 2 {
            let bytes = self.inner.store.get_range(&key, 0..entry.head).await?;
            self.inner.meter.fetched(bytes.len() as u64);
            let parsed = tokio::task::spawn_blocking(move || parse_head(&bytes, Some(&layer)));
            return Ok(parsed.await.map_err(|e| Failure::new(FetchKind::Local, e))??);
        }
        let metered = Metered::new(self.inner.store.clone());
        let head = read_head(&metered, &key, Some(&layer), None).await;
        self.inner.meter.fetched(metered.counts().bytes_read.load(Relaxed));
        Ok(head?)
    }

    /// Keeps a head; where the disk is full, the chunk cache makes room.
    fn keep(&self, metadata: &[u8], index: &Index) -> Result<HeadFile, CacheError> {
        let keep = || self.inner.heads.put(&index.id(), metadata, index.frame());
        let mut kept = keep();
        for _ in 0..SHED {
            let full = kept.as_ref().is_err_and(CacheError::is_full);
            if !full || !self.inner.chunks.as_ref().is_some_and(|c| c.shed()) {
                break;
            }
            kept = keep();
        }
        kept
    }

    /// Runs work on the disk where it may take its time.
    async fn off_thread<T: Send + 'static>(
        &self,
        task: &Task,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, FetchError> {
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.unwrap_or_else(|e| Err(Failure::new(FetchKind::Local, e)));
        done.map_err(|failure| self.error(task, failure, 0))
    }
}

fn local_failure(error: CacheError) -> Failure {
    Failure::new(FetchKind::Local, error)
}
