//! The few questions that are asked of laminad, with a deadline on each, and its answers in our words.
//!
//! laminad may be absent at any time, and come back. Nothing here decides what that means: [`Failure`] says which of
//! the three ways it went wrong, and the callers choose.

use crate::record::{Layer, is_hash};
use control::v1;
use std::path::{Path, PathBuf};
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
    #[error("no laminad answers at {}: {why}; start it (systemctl start laminad), or see that [daemon] run is the same for both", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the system said.
        why: String,
    },
}

type Client = control::DaemonClient<Channel>;

/// laminad, if it runs.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    client: Client,
    socket: PathBuf,
}

impl Daemon {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { client: control::client(socket, Duration::ZERO), socket: socket.to_owned() }
    }

    /// The stack that `reference` names, bottom to top; at least one layer, every id well-formed.
    pub(crate) async fn resolve(&self, reference: &str, deadline: Duration) -> Result<Vec<Layer>, Failure> {
        self.ask_for_stack(reference, false, deadline).await
    }

    /// The stack of a chain that is to be committed without an unpack: absent also where this node cannot use its
    /// topmost layer.
    pub(crate) async fn resolve_usable(&self, chain: &str, deadline: Duration) -> Result<Vec<Layer>, Failure> {
        self.ask_for_stack(chain, true, deadline).await
    }

    async fn ask_for_stack(&self, reference: &str, open_top: bool, deadline: Duration) -> Result<Vec<Layer>, Failure> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let request = v1::ResolveRequest { reference: reference.to_owned(), deadline_ms, open_top };
        let stack = self
            .call(deadline, |mut client| {
                let request = request.clone();
                async move { client.resolve(request).await }
            })
            .await?;
        if stack.layers.is_empty() {
            return Err(Failure::Failed(format!("it resolved {reference} to no layer at all")));
        }
        stack.layers.into_iter().map(|layer| checked(reference, layer)).collect()
    }

    /// Mounts `layer` at `target`, unless it is mounted there, for the snapshot `start`.
    pub(crate) async fn attach(
        &self,
        layer: &Layer,
        target: &Path,
        start: &str,
        deadline: Duration,
    ) -> Result<(), Failure> {
        let Layer { id, head, size, format, generation, root_opaque } = layer.clone();
        let layer = v1::Layer { id, head, size, format, generation, root_opaque };
        let (target, start) = (target.display().to_string(), start.to_owned());
        let request = v1::AttachRequest { layer: Some(layer), target, start };
        self.call(deadline, |mut client| {
            let request = request.clone();
            async move { client.attach(request).await }
        })
        .await
        .map(|_| ())
    }

    /// Unmounts the targets that are mounted.
    pub(crate) async fn detach(&self, targets: Vec<String>, deadline: Duration) -> Result<(), Failure> {
        let request = v1::DetachRequest { targets };
        self.call(deadline, |mut client| {
            let request = request.clone();
            async move { client.detach(request).await }
        })
        .await
        .map(|_| ())
    }

    /// Tells which layers snapshots name, all of them.
    pub(crate) async fn keep(&self, layers: Vec<String>, deadline: Duration) -> Result<(), Failure> {
        let request = v1::KeepRequest { layers };
        self.call(deadline, |mut client| {
            let request = request.clone();
            async move { client.keep(request).await }
        })
        .await
        .map(|_| ())
    }

    /// Makes a call, and once more where the connection broke: one to a laminad that has ended is only noticed by using
    /// it, and its successor listens already. All calls may be made twice.
    async fn call<T, F>(&self, deadline: Duration, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let twice = async {
            match call(self.client.clone()).await {
                Err(status) if control::unreachable(&status).is_some() => call(self.client.clone()).await,
                other => other,
            }
        };
        match tokio::time::timeout(deadline, twice).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(failure(&status, &self.socket)),
            Err(_) => Err(Failure::Failed(format!("no answer within {} ms", deadline.as_millis()))),
        }
    }
}

fn failure(status: &Status, socket: &Path) -> Failure {
    match (control::unreachable(status), status.code()) {
        (Some(why), _) => Failure::Unreachable { socket: socket.to_owned(), why },
        (None, Code::NotFound) => Failure::Absent(status.message().to_owned()),
        (None, code) => Failure::Failed(format!("{} ({code:?})", status.message())),
    }
}

fn checked(reference: &str, layer: v1::Layer) -> Result<Layer, Failure> {
    let v1::Layer { id, head, size, format, generation, root_opaque } = layer;
    if !is_hash(&id) {
        return Err(Failure::Failed(format!("it resolved {reference} to a malformed layer id {id:?}")));
    }
    Ok(Layer { id, head, size, format, generation, root_opaque })
}
