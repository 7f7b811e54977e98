//! The daemon's own counters.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

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
        let read_wait = metrics::seconds();
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
