//! The worker: the process that serves data. The holder's child; another takes its place when it dies.
//!
//! It gets the connection as stdin and reports on stdout. Order of a start: store and cache, face, table, session (which
//! answers what the kernel may already be waiting for), control socket, "ready".

use crate::config::Config;
use crate::layers::Layers;
use crate::metrics::{self, Meters};
use crate::mount::info;
use crate::mount::mounter::Mounter;
use crate::probe::{self, Feature};
use crate::service::Service;
use crate::table::Table;
use crate::{Error, connection, device, holder, stack};
use blobstore::cache::{self, Cache};
use blobstore::fetch::Fetcher;
use blobstore::meter::Meter;
use blobstore::refs::Refs;
use blobstore::store::{self, Store};
use prometheus_client::registry::Registry;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

/// What the control API works on.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) refs: Refs,
    pub(crate) fetcher: Fetcher,
    pub(crate) layers: Arc<Layers>,
    pub(crate) features: Vec<Feature>,
    pub(crate) meters: Meters,
    pub(crate) takeovers: u32,
}

/// Serves data until the holder's SIGTERM, or until the connection ends.
///
/// # Errors
/// Whatever keeps it from starting; afterwards errors are the readers' and callers'.
pub fn work(config: Config) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::start)?;
    let done = runtime.block_on(serve(config));
    // Tasks may still wait for the store; the holder does not wait for them.
    runtime.shutdown_background();
    done
}

async fn serve(config: Config) -> Result<(), Error> {
    let (shared, registry) = assemble(config)?;
    let shared = Arc::new(shared);
    let ended = start_session(&shared)?;
    if let Some(address) = &shared.config.metrics {
        let listener = metrics::listen(address).await?;
        tokio::spawn(metrics::serve(listener, Arc::new(registry)));
    }
    let listener = bind(&shared.config.socket())?;
    let server = tonic::transport::Server::builder()
        .add_service(control::DaemonServer::new(Service(Arc::clone(&shared))))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::start)?;
    // Ctrl-C reaches the whole process group; only the holder acts on it.
    let _interrupt = signal(SignalKind::interrupt()).map_err(Error::start)?;
    tell_holder(holder::READY)?;
    tokio::select! {
        done = server => done.map_err(|e| Error::start(std::io::Error::other(e)))?,
        _ = terminate.recv() => {}
        () = ended => tracing::error!("the connection to the kernel has ended"),
    }
    let _ = std::fs::remove_file(shared.config.socket());
    take_down(&shared).await;
    Ok(())
}

fn assemble(config: Config) -> Result<(Shared, Registry), Error> {
    let usable = |e: store::StoreError| Error::Store(Box::new(e));
    let mut store = store::open(&config.store).map_err(usable)?;
    if !config.store_delay.is_zero() {
        store = Arc::new(store::Delay::new(store, config.store_delay)) as Arc<dyn Store>;
    }
    let meter = Meter::new(store.url());
    let mut limits = cache::Options::new(config.cache_size);
    limits.reserve = cache::Reserve::Percent(config.cache_reserve.into());
    let cache = Cache::open(&config.cache_dir, &limits, &meter);
    let cache = cache.map_err(|e| Error::path(&config.cache_dir, std::io::Error::other(e)))?;
    let options = blobstore::fetch::Options {
        concurrency: config.concurrency,
        deadline: config.deadline,
        decoded: config.decoded,
        ..Default::default()
    };
    let mut registry = Registry::default();
    let meters = Meters::default();
    meters.register(&mut registry);
    let fetcher = Fetcher::new(Arc::clone(&store), cache, options, meter);
    fetcher.meter().register(&mut registry);
    let probed = probe::probe(&config)?;
    tracing::info!(form = probe::name(probed.form), "layers are mounted in this form");
    let table = Table::open(&config.journal()).map_err(|e| Error::path(&config.journal(), e))?;
    let mounter = Mounter::new(std::env::current_exe().map_err(Error::start)?, config.deadline);
    let layers = Layers::new(config.clone(), fetcher.clone(), table, mounter, probed.form, meters.clone());
    let takeovers = std::env::var(holder::TAKEOVERS).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    meters.takeovers(takeovers);
    let shared = Shared {
        config,
        refs: Refs::new(store),
        fetcher,
        layers: Arc::new(layers),
        features: probed.features,
        meters,
        takeovers,
    };
    Ok((shared, registry))
}

/// Begins to answer the kernel. The returned future is done when the connection is.
fn start_session(shared: &Shared) -> Result<impl Future<Output = ()> + use<>, Error> {
    let connection: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::start)?;
    let devices = device::Devices::new(Arc::clone(&shared.layers), tokio::runtime::Handle::current());
    let session = match std::env::var(holder::ROLE).as_deref() {
        Ok("adopt") => connection::adopt(devices, connection),
        Ok("first") => connection::first(devices, connection),
        _ => return Err(Error::Invalid("a worker is started by its holder: run laminad".into())),
    };
    let session = session.map_err(|e| Error::path(&shared.config.devices(), e))?;
    tell_holder(holder::INITIALISED)?;
    let (done, ended) = tokio::sync::oneshot::channel();
    let run = move || {
        if let Err(error) = session.run() {
            tracing::error!(%error, "the FUSE session");
        }
        let _ = done.send(());
    };
    std::thread::Builder::new().name("fuse".into()).spawn(run).map_err(Error::start)?;
    Ok(async move {
        let _ = ended.await;
    })
}

fn tell_holder(line: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Error::start)
}

/// The control socket, in place of what a predecessor left. Root alone may speak to it.
fn bind(path: &Path) -> Result<UnixListener, Error> {
    use std::os::unix::fs::PermissionsExt;
    let fail = |e| Error::path(path, e);
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(listener)
}

/// At the end: unmounts what nobody uses, and says what somebody does.
async fn take_down(shared: &Shared) {
    for (_, record) in stack::records(&shared.config) {
        if let Err(error) = stack::unmount(&shared.layers, &shared.config, &record.target).await {
            tracing::warn!(target = %record.target.display(), error = %error.report(), "still in use");
        }
    }
    let mounts = info::mounts().unwrap_or_default();
    let targets: Vec<PathBuf> =
        mounts.iter().filter(|m| shared.layers.layer_of(m).is_some()).map(|m| m.target.clone()).collect();
    if let Err(error) = shared.layers.detach(&targets).await {
        tracing::warn!(error = %error.report(), "cannot unmount every layer");
    }
    let in_use = shared.layers.table().in_use();
    if !in_use.is_empty() {
        tracing::warn!(
            layers = in_use.len(),
            "layers are still in use; what their users have not read yet is EIO for them now"
        );
    }
}
