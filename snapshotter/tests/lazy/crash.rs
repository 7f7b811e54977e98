//! The snapshotter killed at any moment: what was committed is there, what is listed can be used, and nothing is left of
//! what was not recorded.

use containerd::snapshots::snapshots_client::SnapshotsClient;
use containerd::snapshots::{
    CommitSnapshotRequest, Kind, ListSnapshotsRequest, MountsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest,
    StatSnapshotRequest,
};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::process::{Child, Command};
use tonic::transport::Channel;

const ROUNDS: usize = 8;
const CLIENTS: usize = 6;

/// The example `serve`, which cargo builds with the tests.
fn serve() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/serve")
}

async fn start(dir: &Path) -> (Child, SnapshotsClient<Channel>) {
    let socket = dir.join("s.sock");
    let child = Command::new(serve()).arg(&socket).arg(dir.join("root")).kill_on_drop(true).spawn().unwrap();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (child, SnapshotsClient::new(containerd::channel(&socket)))
}

/// What the clients were told is so.
#[derive(Default)]
struct Told {
    committed: HashSet<String>,
}

/// Prepares, writes, commits and removes until the snapshotter dies.
async fn work(mut client: SnapshotsClient<Channel>, prefix: String, told: Arc<Mutex<Told>>) {
    for n in 0.. {
        let (key, name) = (format!("{prefix}/{n}-active"), format!("{prefix}/{n}"));
        let prepare = PrepareSnapshotRequest { key: key.clone(), ..Default::default() };
        let Ok(mounts) = client.prepare(prepare).await else { return };
        // On a full disk the snapshot may be there and its content have no room: it is not committed then.
        if std::fs::write(Path::new(&mounts.into_inner().mounts[0].source).join("name"), &name).is_err() {
            return;
        }
        let commit = CommitSnapshotRequest { name: name.clone(), key, ..Default::default() };
        if client.commit(commit).await.is_err() {
            return;
        }
        told.lock().unwrap().committed.insert(name.clone());
        if n % 3 == 0 {
            told.lock().unwrap().committed.remove(&name);
            if client.remove(RemoveSnapshotRequest { key: name.clone(), ..Default::default() }).await.is_err() {
                return;
            }
        }
    }
}

/// Everything that is listed can be used, and everything on disk is listed.
async fn check(client: &mut SnapshotsClient<Channel>, root: &Path, told: &Told) {
    let mut stream = client.list(ListSnapshotsRequest::default()).await.unwrap().into_inner();
    let mut active = Vec::new();
    let mut listed = 0;
    while let Some(block) = stream.message().await.unwrap() {
        listed += block.info.len();
        active.extend(block.info.into_iter().filter(|info| info.kind == Kind::Active as i32).map(|info| info.name));
    }
    for name in &told.committed {
        client.stat(StatSnapshotRequest { key: name.clone(), ..Default::default() }).await.unwrap();
        let prepare =
            PrepareSnapshotRequest { key: format!("{name}-check"), parent: name.clone(), ..Default::default() };
        let mount = client.prepare(prepare).await.unwrap().into_inner().mounts.remove(0);
        let lower = mount.options.iter().find_map(|option| option.strip_prefix("lowerdir=")).unwrap();
        assert_eq!(&std::fs::read_to_string(Path::new(lower).join("name")).unwrap(), name);
        client.remove(RemoveSnapshotRequest { key: format!("{name}-check"), ..Default::default() }).await.unwrap();
    }
    for key in active {
        let request = MountsRequest { key, ..Default::default() };
        let mount = client.mounts(request).await.unwrap().into_inner().mounts.remove(0);
        // A removal may be undone: then it is an overlay of the check before.
        let upper = mount.options.iter().find_map(|option| option.strip_prefix("upperdir="));
        assert!(Path::new(upper.unwrap_or(&mount.source)).is_dir(), "{mount:?}");
    }
    assert_eq!(std::fs::read_dir(root.join("s")).unwrap().count(), listed);
}

#[tokio::test]
async fn whatever_moment_it_is_killed_at_nothing_committed_is_lost() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to probe overlayfs");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Told::default()));
    for round in 0..ROUNDS {
        let (mut child, client) = start(dir.path()).await;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| tokio::spawn(work(client.clone(), format!("{round}/{n}"), Arc::clone(&told))))
            .collect();
        tokio::time::sleep(Duration::from_millis(60 + 37 * round as u64)).await;
        child.kill().await.unwrap();
        for client in clients {
            client.await.unwrap();
        }
        let (mut child, mut client) = start(dir.path()).await;
        let so_far = std::mem::take(&mut *told.lock().unwrap());
        check(&mut client, &dir.path().join("root"), &so_far).await;
        child.kill().await.unwrap();
    }
}

/// A file system that goes with the test, whatever happens.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_what_is_new_and_loses_nothing_committed() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to mount a small file system");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    rustix::mount::mount("tmpfs", &root, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=12m")).unwrap();
    let _small = Small(root.clone());
    let told = Arc::new(Mutex::new(Told::default()));
    let (mut child, client) = start(dir.path()).await;
    for round in 0..3 {
        // Its writes fail as the snapshotter's do; it ends with the first refusal.
        let name = format!("{round}");
        let worker = tokio::spawn(work(client.clone(), name, Arc::clone(&told)));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(std::fs::write(root.join("fill"), vec![1; 16 << 20]).is_err(), "the disk is full");
        tokio::time::timeout(Duration::from_secs(10), worker).await.unwrap().unwrap();
        std::fs::remove_file(root.join("fill")).unwrap();
    }
    child.kill().await.unwrap();
    let (mut child, mut client) = start(dir.path()).await;
    let so_far = std::mem::take(&mut *told.lock().unwrap());
    assert!(!so_far.committed.is_empty());
    check(&mut client, &root, &so_far).await;
    child.kill().await.unwrap();
}
