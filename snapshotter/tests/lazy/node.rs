//! A node in a temporary directory: the fake laminad, the snapshotter in this process, and a client of it. Needs root: it
//! mounts for real.

use crate::fake::{Fake, Serving};
use containerd::snapshots::snapshots_client::SnapshotsClient;
use containerd::snapshots::{
    CleanupRequest, CommitSnapshotRequest, Info, ListSnapshotsRequest, MountsRequest, PrepareSnapshotRequest,
    RemoveSnapshotRequest, StatSnapshotRequest, ViewSnapshotRequest,
};
use containerd::types::Mount;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The label that names the target of an unpack.
pub(crate) const TARGET: &str = "containerd.io/snapshot.ref";

/// A node.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) fake: Fake,
    daemon: Option<Serving>,
    snapshotter: Option<(tokio::sync::oneshot::Sender<()>, JoinHandle<snapshotter::Result<()>>)>,
    client: SnapshotsClient<Channel>,
    /// Of a snapshotter that is started; longer than a busy machine takes.
    pub(crate) resolve_deadline: Duration,
}

impl Node {
    /// Starts everything; None, and loudly, where this process may not mount.
    pub(crate) async fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, to mount");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let client = SnapshotsClient::new(containerd::channel(&dir.path().join("s.sock")));
        let resolve_deadline = Duration::from_secs(60);
        let mut node = Self { dir, fake: Fake::default(), daemon: None, snapshotter: None, client, resolve_deadline };
        node.start_daemon();
        node.start_snapshotter().await;
        Some(node)
    }

    pub(crate) fn start_daemon(&mut self) {
        self.stop_daemon();
        self.daemon = Some(self.fake.serve(&self.dir.path().join("laminad.sock")));
    }

    /// Kills the fake; its socket file and its mounts stay.
    pub(crate) fn stop_daemon(&mut self) {
        self.daemon = None;
    }

    pub(crate) async fn start_snapshotter(&mut self) {
        let at = |name: &str| self.dir.path().join(name);
        let mut config = snapshotter::Config::new(&at("root"), &at("s.sock"), &at("laminad.sock"));
        config.resolve_deadline = self.resolve_deadline;
        config.attach_deadline = Duration::from_secs(60);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let running = tokio::spawn(snapshotter::run(config, async move {
            let _ = stopped.await;
        }));
        while !at("s.sock").exists() {
            assert!(!running.is_finished(), "the snapshotter did not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.snapshotter = Some((stop, running));
    }

    pub(crate) async fn stop_snapshotter(&mut self) {
        if let Some((stop, running)) = self.snapshotter.take() {
            stop.send(()).unwrap();
            running.await.unwrap().unwrap();
        }
    }

    /// Makes a layer with one file, `<name>` holding `<name>`, and a file `top` that every layer has. Returns its id.
    pub(crate) fn layer(&self, name: &str) -> String {
        let source = self.dir.path().join("layers").join(name);
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join(name), name).unwrap();
        std::fs::write(source.join("top"), name).unwrap();
        let id = digest(name);
        self.fake.lock().layers.insert(id.clone(), source);
        id
    }

    /// Tells the fake what `reference` is a stack of: layers' names, bottom to top.
    pub(crate) fn stack(&self, reference: &str, names: &[&str]) {
        let ids = names.iter().map(|name| self.layer(name)).collect();
        self.fake.lock().stacks.insert(reference.into(), ids);
    }

    pub(crate) async fn prepare(&self, key: &str, parent: &str, labels: &[(&str, &str)]) -> Result<Mount, Status> {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let request = PrepareSnapshotRequest { key: key.into(), parent: parent.into(), labels, ..Default::default() };
        self.client.clone().prepare(request).await.map(|response| single(response.into_inner().mounts))
    }

    /// As an unpack does for the layer that makes `chain`.
    pub(crate) async fn unpack(&self, chain: &str, parent: &str) -> Result<Mount, Status> {
        self.prepare(&format!("default/1/extract-1 {chain}"), parent, &[(TARGET, chain)]).await
    }

    pub(crate) async fn view(&self, key: &str, parent: &str) -> Result<Mount, Status> {
        let request = ViewSnapshotRequest { key: key.into(), parent: parent.into(), ..Default::default() };
        self.client.clone().view(request).await.map(|response| single(response.into_inner().mounts))
    }

    pub(crate) async fn mounts(&self, key: &str) -> Result<Mount, Status> {
        let request = MountsRequest { key: key.into(), ..Default::default() };
        self.client.clone().mounts(request).await.map(|response| single(response.into_inner().mounts))
    }

    pub(crate) fn client(&self) -> SnapshotsClient<Channel> {
        self.client.clone()
    }

    pub(crate) async fn commit(&self, name: &str, key: &str) -> Result<(), Status> {
        self.commit_on(name, key, "").await
    }

    pub(crate) async fn commit_on(&self, name: &str, key: &str, parent: &str) -> Result<(), Status> {
        let (name, key, parent) = (name.into(), key.into(), parent.into());
        let request = CommitSnapshotRequest { name, key, parent, ..Default::default() };
        self.client.clone().commit(request).await.map(drop)
    }

    pub(crate) async fn remove(&self, key: &str) -> Result<(), Status> {
        let request = RemoveSnapshotRequest { key: key.into(), ..Default::default() };
        self.client.clone().remove(request).await.map(drop)
    }

    pub(crate) async fn cleanup(&self) {
        self.client.clone().cleanup(CleanupRequest::default()).await.unwrap();
    }

    pub(crate) async fn stat(&self, key: &str) -> Result<Info, Status> {
        let request = StatSnapshotRequest { key: key.into(), ..Default::default() };
        self.client.clone().stat(request).await.map(|response| response.into_inner().info.unwrap())
    }

    pub(crate) async fn list(&self, filter: &str) -> Vec<Info> {
        let request = ListSnapshotsRequest { filters: vec![filter.into()], ..Default::default() };
        let mut stream = self.client.clone().list(request).await.unwrap().into_inner();
        let mut listed = Vec::new();
        while let Some(block) = stream.message().await.unwrap() {
            listed.extend(block.info);
        }
        listed
    }

    /// Mounts it and reads `file`; None = it is not there.
    pub(crate) fn read(&self, mount: &Mount, file: &str) -> Option<String> {
        Mounted::new(mount, &self.dir.path().join("mnt")).read(file)
    }

    /// Numbers of the directories under `s`.
    pub(crate) fn dirs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("root/s")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.fake.unmount_all();
    }
}

/// A mount that ends with its scope.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(of: &Mount, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let flags = if of.r#type == "bind" { MountFlags::BIND } else { MountFlags::empty() };
        let data = std::ffi::CString::new(if of.r#type == "bind" { String::new() } else { of.options.join(",") });
        mount(of.source.as_str(), at, of.r#type.as_str(), flags, data.unwrap().as_c_str()).unwrap();
        Self(at.to_owned())
    }

    pub(crate) fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(file)).ok()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// 64 hex digits that differ with `text`.
pub(crate) fn digest(text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex:0>64}")
}

/// A chain id.
pub(crate) fn chain(text: &str) -> String {
    format!("sha256:{}", digest(text))
}

/// The lower directories of an overlay, top to bottom.
pub(crate) fn lowers(mount: &Mount) -> usize {
    mount.options.iter().find_map(|option| option.strip_prefix("lowerdir=")).map_or(0, |list| list.split(':').count())
}

pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

fn single(mounts: Vec<Mount>) -> Mount {
    let [mount] = mounts.try_into().unwrap();
    mount
}
