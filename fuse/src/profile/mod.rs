//! Profiles on a node: what starts read is recorded, and what they are expected to read is fetched.
//!
//! Both begin where a layer's file system is made, for then the kernel has nothing of it in its page cache: what the start
//! needs is asked of us. A layer that is mounted already gives nothing, and needs nothing.

mod record;

use crate::Error;
use crate::config::Config;
use crate::meters::Meters;
use blobstore::fetch::{Fetcher, Layer, Starts};
use blobstore::layer::LayerId;
use blobstore::profile::{Keep, Share, Step, node_name, plan};
use record::Recorder;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the store may take for a layer's profiles, and for taking one: whatever it is, the start is over then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether starts are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Record {
    /// For all nodes.
    #[default]
    Store,
    /// For this node; other nodes' profiles are not read either.
    Node,
    /// They are not.
    Off,
}

/// How a node uses profiles.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether starts are recorded.
    pub record: Record,
    /// Most bytes, as they are stored, that are fetched for a start, of all layers that are mounted for it; 0 = none.
    pub replay: u64,
    /// A start has ended when nothing was read for so long.
    pub quiet: Duration,
    /// No start takes longer.
    pub limit: Duration,
    /// The node's name in the store; one is made from the machine's id and name where there is none.
    pub node: Option<String>,
}

/// Records and replays.
#[derive(Debug)]
pub(crate) struct Profiles {
    keep: Arc<Keep>,
    recorder: Option<Arc<Recorder>>,
    replay: u64,
    starts: Arc<Starts>,
    meters: Meters,
}

impl Profiles {
    /// Must be called within the runtime's context.
    pub(crate) fn new(config: &Config, fetcher: &Fetcher, meters: &Meters) -> Result<Self, Error> {
        let options = &config.profile;
        let share = if options.record == Record::Node { Share::Node } else { Share::Store };
        let name = options.node.clone().unwrap_or_else(node_name);
        let keep = Keep::open(&config.cache_dir.join("profiles"), fetcher.store().clone(), share, &name);
        let keep = Arc::new(keep.map_err(|e| Error::Invalid(format!("[profile] node: {e}")))?);
        let records = options.record != Record::Off;
        let recorder = records.then(|| Recorder::new(fetcher.clone(), keep.clone(), options, meters.clone()));
        let starts = Arc::new(fetcher.starts(options.replay, options.limit));
        Ok(Self { keep, recorder, replay: options.replay, starts, meters: meters.clone() })
    }

    /// A layer is about to be mounted, anew: nothing of it is in the page cache. Layers that are mounted for the same `start`
    /// are fetched as one. Does not wait for anything.
    pub(crate) fn mounting(&self, layer: &Arc<Layer>, start: &str) {
        if let Some(recorder) = &self.recorder {
            recorder.begin(layer);
        }
        if self.replay > 0 {
            self.begin_replay(layer.clone(), start.to_owned());
        }
    }

    /// A layer is no longer mounted.
    pub(crate) fn gone(&self, layer: &LayerId) {
        self.starts.remove(layer);
    }

    /// What starts on any node read of a layer, as far as it is known now, in order; nothing where there is no profile.
    pub(crate) async fn known(&self, layer: &Layer) -> Result<Vec<Step>, Error> {
        let profiles = tokio::time::timeout(PATIENCE, self.keep.of_now(&layer.index)).await;
        let what = || format!("reading the profiles of layer {}", layer.id);
        let profiles = profiles.map_err(|_| Error::Late { what: what(), deadline: PATIENCE })?;
        let profiles = profiles.map_err(|source| Error::Profiles { layer: layer.id, source: Box::new(source) })?;
        Ok(plan(&layer.index, &profiles, u64::MAX))
    }

    fn begin_replay(&self, layer: Arc<Layer>, start: String) {
        let (keep, starts, meters, bytes) =
            (self.keep.clone(), Arc::downgrade(&self.starts), self.meters.clone(), self.replay);
        let begun = Instant::now();
        tokio::spawn(async move {
            let profiles = tokio::time::timeout(PATIENCE, keep.of(&layer.index)).await.unwrap_or_default();
            let steps = plan(&layer.index, &profiles, bytes);
            let Some(starts) = starts.upgrade().filter(|_| !steps.is_empty()) else { return };
            tracing::debug!(layer = %layer.id, chunks = steps.len(), nodes = profiles.len(), "a start is replayed");
            meters.replayed();
            let steps = steps.iter().map(|step| (Duration::from_millis(step.after.into()), step.chunk));
            starts.add(&start, begun, &layer, steps);
        });
    }
}
