//! `lamina trace`: events of the fetcher, for a caller who listens.
//!
//! Two bounded queues stand between a read and the caller: the fetcher's, and the one that the connection is fed from. What finds
//! either full is lost and counted, and the caller is told as soon as there is room. When the caller has gone, both go, and
//! reads cost what they cost before.
//!
//! Which file an event was for is left to the caller, who is told where the layer's metadata are.

use blobstore::cache::Heads;
use blobstore::fetch::{Cause, Event, Fetcher, Watch};
use blobstore::layer::LayerId;
use blobstore::meter::Source;
use control::v1::trace_event::{Cause as CauseOut, Source as SourceOut};
use control::v1::trace_reply::What;
use control::v1::{TraceEvent, TraceReply, TracedHead};
use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Events of all layers that wait to be looked at: the reads of some tens of milliseconds, in which a new layer's head is found.
const QUEUE: usize = 4096;
/// Messages that wait for the caller. The connection holds some hundred more.
const OUT: usize = 1024;

/// What the caller gets.
pub(crate) type Replies = ReceiverStream<Result<TraceReply, Status>>;

/// Begins to trace these layers, or all: waits for the store, and with `all` what memory and cache answered too. Must be called
/// within the runtime's context.
pub(crate) fn begin(fetcher: &Fetcher, only: Option<HashSet<LayerId>>, all: bool) -> Replies {
    let (out, replies) = mpsc::channel(OUT);
    let (watch, heads) = (fetcher.watch(QUEUE), fetcher.heads().clone());
    let trace = Trace { watch, heads, only, all, out, known: HashSet::new(), lost: 0 };
    tokio::spawn(trace.run());
    ReceiverStream::new(replies)
}

struct Trace {
    watch: Watch,
    heads: Heads,
    only: Option<HashSet<LayerId>>,
    all: bool,
    out: mpsc::Sender<Result<TraceReply, Status>>,
    /// Layers whose heads the caller was told.
    known: HashSet<LayerId>,
    /// Events that found `out` full.
    lost: u64,
}

impl Trace {
    /// Until the caller has gone.
    async fn run(mut self) {
        let (out, mut told) = (self.out.clone(), 0);
        loop {
            let lost = self.lost + self.watch.lost();
            tokio::select! {
                () = out.closed() => return,
                room = out.reserve(), if lost > told => match room {
                    Ok(room) => {
                        room.send(Ok(reply(What::Lost(lost))));
                        told = lost;
                    }
                    Err(_) => return,
                },
                event = self.watch.next() => match event {
                    Some(event) => self.pass_on(&event).await,
                    None => return,
                },
            }
        }
    }

    async fn pass_on(&mut self, event: &Event) {
        if !self.is_wanted(event) {
            return;
        }
        if !self.known.contains(&event.layer) {
            let head = self.head(event.layer).await;
            if self.out.try_send(Ok(reply(What::Head(head)))).is_err() {
                self.lost += 1;
                return;
            }
            self.known.insert(event.layer);
        }
        if self.out.try_send(Ok(reply(What::Event(event_out(event))))).is_err() {
            self.lost += 1;
        }
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let local = matches!(event.source, Some(Source::Memory | Source::Cache));
        (self.all || !local) && self.only.as_ref().is_none_or(|only| only.contains(&event.layer))
    }

    async fn head(&self, layer: LayerId) -> TracedHead {
        let heads = self.heads.clone();
        let found = tokio::task::spawn_blocking(move || heads.get(&layer)).await;
        let (path, length) = match found {
            Ok(Ok(Some(head))) => (head.path.to_string_lossy().into_owned(), head.metadata_len),
            _ => (String::new(), 0),
        };
        TracedHead { layer: layer.to_string(), path, length }
    }
}

fn reply(what: What) -> TraceReply {
    TraceReply { what: Some(what) }
}

fn event_out(event: &Event) -> TraceEvent {
    let cause = match event.cause {
        Cause::Read => CauseOut::Read,
        Cause::Readahead => CauseOut::Readahead,
        Cause::Prefetch => CauseOut::Prefetch,
        Cause::Fill => CauseOut::Fill,
    };
    let source = match event.source {
        None => SourceOut::None,
        Some(Source::Memory) => SourceOut::Memory,
        Some(Source::Cache) => SourceOut::Cache,
        Some(Source::Store) => SourceOut::Store,
    };
    let at = SystemTime::now().checked_sub(event.at.elapsed()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    TraceEvent {
        layer: event.layer.to_string(),
        offset: event.bytes.start,
        bytes: event.bytes.end.saturating_sub(event.bytes.start),
        cause: cause.into(),
        source: source.into(),
        at_us: at.map_or(0, micros),
        waited_us: micros(event.waited),
    }
}
