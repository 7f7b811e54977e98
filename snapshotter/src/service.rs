//! containerd's snapshots service over [`Snapshots`]: decodes, calls, maps the error, replies.
//!
//! Requests that change something run in tasks of their own: a client that stops waiting drops its request, and what was
//! begun must still be finished or undone.

use crate::error::{Error, ErrorKind, Result};
use crate::mounts::Mount;
use crate::record::{Kind, Record, Time};
use crate::snapshots::{Request as NewSnapshot, Snapshots};
use crate::transitions::Commit;
use containerd::snapshots as api;
use prometheus_client::metrics::histogram::Histogram;
use prost_types::Timestamp;
use std::sync::Arc;
use std::time::Instant;
use tonic::{Code, Request, Response, Status};

/// Snapshots in one message of a List stream.
const LIST_BLOCK: usize = 100;

/// The service.
pub(crate) struct Service {
    pub(crate) snapshots: Arc<Snapshots>,
    /// Seconds of each Prepare and View, whatever came of it.
    pub(crate) prepare: Histogram,
}

impl Service {
    async fn run<T, F>(&self, call: impl FnOnce(Arc<Snapshots>) -> F) -> std::result::Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let done = tokio::spawn(call(Arc::clone(&self.snapshots))).await;
        done.map_err(|error| Error::caused("the request's task failed", error)).flatten().map_err(status)
    }

    async fn create(&self, new: NewSnapshot) -> std::result::Result<Vec<containerd::types::Mount>, Status> {
        let begun = Instant::now();
        let prepared = self.run(|snapshots| async move { snapshots.prepare(new).await }).await;
        self.prepare.observe(begun.elapsed().as_secs_f64());
        Ok(vec![to_mount(prepared?)])
    }
}

#[tonic::async_trait]
impl api::snapshots_server::Snapshots for Service {
    async fn prepare(
        &self,
        request: Request<api::PrepareSnapshotRequest>,
    ) -> std::result::Result<Response<api::PrepareSnapshotResponse>, Status> {
        let api::PrepareSnapshotRequest { key, parent, labels, .. } = request.into_inner();
        let labels = labels.into_iter().collect();
        let mounts = self.create(NewSnapshot { key, parent, kind: Kind::Active, labels }).await?;
        Ok(Response::new(api::PrepareSnapshotResponse { mounts }))
    }

    async fn view(
        &self,
        request: Request<api::ViewSnapshotRequest>,
    ) -> std::result::Result<Response<api::ViewSnapshotResponse>, Status> {
        let api::ViewSnapshotRequest { key, parent, labels, .. } = request.into_inner();
        let labels = labels.into_iter().collect();
        let mounts = self.create(NewSnapshot { key, parent, kind: Kind::View, labels }).await?;
        Ok(Response::new(api::ViewSnapshotResponse { mounts }))
    }

    async fn mounts(
        &self,
        request: Request<api::MountsRequest>,
    ) -> std::result::Result<Response<api::MountsResponse>, Status> {
        let key = request.into_inner().key;
        let mount = self.run(|snapshots| async move { snapshots.mounts(&key).await }).await?;
        Ok(Response::new(api::MountsResponse { mounts: vec![to_mount(mount)] }))
    }

    async fn commit(&self, request: Request<api::CommitSnapshotRequest>) -> std::result::Result<Response<()>, Status> {
        let api::CommitSnapshotRequest { name, key, labels, parent, .. } = request.into_inner();
        let commit = Commit { name, key, labels: labels.into_iter().collect(), parent };
        self.run(|snapshots| async move { snapshots.commit(commit).await }).await?;
        Ok(Response::new(()))
    }

    async fn remove(&self, request: Request<api::RemoveSnapshotRequest>) -> std::result::Result<Response<()>, Status> {
        let key = request.into_inner().key;
        self.run(|snapshots| async move { snapshots.remove(key).await }).await?;
        Ok(Response::new(()))
    }

    async fn stat(
        &self,
        request: Request<api::StatSnapshotRequest>,
    ) -> std::result::Result<Response<api::StatSnapshotResponse>, Status> {
        let key = request.into_inner().key;
        let record = self.snapshots.stat(&key).map_err(status)?;
        Ok(Response::new(api::StatSnapshotResponse { info: Some(to_info(key, record)) }))
    }

    async fn update(
        &self,
        request: Request<api::UpdateSnapshotRequest>,
    ) -> std::result::Result<Response<api::UpdateSnapshotResponse>, Status> {
        let api::UpdateSnapshotRequest { info, update_mask, .. } = request.into_inner();
        let info = info.ok_or_else(|| Status::invalid_argument("no info is given"))?;
        let mask = update_mask.map(|mask| mask.paths).unwrap_or_default();
        let (name, labels) = (info.name.clone(), info.labels.into_iter().collect());
        let record = self.run(|snapshots| async move { snapshots.update(name, labels, mask).await }).await?;
        Ok(Response::new(api::UpdateSnapshotResponse { info: Some(to_info(info.name, record)) }))
    }

    type ListStream = tokio_stream::Iter<std::vec::IntoIter<std::result::Result<api::ListSnapshotsResponse, Status>>>;

    async fn list(
        &self,
        request: Request<api::ListSnapshotsRequest>,
    ) -> std::result::Result<Response<Self::ListStream>, Status> {
        let filters = request.into_inner().filters;
        let listed = self.run(|snapshots| async move { snapshots.list(&filters) }).await?;
        let mut infos: Vec<_> = listed.into_iter().map(|(name, record)| to_info(name, record)).collect();
        let mut blocks = Vec::new();
        while !infos.is_empty() {
            let rest = infos.split_off(infos.len().min(LIST_BLOCK));
            blocks.push(Ok(api::ListSnapshotsResponse { info: std::mem::replace(&mut infos, rest) }));
        }
        Ok(Response::new(tokio_stream::iter(blocks)))
    }

    async fn usage(
        &self,
        request: Request<api::UsageRequest>,
    ) -> std::result::Result<Response<api::UsageResponse>, Status> {
        let usage = self.snapshots.usage(&request.into_inner().key).await.map_err(status)?;
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Response::new(api::UsageResponse { size: signed(usage.size), inodes: signed(usage.inodes) }))
    }

    async fn cleanup(&self, _request: Request<api::CleanupRequest>) -> std::result::Result<Response<()>, Status> {
        self.run(|snapshots| async move { snapshots.janitor.clean().await }).await?;
        Ok(Response::new(()))
    }
}

/// containerd decides by the code alone.
fn status(error: Error) -> Status {
    let code = match error.kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Unavailable | ErrorKind::Moved => Code::Unavailable,
        ErrorKind::Internal => Code::Internal,
    };
    if code == Code::Internal {
        tracing::error!("{error}");
    }
    Status::new(code, error.to_string())
}

fn to_mount(mount: Mount) -> containerd::types::Mount {
    let Mount { kind, source, options } = mount;
    containerd::types::Mount { r#type: kind.into(), source, target: String::new(), options }
}

fn to_info(name: String, record: Record) -> api::Info {
    let kind = match record.kind {
        Kind::Active => api::Kind::Active,
        Kind::View => api::Kind::View,
        Kind::Committed => api::Kind::Committed,
    };
    api::Info {
        name,
        parent: record.parent,
        kind: kind.into(),
        created_at: Some(to_timestamp(record.created)),
        updated_at: Some(to_timestamp(record.updated)),
        labels: record.labels.into_iter().collect(),
    }
}

fn to_timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanos: i32::try_from(time.nanos).unwrap_or_default() }
}
