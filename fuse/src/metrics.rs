//! The daemon's own counters, and the page that Prometheus reads.

use crate::Error;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// A client that does not finish its request in this time is cut off.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the devices did. Fetching and caching count for themselves.
#[derive(Debug, Clone)]
pub(crate) struct Meters {
    device_read: Counter,
    takeovers: Counter,
    read_wait: Histogram,
    profiles: Family<Labels, Counter>,
}

type Labels = Vec<(&'static str, &'static str)>;

impl Default for Meters {
    fn default() -> Self {
        // 0.5 ms to 16 s, as of the fetches.
        let read_wait = Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        let profiles = Family::<Labels, Counter>::default();
        // There from the start on, at zero.
        for what in ["recorded", "replayed"] {
            profiles.get_or_create_owned(&vec![("what", what)]);
        }
        Self { device_read: Counter::default(), takeovers: Counter::default(), read_wait, profiles }
    }
}

impl Meters {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("lamina");
        registry.register(
            "device_read_bytes",
            "Bytes answered to the kernel's reads of layers' devices",
            self.device_read.clone(),
        );
        registry.register(
            "daemon_takeovers",
            "Workers that adopted the connection of one that died",
            self.takeovers.clone(),
        );
        registry.register(
            "read_wait_seconds",
            "Time of the kernel's reads that had to wait for the store or for another's fetch",
            self.read_wait.clone(),
        );
        registry.register(
            "profiles",
            "Starts of layers that were recorded, and those that were fetched as a profile says",
            self.profiles.clone(),
        );
    }

    /// A start of a layer was recorded.
    pub(crate) fn recorded(&self) {
        self.profiles.get_or_create(&vec![("what", "recorded")]).inc();
    }

    /// A start of a layer is fetched ahead, as profiles say.
    pub(crate) fn replayed(&self) {
        self.profiles.get_or_create(&vec![("what", "replayed")]).inc();
    }

    /// A read that was not answered at once took this long.
    pub(crate) fn read_waited(&self, time: Duration) {
        self.read_wait.observe(time.as_secs_f64());
    }

    pub(crate) fn device_read(&self, bytes: usize) {
        self.device_read.inc_by(bytes as u64);
    }

    pub(crate) fn device_read_bytes(&self) -> u64 {
        self.device_read.get()
    }

    pub(crate) fn takeovers(&self, count: u32) {
        self.takeovers.inc_by(count.into());
    }
}

/// Opens the page's address, so that a wrong one is an error at the start.
pub(crate) async fn listen(address: &str) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|e| {
        let wanted =
            if e.kind() == std::io::ErrorKind::InvalidInput { "; write IP:PORT, or \"\" for none" } else { "" };
        Error::Invalid(format!("[daemon] metrics = \"{address}\": {e}{wanted}"))
    })?;
    let at = listener.local_addr().map_err(Error::system)?;
    tracing::info!(address = %at, "metrics are at http://{at}/metrics");
    Ok(listener)
}

/// Serves `/metrics` for ever.
pub(crate) async fn serve(listener: TcpListener, registry: Arc<Registry>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(stream, Arc::clone(&registry)))),
            Err(error) => {
                tracing::warn!(%error, "metrics: accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, registry: Arc<Registry>) {
    let service = service_fn(move |request| {
        let answer = page(&request, &registry);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    // A client that went away is its own business.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

fn page(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let with = |status, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response
    };
    if request.method() != Method::GET || request.uri().path() != "/metrics" {
        return with(StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned());
    }
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => with(StatusCode::OK, text),
        Err(e) => with(StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
    }
}
