//! What starts read: from the first read after a layer was mounted until nothing was read for a while, or a limit.
//!
//! Layers that are mounted together are one start, so their times have one beginning: the first read of any of those that
//! nobody has read yet. Events are taken from the fetcher's queue, and none while nothing is recorded. What a recording came to
//! is kept when it ends; a worker that dies takes those that had not ended with it, and nothing else.

use super::{Options, PATIENCE};
use crate::meters::Meters;
use blobstore::fetch::{Cause, Event, Fetcher, Layer, Watch};
use blobstore::layer::LayerId;
use blobstore::profile::{Keep, Run};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Events that may wait: the reads of some tens of milliseconds. What is lost is missing in the profile.
const QUEUE: usize = 4096;
/// How often it is looked whether recordings have ended.
const TICK: Duration = Duration::from_millis(200);
/// A layer that nobody reads for so long after it was mounted is not recorded any longer.
const UNREAD: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Recorder {
    fetcher: Fetcher,
    keep: Arc<Keep>,
    quiet: Duration,
    limit: Duration,
    meters: Meters,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    recordings: HashMap<LayerId, Recording>,
    /// When any of them was read last.
    last: Option<Instant>,
    /// Whether somebody takes events.
    running: bool,
}

#[derive(Debug)]
struct Recording {
    layer: Arc<Layer>,
    mounted: Instant,
    began: Option<Instant>,
    run: Run,
}

impl Recorder {
    pub(super) fn new(fetcher: Fetcher, keep: Arc<Keep>, options: &Options, meters: Meters) -> Arc<Self> {
        let (quiet, limit) = (options.quiet, options.limit);
        Arc::new(Self { fetcher, keep, quiet, limit, meters, state: Mutex::default() })
    }

    /// Begins to record a layer that is about to be mounted.
    pub(super) fn begin(self: &Arc<Self>, layer: &Arc<Layer>) {
        let new = Recording { layer: layer.clone(), mounted: Instant::now(), began: None, run: Run::default() };
        let mut state = self.lock();
        let before = state.recordings.insert(layer.id, new);
        if !std::mem::replace(&mut state.running, true) {
            // From now on: nothing that the new mount reads is missed.
            let watch = self.fetcher.watch(QUEUE);
            tokio::spawn(run(self.clone(), watch));
        }
        drop(state);
        // Mounted again before its last start had ended.
        before.into_iter().for_each(|recording| self.finish(recording));
    }

    /// Ends what has ended; `false` when nothing is left.
    fn tick(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        let quiet = state.last.is_none_or(|last| last.elapsed() >= self.quiet);
        let ended = |recording: &Recording| match recording.began {
            Some(began) => quiet || began.elapsed() >= self.limit,
            None => recording.mounted.elapsed() >= UNREAD,
        };
        let ended: Vec<Recording> =
            state.recordings.extract_if(|_, recording| ended(recording)).map(|(_, r)| r).collect();
        state.running = !state.recordings.is_empty();
        let running = state.running;
        drop(state);
        ended.into_iter().for_each(|recording| self.finish(recording));
        running
    }

    /// Keeps what was recorded. An empty recording says nothing: the layer is not part of that start.
    fn finish(self: &Arc<Self>, recording: Recording) {
        let Recording { layer, run, .. } = recording;
        if run.is_empty() {
            return;
        }
        let (keep, meters, chunks) = (self.keep.clone(), self.meters.clone(), run.len());
        tokio::spawn(async move {
            match tokio::time::timeout(PATIENCE, keep.add(&layer.index, run)).await {
                Ok(Ok(profile)) => {
                    meters.recorded();
                    tracing::debug!(layer = %layer.id, chunks, runs = profile.runs, "a start is recorded");
                }
                Ok(Err(error)) => tracing::warn!(layer = %layer.id, %error, "a profile cannot be kept"),
                Err(_) => tracing::info!(layer = %layer.id, "the store does not take a profile in time"),
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, event: &Event) {
        let Some(recording) = self.recordings.get(&event.layer).filter(|r| event.at >= r.mounted) else { return };
        if event.cause != Cause::Read {
            return;
        }
        let first = recording.began.is_none();
        self.last = self.last.max(Some(event.at + event.waited));
        if first {
            let unread = self.recordings.values_mut().filter(|r| r.began.is_none());
            unread.for_each(|recording| recording.began = Some(event.at));
        }
        if let Some(recording) = self.recordings.get_mut(&event.layer)
            && let Some(began) = recording.began
        {
            let after = event.at.saturating_duration_since(began);
            recording.run.read(&recording.layer.index, event.bytes.clone(), after);
        }
    }
}

/// Takes events until no recording is left.
async fn run(recorder: Arc<Recorder>, mut watch: Watch) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            event = watch.next() => match event {
                Some(event) => recorder.lock().note(&event),
                None => return,
            },
            _ = ticks.tick() => if !recorder.tick() {
                return;
            },
        }
    }
}
