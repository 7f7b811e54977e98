//! containerd's gRPC interfaces that Lamina serves or calls, and nothing else: the types generated from the protos
//! vendored in `proto/`, how to reach a containerd's socket, and the headers that its calls carry.
//!
//! What the calls mean is written in the proto files. `snapshotter` uses [`snapshots::snapshots_server`]; the command
//! line uses the clients.

pub mod header;

use std::path::{Path, PathBuf};
use tonic::transport::{Channel, Endpoint, Uri};

/// One service a module: messages, client and server. They name each other's types by path, so the modules are laid
/// out as the proto packages are, and re-exported below under short names.
#[allow(missing_docs, unreachable_pub, rustdoc::all, clippy::all)]
mod generated {
    pub mod containerd {
        pub mod types {
            tonic::include_proto!("containerd.types");
        }
        pub mod services {
            pub mod snapshots {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.snapshots.v1");
                }
            }
            pub mod content {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.content.v1");
                }
            }
            pub mod images {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.images.v1");
                }
            }
            pub mod leases {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.leases.v1");
                }
            }
            pub mod containers {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.containers.v1");
                }
            }
            pub mod namespaces {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.namespaces.v1");
                }
            }
            pub mod version {
                pub mod v1 {
                    tonic::include_proto!("containerd.services.version.v1");
                }
            }
        }
    }
}

pub use generated::containerd::services::{
    containers::v1 as containers, content::v1 as content, images::v1 as images, leases::v1 as leases,
    namespaces::v1 as namespaces, snapshots::v1 as snapshots, version::v1 as version,
};
pub use generated::containerd::types;

/// Where containerd listens when nobody configured it otherwise.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The largest message that containerd sends or takes, in bytes (its `defaults.DefaultMaxRecvMsgSize`). Clients and
/// servers here should be given the same, with `max_decoding_message_size`.
pub const MESSAGE_LIMIT: usize = 16 << 20;

/// A channel to the unix socket at `path`, for any of the clients. Nothing is dialled before the first call, and a
/// lost connection is dialled again.
pub fn channel(path: &Path) -> Channel {
    let path: PathBuf = path.to_owned();
    // The URI is never resolved: the connector below ignores it. Its host becomes the `:authority`, which is
    // "localhost" when Go clients dial a unix socket.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    }))
}
