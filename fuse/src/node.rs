//! The parts of a worker, put together: what the control API works on.

use crate::Error;
use crate::config::Config;
use crate::holder::TAKEOVERS;
use crate::layers::Layers;
use crate::leases::Leases;
use crate::meters::Meters;
use crate::mount::info;
use crate::mount::mounter::Mounter;
use crate::probe::{self, Feature};
use crate::profile::Profiles;
use crate::reads::Reads;
use crate::stack;
use crate::table::Table;
use blobstore::cache::{self, Cache, PinNames};
use blobstore::fetch::Fetcher;
use blobstore::layer::LayerId;
use blobstore::meter::Meter;
use blobstore::refs::{Name, Refs, Stacks};
use blobstore::store::{self, Store};
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A worker's parts.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) refs: Refs,
    pub(crate) fetcher: Fetcher,
    /// Under what layers were pinned; who holds the lock may change pins.
    pub(crate) pins: tokio::sync::Mutex<PinNames>,
    pub(crate) layers: Arc<Layers>,
    pub(crate) leases: Leases,
    pub(crate) profiles: Arc<Profiles>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) features: Vec<Feature>,
    pub(crate) meters: Meters,
    pub(crate) takeovers: u32,
    /// Everything that was asked of the store, references included.
    pub(crate) traffic: Arc<store::Counts>,
}

impl Node {
    /// Puts the parts together. Nothing is served yet. The registry has the counters of all of them.
    pub(crate) fn assemble(config: Config) -> Result<(Self, Registry), Error> {
        let usable = |e: store::StoreError| Error::Store(Box::new(e));
        let mut store = store::open_with(&config.store, &config.store_settings).map_err(usable)?;
        if !config.store_delay.is_zero() {
            store = Arc::new(store::Delay::new(store, config.store_delay)) as Arc<dyn Store>;
        }
        let metered = store::Metered::new(store);
        let traffic = metered.counts();
        let store = Arc::new(metered) as Arc<dyn Store>;
        let fetcher = fetcher(&config, Arc::clone(&store))?;
        let mut registry = Registry::default();
        let meters = Meters::default();
        meters.register(&mut registry);
        fetcher.meter().register(&mut registry);
        let (all, label) = (Arc::clone(&traffic), ("store", store.url().to_owned()));
        let help = "Bytes read from the store: chunks, heads, and what names them";
        metrics::counter(&mut registry, "fetch_bytes", help, label, move || all.bytes_read.load(Relaxed));
        let probed = probe::probe(&config)?;
        tracing::info!(form = probed.form.name(), "layers are mounted in this form");
        let table = Arc::new(Table::open(&config.journal()).map_err(|e| Error::path(&config.journal(), e))?);
        let mounter = Mounter::new(std::env::current_exe().map_err(Error::system)?, config.deadline);
        let profiles = Arc::new(Profiles::new(&config, &fetcher, &meters)?);
        let layers =
            Layers::new(config.clone(), fetcher.clone(), Arc::clone(&profiles), Arc::clone(&table), mounter, &probed);
        let reads = Reads::new(fetcher.clone(), table, Arc::clone(&profiles), meters.clone(), &config.fetch);
        let takeovers = std::env::var(TAKEOVERS).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        meters.takeovers(takeovers);
        let pins = tokio::sync::Mutex::new(PinNames::new(&config.cache_dir, &config.cache_domain));
        let leases = Leases::new(&store, &config.cache_dir, config.lease);
        let node = Self {
            pins,
            config,
            leases,
            profiles,
            refs: Refs::new(store),
            fetcher,
            layers: Arc::new(layers),
            reads: Arc::new(reads),
            features: probed.features,
            meters,
            takeovers,
            traffic,
        };
        Ok((node, registry))
    }

    /// The layers that are mounted, or still under a mount.
    ///
    /// # Errors
    /// Where the list of mounts cannot be read: nothing may be taken for unused then.
    pub(crate) fn in_use(&self) -> Result<BTreeSet<LayerId>, Error> {
        let mounts = info::mounts().map_err(Error::system)?;
        let mounted = mounts.iter().filter_map(|mount| self.layers.layer_of(mount));
        Ok(mounted.chain(self.reads.table().in_use()).collect())
    }

    /// What the store must keep for what is mounted here: what is in use, and what stacks have, those that are being made
    /// too.
    ///
    /// # Errors
    /// As of [`Node::in_use`].
    pub(crate) fn wanted(&self) -> Result<BTreeSet<LayerId>, Error> {
        let stacked = stack::records(&self.config).into_iter().flat_map(|(_, record)| record.layers);
        Ok(self.in_use()?.into_iter().chain(stacked).collect())
    }

    /// What a reference stands for.
    pub(crate) async fn resolve(&self, name: &Name, deadline: Duration) -> Result<Stacks, Error> {
        let resolved = tokio::time::timeout(deadline, self.refs.resolve_stacks(name));
        let stacks = resolved.await.map_err(|_| Error::Late { what: format!("resolving {name}"), deadline })?;
        stacks.map_err(|source| Error::Resolve { reference: name.to_string(), source: Box::new(source) })
    }
}

/// Fetching from the store, through the cache.
fn fetcher(config: &Config, store: Arc<dyn Store>) -> Result<Fetcher, Error> {
    let meter = Meter::default();
    let mut limits = cache::Options::new(config.cache_size);
    limits.reserve = cache::Reserve::Percent(config.cache_reserve.into());
    limits.domain.clone_from(&config.cache_domain);
    let cache = Cache::open(&config.cache_dir, &limits, &meter);
    Ok(Fetcher::new(store, cache.map_err(Error::cache)?, config.fetch.clone(), meter))
}
