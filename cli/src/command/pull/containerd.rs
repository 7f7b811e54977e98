//! What `lamina pull` asks of containerd, through its own API: a lease, blobs, snapshots, an image.
//!
//! Snapshots are prepared through containerd, not through our snapshotter: containerd keeps its own names for them, in
//! the caller's namespace, and finds our layers by asking us.

use crate::failure::Failure;
use ::containerd::content::content_client::ContentClient;
use ::containerd::content::{Info, UpdateRequest, WriteAction, WriteContentRequest};
use ::containerd::header::Headers;
use ::containerd::images::images_client::ImagesClient;
use ::containerd::images::{CreateImageRequest, Image, UpdateImageRequest};
use ::containerd::leases::leases_client::LeasesClient;
use ::containerd::leases::{CreateRequest, DeleteRequest};
use ::containerd::snapshots::snapshots_client::SnapshotsClient;
use ::containerd::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest};
use ::containerd::types::Descriptor;
use prost_types::{FieldMask, Timestamp};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Long enough for any pull; a lease that a killed pull leaves behind ends by itself.
const LEASE_LIFE: Duration = Duration::from_secs(3600);

type Connection = InterceptedService<Channel, Headers>;
type Labels = HashMap<String, String>;

/// A containerd, one of its namespaces, and a lease that keeps what is made from its garbage collector.
pub(super) struct Containerd {
    channel: Channel,
    headers: Headers,
    address: String,
    lease: String,
}

impl Containerd {
    /// Takes a lease. [`Self::close`] gives it back.
    pub(super) async fn open(address: &Path, namespace: &str) -> Result<Self, Failure> {
        let channel = ::containerd::channel(address);
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos());
        let lease = format!("lamina-pull-{}-{nanos}", std::process::id());
        let headers = Headers::new(namespace).map_err(|e| Failure::usage(e.to_string()))?;
        let leased = headers.clone().with_lease(&lease).map_err(|e| Failure::usage(e.to_string()))?;
        let address = address.display().to_string();
        let expires = Timestamp::from(SystemTime::now() + LEASE_LIFE).to_string();
        let labels = Labels::from([("containerd.io/gc.expire".to_owned(), expires)]);
        let request = CreateRequest { id: lease.clone(), labels };
        let mut client = LeasesClient::with_interceptor(channel.clone(), headers);
        client.create(request).await.map_err(|s| failed(&address, "taking a lease", &s))?;
        Ok(Self { channel, headers: leased, address, lease })
    }

    /// Gives the lease back: from now on the image's own references hold everything.
    pub(super) async fn close(self) -> Result<(), Failure> {
        let mut client = LeasesClient::with_interceptor(self.channel.clone(), self.headers.clone());
        let request = DeleteRequest { id: self.lease.clone(), sync: false };
        client.delete(request).await.map_err(|s| self.failed("giving the lease back", &s))?;
        Ok(())
    }

    fn failed(&self, what: &str, status: &Status) -> Failure {
        failed(&self.address, what, status)
    }

    /// Writes a blob with the labels that keep what it names from the garbage collector.
    pub(super) async fn put_blob(&self, digest: &str, data: Vec<u8>, labels: Labels) -> Result<(), Failure> {
        let mut client = ContentClient::with_interceptor(self.channel.clone(), self.headers.clone())
            .max_decoding_message_size(::containerd::MESSAGE_LIMIT)
            .max_encoding_message_size(::containerd::MESSAGE_LIMIT);
        let total = i64::try_from(data.len()).map_err(|_| Failure::failed("a blob past any size"))?;
        let write = WriteContentRequest {
            action: WriteAction::Commit.into(),
            r#ref: format!("{}-{digest}", self.lease),
            total,
            expected: digest.to_owned(),
            offset: 0,
            data,
            labels: labels.clone(),
        };
        let what = format!("writing blob {digest}");
        match finish_write(&mut client, write).await {
            Ok(()) => Ok(()),
            // It was there: what it refers to may be new.
            Err(status) if status.code() == Code::AlreadyExists => {
                self.label_blob(&mut client, digest, labels).await.map_err(|s| self.failed(&what, &s))
            }
            Err(status) => Err(self.failed(&what, &status)),
        }
    }

    async fn label_blob(
        &self,
        client: &mut ContentClient<Connection>,
        digest: &str,
        labels: Labels,
    ) -> Result<(), Status> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = Info { digest: digest.to_owned(), labels, ..Info::default() };
        client.update(UpdateRequest { info: Some(info), update_mask: Some(FieldMask { paths }) }).await?;
        Ok(())
    }

    /// Has the snapshotter commit a chain id as a remote snapshot. False: it prepared an ordinary one instead, which is
    /// taken back: the layer is not to be had lazily.
    pub(super) async fn commit_remote(&self, snapshotter: &str, chain: &str, parent: &str) -> Result<bool, Failure> {
        let mut client = SnapshotsClient::with_interceptor(self.channel.clone(), self.headers.clone());
        let what = format!("preparing {chain} with the snapshotter {snapshotter}");
        let stat = StatSnapshotRequest { snapshotter: snapshotter.to_owned(), key: chain.to_owned() };
        match client.stat(stat).await {
            Ok(_) => return Ok(true),
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(self.no_snapshotter(snapshotter, &what, &status)),
        }
        let key = format!("extract-{} {chain}", self.lease);
        let request = PrepareSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.clone(),
            parent: parent.to_owned(),
            labels: Labels::from([("containerd.io/snapshot.ref".to_owned(), chain.to_owned())]),
        };
        match client.prepare(request).await {
            Err(status) if status.code() == Code::AlreadyExists => Ok(true),
            Err(status) => Err(self.failed(&what, &status)),
            Ok(_) => {
                let request = RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key };
                client.remove(request).await.map_err(|s| self.failed(&what, &s))?;
                Ok(false)
            }
        }
    }

    /// The first call that needs the snapshotter failed: the two usual reasons are told apart by containerd's words.
    fn no_snapshotter(&self, snapshotter: &str, what: &str, status: &Status) -> Failure {
        let hint = match status.code() {
            Code::InvalidArgument if status.message().contains("not loaded") => {
                format!("; its configuration needs [proxy_plugins.{snapshotter}], see docs/operations.md")
            }
            Code::Unavailable => "; is lamina-snapshotter running?".to_owned(),
            _ => String::new(),
        };
        Failure::failed(format!("{}{hint}", self.failed(what, status)))
    }

    /// Creates the image, or moves it.
    pub(super) async fn put_image(&self, name: &str, target: Descriptor) -> Result<(), Failure> {
        let mut client = ImagesClient::with_interceptor(self.channel.clone(), self.headers.clone());
        let image = Image { name: name.to_owned(), target: Some(target), ..Image::default() };
        let create = CreateImageRequest { image: Some(image.clone()), source_date_epoch: None };
        match client.create(create).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::AlreadyExists => {
                let mask = FieldMask { paths: vec!["target".to_owned()] };
                let update =
                    UpdateImageRequest { image: Some(image), update_mask: Some(mask), source_date_epoch: None };
                client.update(update).await.map_err(|s| self.failed(&format!("moving image {name}"), &s))?;
                Ok(())
            }
            Err(status) => Err(self.failed(&format!("creating image {name}"), &status)),
        }
    }
}

async fn finish_write(client: &mut ContentClient<Connection>, write: WriteContentRequest) -> Result<(), Status> {
    let mut answers = client.write(tokio_stream::once(write)).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

fn failed(address: &str, what: &str, status: &Status) -> Failure {
    match control::unreachable(status) {
        Some(why) => Failure::failed(format!(
            "no containerd answers at {address} ({why}): start it, or name its socket with --address"
        )),
        None => Failure::failed(format!("containerd at {address}: {what}: {}", status.message())),
    }
}
