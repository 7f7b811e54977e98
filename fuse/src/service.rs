//! The control API: decode, call, map the error, reply. What a call means stands in the proto file.

use crate::layers::Layers;
use crate::node::Node;
use crate::{Error, Kind, stack, status};
use blobstore::refs::{Name, Stack, StackEntry};
use control::v1;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status};

pub(crate) struct Service(pub(crate) Arc<Node>);

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    fn layers(&self) -> &Layers {
        &self.0.layers
    }

    async fn resolve_within(&self, reference: &str, deadline: Duration) -> Result<Stack, Error> {
        let name: Name = reference.parse().map_err(|e| Error::Invalid(format!("{e}")))?;
        let resolved = tokio::time::timeout(deadline, self.0.refs.resolve(&name));
        let stack = resolved.await.map_err(|_| Error::Late { what: format!("resolving {reference}"), deadline })?;
        stack.map_err(|source| Error::Resolve { reference: reference.to_owned(), source: Box::new(source) })
    }
}

impl Service {
    /// Has a layer's head fetched and checked. One that this node cannot use is as good as none: whoever asks has an
    /// ordinary unpack to fall back on now, and not when a container needs the layer.
    async fn check_usable(&self, layer: &StackEntry, deadline: Duration) -> Result<(), Status> {
        let opened = tokio::time::timeout(deadline, self.layers().open(layer)).await;
        let late = |_| Error::Late { what: format!("opening layer {}", layer.layer), deadline };
        match opened.map_err(late).and_then(|o| o.map(drop)) {
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Unsupported | Kind::Corrupt) => {
                tracing::warn!(layer = %layer.layer, error = e.report(), "a layer that cannot be used counts as not there");
                Err(Status::not_found(e.report()))
            }
            other => other.map_err(to_status),
        }
    }
}

#[tonic::async_trait]
impl control::Daemon for Service {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusReply> {
        Ok(Response::new(status::report(&self.0).await))
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Answer<v1::Stack> {
        let v1::ResolveRequest { reference, deadline_ms, open_top } = request.into_inner();
        let deadline = match deadline_ms {
            0 => self.0.config.deadline,
            ms => Duration::from_millis(ms.into()),
        };
        let start = Instant::now();
        let stack = self.resolve_within(&reference, deadline).await.map_err(to_status)?;
        if let Some(top) = stack.layers().last().filter(|_| open_top) {
            self.check_usable(top, deadline.saturating_sub(start.elapsed())).await?;
        }
        Ok(Response::new(v1::Stack { layers: stack.layers().iter().map(layer_out).collect() }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachReply> {
        let v1::AttachRequest { layer, target } = request.into_inner();
        let entry = layer_in(layer.ok_or_else(|| Status::invalid_argument("no layer"))?)?;
        self.layers().attach(&entry, Path::new(&target)).await.map_err(to_status)?;
        Ok(Response::new(v1::AttachReply {}))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Answer<v1::DetachReply> {
        let targets: Vec<PathBuf> = request.into_inner().targets.into_iter().map(PathBuf::from).collect();
        self.layers().detach(&targets).await.map_err(to_status)?;
        Ok(Response::new(v1::DetachReply {}))
    }

    async fn mount(&self, request: Request<v1::MountRequest>) -> Answer<v1::MountReply> {
        let v1::MountRequest { references, target, upper, face } = request.into_inner();
        match face.as_str() {
            "" | "auto" | "kernel" => {}
            "fuse" => return Err(Status::unimplemented("the FUSE face is not built yet; leave --face out")),
            other => return Err(Status::invalid_argument(format!("unknown face '{other}'"))),
        }
        let mut stacks = Vec::new();
        for reference in &references {
            stacks.push(self.resolve_within(reference, self.0.config.deadline).await.map_err(to_status)?);
        }
        let upper = (!upper.is_empty()).then(|| Path::new(&upper));
        let mounted = stack::mount(self.layers(), &self.0.config, &stacks, Path::new(&target), upper).await;
        let layers = mounted.map_err(to_status)?;
        let face = status::face(self.layers().form()).to_owned();
        Ok(Response::new(v1::MountReply { layers: layers.layers().iter().map(layer_out).collect(), face }))
    }

    async fn unmount(&self, request: Request<v1::UnmountRequest>) -> Answer<v1::UnmountReply> {
        let target = request.into_inner().target;
        stack::unmount(self.layers(), &self.0.config, Path::new(&target)).await.map_err(to_status)?;
        Ok(Response::new(v1::UnmountReply {}))
    }
}

fn layer_out(entry: &StackEntry) -> v1::Layer {
    v1::Layer {
        id: entry.layer.to_string(),
        head: entry.head,
        size: entry.size,
        format: entry.format,
        generation: entry.generation,
        root_opaque: entry.root_opaque,
    }
}

fn layer_in(layer: v1::Layer) -> Result<StackEntry, Status> {
    let v1::Layer { id, head, size, format, generation, root_opaque } = layer;
    let layer = id.parse().map_err(|e| Status::invalid_argument(format!("{e}")))?;
    Ok(StackEntry { layer, head, size, format, generation, root_opaque })
}

fn to_status(error: Error) -> Status {
    let code = match error.kind() {
        crate::Kind::NotFound => Code::NotFound,
        crate::Kind::Invalid => Code::InvalidArgument,
        crate::Kind::Unavailable => Code::Unavailable,
        crate::Kind::Corrupt => Code::DataLoss,
        crate::Kind::Unsupported => Code::FailedPrecondition,
        crate::Kind::Internal => Code::Internal,
    };
    Status::new(code, error.report())
}
