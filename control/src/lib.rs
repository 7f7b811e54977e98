//! The gRPC interface of `laminad`, and nothing else: the types generated from `proto/lamina.proto`, how to reach the
//! socket, and why it could not be reached. What the calls mean is written in the proto file.

/// Messages, clients and servers of `lamina.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("lamina.v1");
}

pub use v1::cache_client::CacheClient;
pub use v1::cache_server::{Cache, CacheServer};
pub use v1::daemon_client::DaemonClient;
pub use v1::daemon_server::{Daemon, DaemonServer};

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint, Uri};

/// Name of the control socket in the daemon's `run` directory.
pub const SOCKET: &str = "laminad.sock";

/// How long a laminad that is not there is waited for: its worker may just be replaced.
pub const HAND_OVER: Duration = Duration::from_secs(3);

/// Between two tries to reach a socket on which nobody listens.
const AGAIN: Duration = Duration::from_millis(20);

/// Why nobody could be reached, where `status` is the transport's and not an answer: the innermost cause, such as
/// "connection refused", and not "transport error".
pub fn unreachable(status: &tonic::Status) -> Option<String> {
    let mut cause = std::error::Error::source(status)?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Some(cause.to_string())
}

/// A client for the socket at `path`. Nothing is dialled before the first call, and a lost connection is dialled
/// again: a caller may keep one client for good. A socket on which nobody listens is dialled for `patience`: the worker of
/// laminad may just be replaced.
pub fn client(path: &Path, patience: Duration) -> DaemonClient<Channel> {
    DaemonClient::new(channel(path, patience))
}

/// As [`client`], for the cache.
pub fn cache_client(path: &Path, patience: Duration) -> CacheClient<Channel> {
    CacheClient::new(channel(path, patience))
}

fn channel(path: &Path, patience: Duration) -> Channel {
    let path: PathBuf = path.to_owned();
    // The URI is never resolved: the connector below ignores it, but HTTP/2 wants an authority.
    Endpoint::from_static("http://laminad").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { dial(&path, patience).await.map(hyper_util::rt::TokioIo::new) }
    }))
}

async fn dial(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let until = Instant::now() + patience;
    loop {
        match UnixStream::connect(path).await {
            // A daemon that ends takes its socket with it; a worker that is replaced leaves it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < until => {
                sleep(AGAIN).await;
            }
            dialled => return dialled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn a_socket_that_somebody_left_is_dialled_until_somebody_listens_again() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, new) = (dir.path().join("socket"), dir.path().join("new"));
        let dialled = |patience| {
            let socket = socket.clone();
            async move { dial(&socket, patience).await.map(drop).map_err(|error| error.kind()) }
        };
        let patience = Duration::from_secs(600);
        assert_eq!(dialled(patience).await, Err(io::ErrorKind::NotFound));
        drop(UnixListener::bind(&socket).unwrap());
        assert_eq!(dialled(AGAIN * 2).await, Err(io::ErrorKind::ConnectionRefused));
        let waiting = tokio::spawn(dialled(patience));
        sleep(AGAIN * 2).await;
        assert!(!waiting.is_finished());
        let _successor = UnixListener::bind(&new).unwrap();
        std::fs::rename(&new, &socket).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
