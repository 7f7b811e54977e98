//! The worker: the process that serves data. The holder's child; another takes its place when it dies.
//!
//! It gets the connection as stdin and reports on stdout. Order of a start: store and cache, face, table, session (which
//! answers what the kernel may already be waiting for), control socket, "ready".
//!
//! It ends in one of two ways. The holder's word takes down what nobody uses: the daemon ends. SIGTERM takes down nothing:
//! mounts are the next worker's, which adopts the connection as if this one had died, and finds what this one had fetched.

use crate::administration::Administration;
use crate::config::Config;
use crate::mount::info;
use crate::node::Node;
use crate::service::Service;
use crate::{Error, connection, device, holder, stack, status};
use blobstore::cache::Chunks;
use blobstore::layer::LayerId;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;

/// How long a worker that hands over goes on writing what it has fetched to the cache.
const WRITE_DEADLINE: Duration = Duration::from_secs(2);

/// Serves data until the holder says that the daemon ends, until SIGTERM, after which another worker goes on, or until the
/// connection ends.
///
/// # Errors
/// Whatever keeps it from starting; afterwards errors are the readers' and callers'.
pub fn work(mut config: Config) -> Result<(), Error> {
    stay(&mut config.run, holder::RUN);
    stay(&mut config.cache_dir, holder::CACHE);
    let config = config.settled()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::system)?;
    let done = runtime.block_on(serve(config));
    // Tasks may still wait for the store; the holder does not wait for them.
    runtime.shutdown_background();
    done
}

/// Takes a directory from the holder. A worker reads the configuration anew, which may name another by then, or may be half
/// written: mounts, callers and the next worker look where they looked before. A holder of an earlier build does not say.
fn stay(directory: &mut PathBuf, name: &str) {
    let Some(held) = std::env::var_os(name).map(PathBuf::from) else { return };
    let configured = std::mem::replace(directory, held);
    if configured.canonicalize().ok().as_ref() != Some(directory) {
        let (configured, used) = (configured.display(), directory.display());
        tracing::warn!(%configured, %used, "a directory changes only when laminad is started again");
    }
}

async fn serve(config: Config) -> Result<(), Error> {
    holder::outlive_file_limits()?;
    let is_ready = Arc::new(AtomicBool::new(false));
    let stop = watch_holder(is_ready.clone())?;
    let (node, mut registry) = Node::assemble(config)?;
    let node = Arc::new(node);
    let ended = start_session(&node)?;
    stack::take_down_halves(&node.layers, &node.config).await;
    if let Some(address) = &node.config.metrics {
        let looked = Arc::clone(&node);
        let mounts = move || i64::try_from(status::mounts(&looked)?.len()).ok();
        metrics::gauge(&mut registry, "mounts", "Layers and stacks that are mounted", mounts);
        let published = metrics::publish("[daemon] metrics", address, registry).await;
        published.map_err(|error| Error::Invalid(error.to_string()))?;
    }
    let leasing = Arc::clone(&node);
    tokio::spawn(async move { leasing.leases.run(&leasing.refs, || leasing.wanted()).await });
    let listener = bind(&node.config.socket())?;
    let server = tonic::transport::Server::builder()
        .add_service(control::DaemonServer::new(Service(Arc::clone(&node))))
        .add_service(control::CacheServer::new(Administration(Arc::clone(&node))))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::system)?;
    // Ctrl-C reaches the whole process group; only the holder acts on it.
    let _interrupt = signal(SignalKind::interrupt()).map_err(Error::system)?;
    is_ready.store(true, Ordering::SeqCst);
    tell_holder(holder::READY)?;
    tokio::select! {
        done = server => done.map_err(|e| Error::system(std::io::Error::other(e)))?,
        _ = stop => {}
        _ = terminate.recv() => return hand_over(&node).await,
        () = ended => tracing::error!("the connection to the kernel has ended"),
    }
    let _ = std::fs::remove_file(node.config.socket());
    take_down(&node).await;
    Ok(())
}

/// Ends so that the next worker finds what this one knows. Reads are answered until the process is gone.
async fn hand_over(node: &Node) -> Result<(), Error> {
    tracing::info!("asked to end: the next worker takes over, mounts stay");
    let fetcher = node.fetcher.clone();
    let written = tokio::task::spawn_blocking(move || fetcher.chunks().map(Chunks::flush));
    if tokio::time::timeout(WRITE_DEADLINE, written).await.is_err() {
        tracing::info!("the cache is not written in time: what is missing is fetched again");
    }
    Ok(())
}

/// Begins to answer the kernel. The returned future is done when the connection is.
fn start_session(node: &Node) -> Result<impl Future<Output = ()> + use<>, Error> {
    let connection: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::system)?;
    let devices = device::Devices::new(Arc::clone(&node.reads), tokio::runtime::Handle::current());
    let session = match std::env::var(holder::ROLE).as_deref() {
        Ok("adopt") => connection::adopt(devices, connection),
        Ok("first") => connection::first(devices, connection),
        _ => return Err(Error::Invalid("a worker is started by its holder: run laminad".into())),
    };
    let session = session.map_err(|e| Error::path(&node.config.devices(), e))?;
    tell_holder(holder::INITIALISED)?;
    let (done, ended) = oneshot::channel();
    let run = move || {
        if let Err(error) = session.run() {
            tracing::error!(%error, "the FUSE session");
        }
        let _ = done.send(());
    };
    std::thread::Builder::new().name("fuse".into()).spawn(run).map_err(Error::system)?;
    Ok(async move {
        let _ = ended.await;
    })
}

fn tell_holder(line: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Error::system)
}

/// Waits for the holder's word that the daemon ends. Ends this process when the holder is gone: its successor must not find
/// two daemons on one node. At once and without unmounting, for the successor cleans up. So it does at the holder's word before it is
/// ready: what it may wait for then, nobody else waits for.
fn watch_holder(is_ready: Arc<AtomicBool>) -> Result<oneshot::Receiver<()>, Error> {
    let socket = File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(Error::system)?);
    let (tell, told) = oneshot::channel();
    let watch = move || {
        let mut tell = Some(tell);
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            match tell.take_if(|_| line == holder::STOP) {
                Some(tell) if is_ready.load(Ordering::SeqCst) => drop(tell.send(())),
                Some(_) => std::process::exit(0),
                // The holder may be of another build than its worker.
                None => tracing::debug!(line, "the holder says something that this worker does not know"),
            }
        }
        tracing::error!("the holder is gone: ending");
        std::process::exit(1);
    };
    std::thread::Builder::new().name("holder".into()).spawn(watch).map_err(Error::system)?;
    Ok(told)
}

/// The control socket, in place of what a predecessor left: root's alone, and answering, from its first moment there. Who dials
/// it before that finds the predecessor's, and may try again.
fn bind(path: &Path) -> Result<UnixListener, Error> {
    use std::os::unix::fs::PermissionsExt;
    let fail = |e| Error::path(path, e);
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new).map_err(fail)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    std::fs::rename(&new, path).map_err(fail)?;
    Ok(listener)
}

/// At the end: unmounts what nobody uses, and says what somebody does.
async fn take_down(node: &Node) {
    for (_, record) in stack::records(&node.config) {
        if let Err(error) = stack::unmount(&node.layers, &node.config, &record.target).await {
            tracing::warn!(target = %record.target.display(), error = %error.report(), "still in use");
        }
    }
    let mounts = info::mounts().unwrap_or_default();
    let targets: Vec<PathBuf> =
        mounts.iter().filter(|m| node.layers.layer_of(m).is_some()).map(|m| m.target.clone()).collect();
    if let Err(error) = node.layers.detach(&targets).await {
        tracing::warn!(error = %error.report(), "cannot unmount every layer");
    }
    let in_use = still_in_use(node).await;
    if !in_use.is_empty() {
        tracing::warn!(
            layers = in_use.len(),
            "layers are still in use; what their users have not read yet is EIO for them now"
        );
    }
}

/// Layers whose devices are still open. The kernel closes those of the last mounts a moment after they are gone.
async fn still_in_use(node: &Node) -> Vec<LayerId> {
    let mut in_use = node.reads.table().in_use();
    for _ in 0..20 {
        if in_use.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        in_use = node.reads.table().in_use();
    }
    in_use
}
