//! The control API: decode, call, map the error, reply. What a call means stands in the proto file.

use crate::layers::Layers;
use crate::node::Node;
use crate::{Error, Kind, stack, status, trace};
use blobstore::layer::LayerId;
use blobstore::refs::{Name, Stack, StackEntry, Stacks};
use control::v1;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status};

pub(crate) struct Service(pub(crate) Arc<Node>);

pub(crate) type Answer<T> = Result<Response<T>, Status>;

impl Service {
    fn layers(&self) -> &Layers {
        &self.0.layers
    }

    async fn resolve_within(&self, reference: &str, deadline: Duration) -> Result<Stacks, Error> {
        let name: Name = reference.parse().map_err(|e| Error::Invalid(format!("{e}")))?;
        self.0.resolve(&name, deadline).await
    }
}

/// Does something whole even when the caller goes away meanwhile: tonic drops the call's future then, and a mount that is
/// half made is nobody's.
async fn to_the_end(work: impl Future<Output = Result<(), Error>> + Send + 'static) -> Result<(), Status> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|e| Err(Error::system(std::io::Error::other(e)))).map_err(to_status)
}

impl Service {
    /// Mounts stacks. Who asked for it and does not wait any more does not get it.
    async fn mount_unless_abandoned(
        &self,
        stacks: Vec<Stack>,
        target: PathBuf,
        upper: Option<PathBuf>,
    ) -> Result<Stack, Error> {
        let (tell, told) = tokio::sync::oneshot::channel();
        let node = Arc::clone(&self.0);
        tokio::spawn(async move {
            let done = stack::mount(&node.layers, &node.config, &stacks, &target, upper.as_deref()).await;
            if let Err(Ok(_)) = tell.send(done) {
                tracing::info!(target = %target.display(), "who asked for this mount has gone: unmounting it");
                if let Err(error) = stack::unmount(&node.layers, &node.config, &target).await {
                    tracing::warn!(error = %error.report(), "cannot unmount it");
                }
            }
        });
        told.await.unwrap_or_else(|e| Err(Error::system(std::io::Error::other(e))))
    }

    /// The stack that a chain is to be committed with: the collapsed one where this node can use it. Opened is what the
    /// chain adds, its topmost layer: those below were when their chains were. Of a collapsed stack, whose layers need not
    /// have been the top of any chain, all that the plain one has not got.
    async fn usable(&self, stacks: Stacks, until: Instant) -> Result<Stack, Status> {
        if let Some(collapsed) = &stacks.collapsed {
            match self.check_all(stacks.collapsed_only().chain(collapsed.layers().last()), until).await {
                Ok(()) => return Ok(stacks.best()),
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        self.check_all(stacks.plain.layers().last().into_iter(), until).await?;
        Ok(stacks.plain)
    }

    async fn check_all(&self, layers: impl Iterator<Item = &StackEntry>, until: Instant) -> Result<(), Status> {
        for layer in layers {
            self.check_usable(layer, until.saturating_duration_since(Instant::now())).await?;
        }
        Ok(())
    }

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
        let until = Instant::now() + deadline;
        let stacks = self.resolve_within(&reference, deadline).await.map_err(to_status)?;
        let stack = if open_top { self.usable(stacks, until).await? } else { stacks.best() };
        self.0.leases.looked_up(&stack);
        Ok(Response::new(v1::Stack { layers: stack.layers().iter().map(layer_out).collect() }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachReply> {
        let v1::AttachRequest { layer, target, start } = request.into_inner();
        // A snapshotter of before does not say for what: for something of its own then.
        let start = if start.is_empty() { target.clone() } else { start };
        let entry = layer_in(layer.ok_or_else(|| Status::invalid_argument("no layer"))?)?;
        let layers = Arc::clone(&self.0.layers);
        self.0.leases.looked_up(&Stack::EMPTY.with(entry.clone()));
        to_the_end(async move { layers.attach(&entry, Path::new(&target), &start).await }).await?;
        Ok(Response::new(v1::AttachReply {}))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Answer<v1::DetachReply> {
        let targets: Vec<PathBuf> = request.into_inner().targets.into_iter().map(PathBuf::from).collect();
        let layers = Arc::clone(&self.0.layers);
        to_the_end(async move { layers.detach(&targets).await }).await?;
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
            stacks.push(self.resolve_within(reference, self.0.config.deadline).await.map_err(to_status)?.best());
        }
        stacks.iter().for_each(|stack| self.0.leases.looked_up(stack));
        let upper = (!upper.is_empty()).then(|| PathBuf::from(upper));
        let layers = self.mount_unless_abandoned(stacks, target.into(), upper).await.map_err(to_status)?;
        let face = self.layers().form().face().to_owned();
        Ok(Response::new(v1::MountReply { layers: layers.layers().iter().map(layer_out).collect(), face }))
    }

    async fn keep(&self, request: Request<v1::KeepRequest>) -> Answer<v1::KeepReply> {
        let layers = request.into_inner().layers.iter().map(|id| id.parse()).collect::<Result<_, _>>();
        self.0.leases.snapshots(layers.map_err(|e| Status::invalid_argument(format!("{e}")))?);
        Ok(Response::new(v1::KeepReply {}))
    }

    async fn unmount(&self, request: Request<v1::UnmountRequest>) -> Answer<v1::UnmountReply> {
        let (target, node) = (request.into_inner().target, Arc::clone(&self.0));
        to_the_end(async move { stack::unmount(&node.layers, &node.config, Path::new(&target)).await }).await?;
        Ok(Response::new(v1::UnmountReply {}))
    }

    type TraceStream = trace::Replies;

    async fn trace(&self, request: Request<v1::TraceRequest>) -> Answer<Self::TraceStream> {
        let v1::TraceRequest { reference, all } = request.into_inner();
        let only = match reference.as_str() {
            "" => None,
            name => {
                let stacks = self.resolve_within(name, self.0.config.deadline).await.map_err(to_status)?;
                let layers = stacks.plain.layers().iter().chain(stacks.collapsed.iter().flat_map(Stack::layers));
                Some(layers.map(|entry| entry.layer).collect::<HashSet<LayerId>>())
            }
        };
        Ok(Response::new(trace::begin(&self.0.fetcher, only, all)))
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

pub(crate) fn to_status(error: Error) -> Status {
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
