//! `lamina trace`: each wait for the store as it happens, and what they come to.
//!
//! laminad says which bytes of which layer; whose bytes they are is found here (`names.rs`),
//! put together to waits (`wait.rs`), and summed up (`summary.rs`).

mod names;
mod summary;
mod wait;

use super::{Context, answer_about};
use crate::args::Trace;
use crate::failure::Failure;
use crate::output;
use crate::signals::Signals;
use control::v1::trace_event::{Cause, Source};
use control::v1::trace_reply::What;
use control::v1::{TraceReply, TraceRequest};
use names::Names;
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use summary::Summary;
use wait::Wait;

/// A wait is printed when nothing came for so long that could be part of it.
const QUIET: Duration = Duration::from_millis(20);

pub(super) async fn run(context: &Context, arguments: &Trace) -> Result<(), Failure> {
    let reference = arguments.reference.clone().unwrap_or_default();
    let reply = context.daemon().trace(TraceRequest { reference, all: arguments.all }).await;
    let mut replies = answer_about(context, arguments.reference.as_slice(), reply).await?;
    let mut trace = Tracing::new(context.json);
    // Where nobody reads what is printed (any more), nobody would read the summary.
    if !trace.begin() {
        return Ok(());
    }
    let mut end = std::pin::pin!(ended(arguments.duration)?);
    let failure = loop {
        let reply = tokio::select! {
            () = &mut end => break None,
            () = tokio::time::sleep(QUIET), if trace.pending.is_some() => {
                if trace.flush() {
                    continue;
                }
                return Ok(());
            }
            reply = replies.message() => reply,
        };
        match reply {
            Ok(Some(reply)) if !trace.take(&reply) => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => break Some(Failure::failed("laminad ended the trace")),
            Err(status) => {
                let why = control::unreachable(&status).unwrap_or_else(|| status.message().to_owned());
                break Some(Failure::failed(format!("the worker of laminad that was traced is gone: {why}")));
            }
        }
    };
    trace.flush();
    trace.summary.close();
    trace.summary.seconds = micros(now().saturating_sub(trace.began));
    match context.json {
        true => drop(output::try_line(trace.summary.as_json())),
        false => trace.summary.print(),
    }
    failure.map_or(Ok(()), Err)
}

/// Done at Ctrl-C, at SIGTERM, and after so long.
fn ended(after: Option<Duration>) -> Result<impl Future<Output = ()>, Failure> {
    let mut signals = Signals::listen()?;
    Ok(async move {
        let over = async {
            match after {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { _ = signals.next() => {}, () = over => {} }
    })
}

struct Tracing {
    json: bool,
    /// Microseconds since 1970.
    began: u64,
    names: Names,
    summary: Summary,
    /// What came last: more of it may come.
    pending: Option<Wait>,
}

impl Tracing {
    fn new(json: bool) -> Self {
        Self { json, began: now(), names: Names::default(), summary: Summary::default(), pending: None }
    }

    /// Says that the trace has begun. `false`: nobody reads it.
    fn begin(&self) -> bool {
        match self.json {
            true => output::try_line(json!({"event": "begin", "time": micros(self.began)})),
            false => output::try_line("      TIME  CAUSE                  BYTES         MS  LAYER         FILE"),
        }
    }

    /// Prints and counts what came. `false`: nobody reads it.
    fn take(&mut self, reply: &TraceReply) -> bool {
        match &reply.what {
            None => true,
            Some(What::Head(head)) => {
                self.names.learn(head);
                true
            }
            Some(What::Lost(lost)) => {
                self.summary.lost = *lost;
                self.flush()
                    && match self.json {
                        true => output::try_line(json!({"event": "lost", "lost": lost})),
                        false => output::try_line(format!(
                            "{lost} events so far were lost: they came faster than they were read"
                        )),
                    }
            }
            Some(What::Event(event)) => {
                let files = self.names.of(event);
                self.summary.count(event, &files);
                if self.pending.as_mut().is_some_and(|wait| wait.join(event, &files)) {
                    return true;
                }
                let read = self.flush();
                self.pending = Some(Wait::new(event.clone(), files));
                read
            }
        }
    }

    /// Prints the wait that others might have joined. `false`: nobody reads it.
    fn flush(&mut self) -> bool {
        match self.pending.take() {
            None => true,
            Some(wait) if self.json => output::try_line(wait.as_json()),
            Some(wait) => output::try_line(wait.text(self.began)),
        }
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Read => "read",
        Cause::Readahead => "readahead",
        Cause::Prefetch => "prefetch",
        Cause::Fill => "fill",
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::None => "failed",
        Source::Memory => "memory",
        Source::Cache => "cache",
        Source::Store => "store",
    }
}

/// Of a layer's id what a person can compare; as a REF it is unambiguous still.
fn short(layer: &str) -> &str {
    layer.get(..12).unwrap_or(layer)
}

fn micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}

/// Microseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
