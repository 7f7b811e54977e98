//! The metadata headers of a call to containerd: the namespace, without which most services refuse a call, and the
//! lease that keeps what the call makes from the garbage collector.
//!
//! [`Headers`] is an interceptor (`XClient::with_interceptor(channel, headers.clone())`), so that a client is made
//! once and every call carries them.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// Names the namespace (containerd's `pkg/namespaces/grpc.go`).
pub const NAMESPACE: &str = "containerd-namespace";

/// Names the lease (containerd's `core/leases/grpc.go`).
pub const LEASE: &str = "containerd-lease";

/// A value that cannot stand in a header: it holds something else than visible ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidHeader {
    /// Which header.
    pub name: &'static str,
    /// What was to be its value.
    pub value: String,
}

impl std::fmt::Display for InvalidHeader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} cannot be the value of the header {}", self.value, self.name)
    }
}

impl std::error::Error for InvalidHeader {}

/// The headers that every call of a client carries.
#[derive(Debug, Clone)]
pub struct Headers {
    namespace: MetadataValue<Ascii>,
    lease: Option<MetadataValue<Ascii>>,
}

impl Headers {
    /// Calls in `namespace`, under no lease.
    pub fn new(namespace: &str) -> Result<Self, InvalidHeader> {
        Ok(Self { namespace: value(NAMESPACE, namespace)?, lease: None })
    }

    /// The same, and what the calls make is kept by the lease `id`.
    pub fn with_lease(mut self, id: &str) -> Result<Self, InvalidHeader> {
        self.lease = Some(value(LEASE, id)?);
        Ok(self)
    }

    /// Puts the headers on one request.
    pub fn apply<T>(&self, request: &mut Request<T>) {
        let metadata = request.metadata_mut();
        metadata.insert(NAMESPACE, self.namespace.clone());
        if let Some(lease) = &self.lease {
            metadata.insert(LEASE, lease.clone());
        }
    }
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.apply(&mut request);
        Ok(request)
    }
}

fn value(name: &'static str, value: &str) -> Result<MetadataValue<Ascii>, InvalidHeader> {
    value.parse().map_err(|_| InvalidHeader { name, value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_the_namespace_and_the_lease() {
        let headers = Headers::new("k8s.io").unwrap().with_lease("lease-1").unwrap();
        let mut request = Request::new(());
        headers.apply(&mut request);
        assert_eq!(request.metadata().get(NAMESPACE).unwrap(), "k8s.io");
        assert_eq!(request.metadata().get(LEASE).unwrap(), "lease-1");
    }

    #[test]
    fn a_line_break_in_a_namespace_is_refused() {
        let error = Headers::new("a\nb").unwrap_err();
        assert_eq!(error.name, NAMESPACE);
    }
}
