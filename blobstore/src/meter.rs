//! What the node's data path counts: for Prometheus and for `lamina status`.
//!
//! Every name starts with `lamina_`; counters get their `_total` from the encoder. All handles are
//! shared, so a [`Meter`] is cheap to clone.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

type Labels = Vec<(&'static str, String)>;

/// Where a chunk that a reader got came from, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Chunks in memory.
    Memory,
    /// The local cache.
    Cache,
    /// The store.
    Store,
}

/// The counters of one node's fetching and caching.
#[derive(Debug, Clone)]
pub struct Meter {
    fetch_seconds: Histogram,
    fetch_errors: Family<Labels, Counter>,
    read_bytes: Family<Labels, Counter>,
    cache_bytes: Gauge,
    cache_evicted_bytes: Counter,
    cache_let_go_bytes: Counter,
    cache_written_bytes: Counter,
    verify_failures: Counter,
    hedges: Family<Labels, Counter>,
    prefetched: Counter,
    prefetched_bytes: Counter,
    prefetch_used: Counter,
    // Members of the families above, so that the hot path looks nothing up; and sums that are not exported.
    fetched: Counter,
    read: [Counter; 3],
    fetches: Counter,
    errors: Counter,
    hedged: [Counter; 2],
}

/// A counter for each value of a label, there from the start on.
fn labelled<const N: usize>(label: &'static str, values: [&str; N]) -> (Family<Labels, Counter>, [Counter; N]) {
    let family = Family::<Labels, Counter>::default();
    let counters = values.map(|value| family.get_or_create_owned(&vec![(label, value.to_owned())]));
    (family, counters)
}

impl Default for Meter {
    /// Counters at zero.
    fn default() -> Self {
        let (read_bytes, read) = labelled("source", ["memory", "cache", "store"]);
        let (hedges, hedged) = labelled("what", ["made", "won"]);
        Self {
            // 0.5 ms to 16 s.
            fetch_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            fetch_errors: Family::default(),
            read_bytes,
            cache_bytes: Gauge::default(),
            cache_evicted_bytes: Counter::default(),
            cache_let_go_bytes: Counter::default(),
            cache_written_bytes: Counter::default(),
            verify_failures: Counter::default(),
            hedges,
            prefetched: Counter::default(),
            prefetched_bytes: Counter::default(),
            prefetch_used: Counter::default(),
            fetched: Counter::default(),
            read,
            fetches: Counter::default(),
            errors: Counter::default(),
            hedged,
        }
    }
}

impl Meter {
    /// Adds the metrics to a registry without a prefix of its own.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("lamina_fetch_seconds", "Time of a request for chunks or a head", self.fetch_seconds.clone());
        registry.register("lamina_fetch_errors", "Requests for chunks or heads that failed", self.fetch_errors.clone());
        let help = "Bytes that readers asked for and got, by the farthest place that they waited for";
        registry.register("lamina_read_bytes", help, self.read_bytes.clone());
        registry.register("lamina_cache_bytes", "Bytes of chunks in the local cache", self.cache_bytes.clone());
        registry.register(
            "lamina_cache_evicted_bytes",
            "Bytes dropped from the local cache to make room",
            self.cache_evicted_bytes.clone(),
        );
        registry.register(
            "lamina_cache_let_go_bytes",
            "Bytes dropped from the local cache because an administrator said so",
            self.cache_let_go_bytes.clone(),
        );
        registry.register(
            "lamina_cache_written_bytes",
            "Bytes written to the local cache, what was carried over included",
            self.cache_written_bytes.clone(),
        );
        registry.register(
            "lamina_verify_failures",
            "Bytes from the store or the cache that did not match their hash",
            self.verify_failures.clone(),
        );
        registry.register(
            "lamina_fetch_hedges",
            "Requests made a second time for taking long, and how many of those came first",
            self.hedges.clone(),
        );
        registry.register(
            "lamina_prefetch_chunks",
            "Chunks that came before anybody waited for them",
            self.prefetched.clone(),
        );
        registry.register("lamina_prefetch_bytes", "Stored bytes of those chunks", self.prefetched_bytes.clone());
        registry.register(
            "lamina_prefetch_used_chunks",
            "Those chunks that were read while they were in memory",
            self.prefetch_used.clone(),
        );
    }

    /// Bytes of chunks and heads read from the store, right or wrong. Not exported: what names a layer is read besides.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched.get()
    }

    /// Requests to the store that were answered with success.
    pub fn fetches(&self) -> u64 {
        self.fetches.get()
    }

    /// Requests to the store that failed, those that were tried again included.
    pub fn fetch_errors(&self) -> u64 {
        self.errors.get()
    }

    /// Bytes that readers asked for and got, where `source` was the farthest place that they waited for.
    pub fn read_bytes(&self, source: Source) -> u64 {
        self.read[source as usize].get()
    }

    /// Bytes in the chunk cache.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes.get().try_into().unwrap_or(0)
    }

    /// Bytes dropped from the chunk cache to make room.
    pub fn cache_evicted_bytes(&self) -> u64 {
        self.cache_evicted_bytes.get()
    }

    /// Bytes written to the chunk cache.
    pub fn cache_written_bytes(&self) -> u64 {
        self.cache_written_bytes.get()
    }

    /// How often bytes did not match their hash.
    pub fn verify_failures(&self) -> u64 {
        self.verify_failures.get()
    }

    /// Requests that were made a second time, and how many of those were the first to be answered.
    pub fn hedges(&self) -> (u64, u64) {
        (self.hedged[0].get(), self.hedged[1].get())
    }

    /// Chunks that came before anybody waited for them, and how many of those were read while they were in memory.
    pub fn prefetched_chunks(&self) -> (u64, u64) {
        (self.prefetched.get(), self.prefetch_used.get())
    }

    pub(crate) fn hedged(&self) {
        self.hedged[0].inc();
    }

    pub(crate) fn hedge_won(&self) {
        self.hedged[1].inc();
    }

    pub(crate) fn prefetched(&self, bytes: u64) {
        self.prefetched.inc();
        self.prefetched_bytes.inc_by(bytes);
    }

    pub(crate) fn prefetch_used(&self) {
        self.prefetch_used.inc();
    }

    pub(crate) fn fetched(&self, bytes: u64) {
        self.fetched.inc_by(bytes);
    }

    pub(crate) fn fetch_done(&self, took: Duration) {
        self.fetches.inc();
        self.fetch_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn fetch_failed(&self, kind: &'static str) {
        self.fetch_errors.get_or_create(&vec![("kind", kind.to_owned())]).inc();
        self.errors.inc();
    }

    pub(crate) fn read(&self, source: Source, bytes: u64) {
        self.read[source as usize].inc_by(bytes);
    }

    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        self.cache_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(crate) fn evicted(&self, for_room: u64, let_go: u64) {
        self.cache_evicted_bytes.inc_by(for_room);
        self.cache_let_go_bytes.inc_by(let_go);
    }

    pub(crate) fn cache_written(&self, bytes: u64) {
        self.cache_written_bytes.inc_by(bytes);
    }

    pub(crate) fn verify_failed(&self) {
        self.verify_failures.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_documentation() {
        let meter = Meter::default();
        meter.fetched(5);
        meter.evicted(3, 4);
        meter.fetch_done(Duration::from_millis(3));
        meter.fetch_failed("timeout");
        meter.read(Source::Cache, 7);
        meter.hedged();
        meter.prefetched(9);
        let mut registry = Registry::default();
        meter.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "lamina_fetch_seconds_count 1",
            "lamina_fetch_errors_total{kind=\"timeout\"} 1",
            "lamina_read_bytes_total{source=\"cache\"} 7",
            "lamina_cache_bytes 0",
            "lamina_cache_evicted_bytes_total 3",
            "lamina_cache_let_go_bytes_total 4",
            "lamina_cache_written_bytes_total 0",
            "lamina_verify_failures_total 0",
            "lamina_fetch_hedges_total{what=\"made\"} 1",
            "lamina_fetch_hedges_total{what=\"won\"} 0",
            "lamina_prefetch_chunks_total 1",
            "lamina_prefetch_bytes_total 9",
            "lamina_prefetch_used_chunks_total 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        assert_eq!((meter.fetched_bytes(), meter.fetches(), meter.fetch_errors()), (5, 1, 1));
        assert_eq!(meter.read_bytes(Source::Cache), 7);
    }
}
