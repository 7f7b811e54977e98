//! The few questions that are asked of laminad, with a deadline on each, and its answers in our words.
//!
//! laminad may be absent at any time, and come back. Nothing here decides what that means: [`Failure`] says which of
//! the three ways it went wrong, and the callers choose.

use crate::record::Layer;
use control::v1;
use std::path::Path;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// How a call to laminad went wrong.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// laminad answered that there is no such thing, or none that it understands.
    #[error("{0}")]
    Absent(String),
    /// laminad answered that it failed, or did not answer in time.
    #[error("laminad failed: {0}")]
    Failed(String),
    /// Nobody is there.
    #[error("laminad cannot be reached: {0}")]
    Unreachable(String),
}

/// laminad, if it runs.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    client: control::DaemonClient<Channel>,
}

impl Daemon {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { client: control::client(socket) }
    }

    /// The stack that `reference` names, bottom to top; at least one layer, every id well-formed.
    pub(crate) async fn resolve(&self, reference: &str, deadline: Duration) -> Result<Vec<Layer>, Failure> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let request = v1::ResolveRequest { reference: reference.to_owned(), deadline_ms };
        let mut client = self.client.clone();
        let stack = within(deadline, client.resolve(request)).await?;
        if stack.layers.is_empty() {
            return Err(Failure::Failed(format!("it resolved {reference} to no layer at all")));
        }
        stack.layers.into_iter().map(|layer| checked(reference, layer)).collect()
    }

    /// Mounts `layer` at `target`, unless it is mounted there.
    pub(crate) async fn attach(&self, layer: &Layer, target: &Path, deadline: Duration) -> Result<(), Failure> {
        let Layer { id, head, size, format, generation, root_opaque } = layer.clone();
        let layer = v1::Layer { id, head, size, format, generation, root_opaque };
        let request = v1::AttachRequest { layer: Some(layer), target: target.display().to_string() };
        let mut client = self.client.clone();
        within(deadline, client.attach(request)).await.map(|_| ())
    }

    /// Unmounts the targets that are mounted.
    pub(crate) async fn detach(&self, targets: Vec<String>, deadline: Duration) -> Result<(), Failure> {
        let mut client = self.client.clone();
        within(deadline, client.detach(v1::DetachRequest { targets })).await.map(|_| ())
    }
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(failure(&status)),
        Err(_) => Err(Failure::Failed(format!("no answer within {} ms", deadline.as_millis()))),
    }
}

fn failure(status: &Status) -> Failure {
    // A status that our own transport made has the transport's error as its cause; one that laminad sent has none.
    let cause = std::error::Error::source(status);
    match cause.filter(|cause| cause.is::<tonic::transport::Error>()) {
        Some(cause) => Failure::Unreachable(innermost(cause)),
        None if status.code() == Code::NotFound => Failure::Absent(status.message().to_owned()),
        None => Failure::Failed(format!("{} ({:?})", status.message(), status.code())),
    }
}

/// "transport error" says nothing; "connection refused" below it does.
fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

fn checked(reference: &str, layer: v1::Layer) -> Result<Layer, Failure> {
    let v1::Layer { id, head, size, format, generation, root_opaque } = layer;
    if id.len() != 64 || !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(Failure::Failed(format!("it resolved {reference} to a malformed layer id {id:?}")));
    }
    Ok(Layer { id, head, size, format, generation, root_opaque })
}
