//! A laminad for tests: it knows the stacks it was told, and "mounts" a layer by binding a prepared directory.

use control::v1;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// What the fake knows, does, and saw.
#[derive(Default)]
pub(crate) struct Inner {
    /// Reference -> layer ids, bottom to top.
    pub(crate) stacks: HashMap<String, Vec<String>>,
    /// Layer id -> the directory that it shows.
    pub(crate) layers: HashMap<String, PathBuf>,
    /// Layers whose root is opaque.
    pub(crate) opaque: HashSet<String>,
    /// References that were asked for, in order.
    pub(crate) resolved: Vec<String>,
    /// (layer id, target) of each Attach, in order, also of those that still take their time.
    pub(crate) attached: Vec<(String, String)>,
    /// For what layers were attached.
    pub(crate) started: HashSet<String>,
    /// Targets that are mounted.
    pub(crate) mounted: HashSet<String>,
    /// What Keep was last told.
    pub(crate) kept: Vec<String>,
    /// Attach fails.
    pub(crate) broken: bool,
    /// Everything takes so long; also what was begun when it was another time.
    pub(crate) delay: Duration,
}

/// The fake; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Fake(pub(crate) Arc<Mutex<Inner>>);

impl Fake {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Serves `socket` until what is returned is dropped. A file that is there is replaced.
    pub(crate) fn serve(&self, socket: &Path) -> Serving {
        let _ = std::fs::remove_file(socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = control::DaemonServer::new(self.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap());
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(connections).await.unwrap();
        });
        Serving(Some(runtime))
    }

    /// Unmounts everything, as a restart of the node does.
    pub(crate) fn unmount_all(&self) {
        for target in self.lock().mounted.drain() {
            let _ = unmount(target.as_str(), UnmountFlags::DETACH);
        }
    }

    async fn delay(&self) {
        let begun = Instant::now();
        while begun.elapsed() < self.lock().delay {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn attach_now(&self, id: String, target: String) -> Result<(), Status> {
        let mut inner = self.lock();
        if inner.broken {
            return Err(Status::unavailable("the store is on fire"));
        }
        let source = inner.layers.get(&id).cloned().ok_or_else(|| Status::not_found(format!("no layer {id}")))?;
        if inner.mounted.insert(target.clone()) {
            mount_bind(&source, target.as_str()).map_err(|error| Status::internal(error.to_string()))?;
            mount_remount(target.as_str(), MountFlags::BIND | MountFlags::RDONLY, c"").unwrap();
        }
        Ok(())
    }
}

/// A fake that serves: a runtime of its own, so that its connections die with it.
pub(crate) struct Serving(Option<tokio::runtime::Runtime>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
    }
}

#[tonic::async_trait]
impl control::Daemon for Fake {
    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::Stack>, Status> {
        let reference = request.into_inner().reference;
        self.lock().resolved.push(reference.clone());
        self.delay().await;
        let inner = self.lock();
        let ids = inner.stacks.get(&reference).ok_or_else(|| Status::not_found(format!("no {reference}")))?;
        let layer = |id: &String| v1::Layer {
            id: id.clone(),
            head: 4096,
            root_opaque: inner.opaque.contains(id),
            ..v1::Layer::default()
        };
        Ok(Response::new(v1::Stack { layers: ids.iter().map(layer).collect() }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Result<Response<v1::AttachReply>, Status> {
        let v1::AttachRequest { layer, target, start } = request.into_inner();
        let id = layer.unwrap_or_default().id;
        self.lock().attached.push((id.clone(), target.clone()));
        self.delay().await;
        self.attach_now(id, target)?;
        self.lock().started.insert(start);
        Ok(Response::new(v1::AttachReply {}))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Result<Response<v1::DetachReply>, Status> {
        for target in request.into_inner().targets {
            if self.lock().mounted.remove(&target) {
                unmount(target.as_str(), UnmountFlags::DETACH).map_err(|error| Status::internal(error.to_string()))?;
            }
        }
        Ok(Response::new(v1::DetachReply {}))
    }

    async fn keep(&self, request: Request<v1::KeepRequest>) -> Result<Response<v1::KeepReply>, Status> {
        self.lock().kept = request.into_inner().layers;
        Ok(Response::new(v1::KeepReply {}))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        Err(Status::unimplemented("a fake has no status"))
    }

    async fn mount(&self, _: Request<v1::MountRequest>) -> Result<Response<v1::MountReply>, Status> {
        Err(Status::unimplemented("a fake stacks nothing"))
    }

    async fn unmount(&self, _: Request<v1::UnmountRequest>) -> Result<Response<v1::UnmountReply>, Status> {
        Err(Status::unimplemented("a fake stacks nothing"))
    }

    type TraceStream = tokio_stream::Empty<Result<v1::TraceReply, Status>>;

    async fn trace(&self, _: Request<v1::TraceRequest>) -> Result<Response<Self::TraceStream>, Status> {
        Err(Status::unimplemented("a fake reads nothing"))
    }
}
