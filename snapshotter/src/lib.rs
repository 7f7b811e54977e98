//! `lamina-snapshotter`: containerd's snapshots service, whose image layers need not be on the node.
//!
//! It keeps ordinary snapshots as overlayfs directories. When containerd is about to unpack a layer of an image and
//! laminad finds the layer's chain id in the store, it records the chain's stack as a committed snapshot and says
//! that it exists, so that containerd downloads nothing. When a container needs the stack, laminad mounts its layers. With
//! no laminad, everything is ordinary.
//!
//! The rooms, from the outside in; each uses only those below it:
//!
//! | room | knows |
//! |---|---|
//! | `service` | gRPC; translates, nothing else |
//! | `snapshots` | the order of steps of each request |
//! | `remote`, `compose`, `attach`, `cleanup`, `keeper` | chains without an unpack; labels; mounting layers; deferred work; what the store must keep |
//! | `transitions` | the rules, over `state` |
//! | `state`, `tables`, `record` | the database |
//! | `daemon`, `dirs`, `mounts`, `filter`, `usage`, `socket` | laminad; directories; shapes of mounts; filters; sizes |
//!
//! What it leaves to others: the store, layer files, EROFS and FUSE are laminad's; mounting what is answered is
//! containerd's. File data of a snapshot is not synced when it is committed, which containerd waits for while it holds
//! its database: a power cut within the kernel's write-back time can lose it, as with containerd's own
//! overlayfs. containerd's `image_pull_with_sync_fs` closes that gap where it matters.

mod attach;
mod cleanup;
mod compose;
mod daemon;
mod dirs;
mod error;
mod filter;
mod keeper;
mod mounts;
mod record;
mod remote;
mod service;
mod snapshots;
mod socket;
mod state;
mod tables;
mod transitions;
mod usage;

pub use error::{Error, ErrorKind, Result};

use error::Context;

use containerd::snapshots::snapshots_server::SnapshotsServer;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::wrappers::UnixListenerStream;

/// How long a shutdown waits for requests that are being served.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What the snapshotter is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Absolute path of the directory of the snapshots and their database. Made if missing; one process at a time.
    pub root: PathBuf,
    /// Absolute path of the unix socket to serve.
    pub address: PathBuf,
    /// laminad's control socket. Nobody needs to listen there.
    pub daemon_socket: PathBuf,
    /// Where Prometheus finds the metrics: `IP:PORT`. `None`: nowhere.
    pub metrics: Option<String>,
    /// How long the lookup of a chain, or of a workspace or toolkit, may take.
    pub resolve_deadline: Duration,
    /// How long mounting the layers of one stack may take.
    pub attach_deadline: Duration,
    /// How long it is remembered that a chain is not in the store.
    pub negative_memory: Duration,
}

impl Config {
    /// Without metrics, and with the usual times: 5 s to resolve, 30 s to mount, 10 s of memory.
    pub fn new(root: &Path, address: &Path, daemon_socket: &Path) -> Self {
        Self {
            root: root.to_owned(),
            address: address.to_owned(),
            daemon_socket: daemon_socket.to_owned(),
            metrics: None,
            resolve_deadline: Duration::from_secs(5),
            attach_deadline: Duration::from_secs(30),
            negative_memory: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown` ends. Says READY to a service manager (sd_notify) once the socket takes connections.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`]: a path is not absolute, or cannot stand in mount options, or there can be no metrics at
/// their address. [`ErrorKind::Internal`]: the root, the database or the socket cannot be used, or another process uses
/// them.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let (snapshots, janitor) = open(&config).await?;
    let keeper = Arc::clone(&snapshots.keeper);
    let keeping = tokio::spawn(async move { keeper.run().await });
    let (_socket, listener) = socket::Socket::bind(&config.address)?;
    let background = tokio::spawn(async move { janitor.run().await });
    let prepare = publish(&config, &snapshots.state).await?;
    let service = SnapshotsServer::new(service::Service { snapshots, prepare })
        .max_decoding_message_size(containerd::MESSAGE_LIMIT)
        .max_encoding_message_size(containerd::MESSAGE_LIMIT);
    tracing::info!("serving {} from {}", config.address.display(), config.root.display());
    notify(sd_notify::NotifyState::Ready);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tonic::transport::Server::builder().add_service(service).serve_with_incoming_shutdown(
        UnixListenerStream::new(listener),
        async {
            let _ = stopped.await;
        },
    );
    let ending = async {
        shutdown.await;
        notify(sd_notify::NotifyState::Stopping);
        let _ = stop.send(());
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    let outcome = tokio::select! {
        served = served => served.map_err(|error| Error::caused("serving failed", error)),
        () = ending => Ok(()),
    };
    background.abort();
    keeping.abort();
    outcome
}

async fn open(config: &Config) -> Result<(Arc<snapshots::Snapshots>, Arc<cleanup::Janitor>)> {
    check(&config.root)?;
    let dirs = dirs::Dirs::open(&config.root)?;
    check(dirs.root())?;
    let state = Arc::new(state::State::open(&dirs.root().join("snapshots.redb"))?);
    cleanup::recover(&state, &dirs).await?;
    let overlay =
        overlay::probe(dirs.root()).context(|| format!("cannot try overlays in {}", dirs.root().display()))?;
    let overlay = overlay.unwrap_or_default();
    let daemon = daemon::Daemon::new(&config.daemon_socket);
    let janitor = Arc::new(cleanup::Janitor::new(Arc::clone(&state), dirs.clone(), daemon.clone()));
    janitor.wake(); // for what a crash left
    let snapshots = snapshots::Snapshots {
        remote: remote::Remote::new(daemon.clone(), config.resolve_deadline, config.negative_memory),
        attacher: attach::Attacher::new(daemon.clone(), dirs.clone(), &config.daemon_socket, config.attach_deadline),
        janitor: Arc::clone(&janitor),
        keeper: Arc::new(keeper::Keeper::new(Arc::clone(&state), daemon.clone())),
        walks: usage::Walks::default(),
        deadline: config.resolve_deadline,
        state,
        dirs,
        daemon,
        overlay,
    };
    Ok((Arc::new(snapshots), janitor))
}

/// Offers the metrics, if they are wanted; gives the one that requests are timed by.
async fn publish(config: &Config, state: &Arc<state::State>) -> Result<Histogram> {
    let prepare = metrics::seconds();
    let Some(address) = &config.metrics else { return Ok(prepare) };
    let mut registry = Registry::default();
    let lamina = registry.sub_registry_with_prefix("lamina");
    lamina.register("prepare_seconds", "Time of each Prepare and View, whatever came of it", prepare.clone());
    let state = Arc::clone(state);
    let count = move || i64::try_from(state.read().and_then(|read| read.count()).ok()?).ok();
    metrics::gauge(&mut registry, "snapshots", "Snapshots of all kinds", count);
    let published = metrics::publish("[snapshotter] metrics", address, registry).await;
    published.map_err(|error| Error::invalid(error.to_string()))?;
    Ok(prepare)
}

/// The root becomes part of mount options, where ":" and "," separate and nothing can be escaped.
fn check(root: &Path) -> Result<()> {
    let text = root.to_str().unwrap_or_default();
    if !root.is_absolute() || text.contains([':', ',', '\\', '"']) {
        let why = "it must be an absolute UTF-8 path without : , \\ and \"";
        return Err(Error::invalid(format!("{} cannot be the snapshotter's root: {why}", root.display())));
    }
    Ok(())
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("the service manager was not told: {error}");
    }
}
