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

use std::path::{Path, PathBuf};
use tonic::transport::{Channel, Endpoint, Uri};

/// Name of the control socket in the daemon's `run` directory.
pub const SOCKET: &str = "laminad.sock";

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
/// again: a caller may keep one client for good.
pub fn client(path: &Path) -> DaemonClient<Channel> {
    DaemonClient::new(channel(path))
}

/// As [`client`], for the cache.
pub fn cache_client(path: &Path) -> CacheClient<Channel> {
    CacheClient::new(channel(path))
}

fn channel(path: &Path) -> Channel {
    let path: PathBuf = path.to_owned();
    // The URI is never resolved: the connector below ignores it, but HTTP/2 wants an authority.
    Endpoint::from_static("http://laminad").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    }))
}
