//! The page that Prometheus reads, for every daemon alike. What is on it is theirs.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// A client that does not finish its request in this time is cut off.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `prometheus_client` writes. Without a Content-Type, Prometheus 3 takes nothing.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Serves `http://ADDRESS/metrics` from now on, for as long as the runtime is there. `key` is where the address was configured,
/// such as `[daemon] metrics`.
///
/// # Errors
/// As of listening, with the key and the address, so that a wrong one is an error at the start.
pub async fn publish(key: &str, address: &str, registry: Registry) -> io::Result<()> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let wanted = match error.kind() {
            io::ErrorKind::InvalidInput => "; write IP:PORT, or \"\" for none",
            io::ErrorKind::AddrInUse => "; choose another, or \"\" for none",
            _ => "",
        };
        io::Error::new(error.kind(), format!("{key} = \"{address}\": {error}{wanted}"))
    })?;
    let at = listener.local_addr()?;
    tracing::info!(address = %at, "metrics are at http://{at}/metrics");
    tokio::spawn(serve(listener, Arc::new(registry)));
    Ok(())
}

/// Seconds that something took, from half a millisecond to 16 s.
pub fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

/// What is counted by looking, when the page is asked for: a gauge of this name.
pub fn gauge(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    look: impl Fn() -> Option<i64> + Send + Sync + 'static,
) {
    registry.sub_registry_with_prefix("lamina").register_collector(Box::new(Looked { name, help, look }));
}

/// What somebody else counts, and is looked at when the page is asked for: a counter of this name, with one label.
pub fn counter(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    label: (&'static str, String),
    look: impl Fn() -> u64 + Send + Sync + 'static,
) {
    registry.sub_registry_with_prefix("lamina").register_collector(Box::new(Counted {
        name,
        help,
        labels: [label],
        look,
    }));
}

struct Counted<F> {
    name: &'static str,
    help: &'static str,
    labels: [(&'static str, String); 1],
    look: F,
}

impl<F> fmt::Debug for Counted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<F: Fn() -> u64 + Send + Sync + 'static> Collector for Counted<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counter = ConstCounter::new((self.look)());
        let mut described = encoder.encode_descriptor(self.name, self.help, None, counter.metric_type())?;
        counter.encode(described.encode_family(&self.labels)?)
    }
}

/// Not there while it cannot be looked at.
struct Looked<F> {
    name: &'static str,
    help: &'static str,
    look: F,
}

impl<F> fmt::Debug for Looked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<F: Fn() -> Option<i64> + Send + Sync + 'static> Collector for Looked<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(value) = (self.look)() else { return Ok(()) };
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(self.name, self.help, None, gauge.metric_type())?)
    }
}

async fn serve(listener: TcpListener, registry: Arc<Registry>) {
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

/// HEAD is answered as GET: hyper leaves the body away.
fn page(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let with = |status, kind, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) || request.uri().path() != "/metrics" {
        return with(StatusCode::NOT_FOUND, TEXT, "the metrics are at /metrics\n".to_owned());
    }
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => with(StatusCode::OK, OPEN_METRICS, text),
        Err(e) => with(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{e}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(line: &str) -> String {
        let mut registry = Registry::default();
        gauge(&mut registry, "things", "How many there are.", || Some(3));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(connection(stream, Arc::new(registry)));
        let request = format!("{line} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_page_says_that_it_is_open_metrics_and_head_is_the_same_without_it() {
        let kind = format!("content-type: {OPEN_METRICS}\r\n");
        let page = ask("GET /metrics").await;
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains(&kind), "{page}");
        assert!(page.ends_with("lamina_things 3\n# EOF\n"), "{page}");
        let head = ask("HEAD /metrics").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(&kind), "{head}");
        assert!(head.contains("content-length: ") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[tokio::test]
    async fn what_is_not_there_is_said_as_text() {
        for line in ["GET /", "POST /metrics"] {
            let answer = ask(line).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
            assert!(answer.contains("content-type: text/plain; charset=utf-8\r\n"), "{answer}");
        }
    }
}
