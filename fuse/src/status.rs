//! `lamina status`: what runs here, gathered at the moment it is asked.

use crate::mount::info;
use crate::node::Node;
use crate::stack;
use control::v1;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A store that does not answer in this time is reported as not answering.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn report(node: &Node) -> v1::StatusReply {
    let features = node.features.iter().map(|f| v1::Feature {
        name: f.name.to_owned(),
        present: f.present,
        detail: f.detail.clone(),
    });
    let meter = node.fetcher.meter();
    v1::StatusReply {
        pid: std::process::id(),
        holder_pid: rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get().unsigned_abs()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        face: node.layers.form().face().to_owned(),
        features: features.collect(),
        mounts: mounts(node).unwrap_or_default(),
        store: node.config.store.clone(),
        store_error: store_error(node).await,
        cache_bytes: meter.cache_bytes(),
        cache_limit: node.config.cache_size,
        fetched_bytes: node.traffic.bytes_read.load(Relaxed),
        fetches: node.traffic.reads.load(Relaxed),
        takeovers: node.takeovers,
        device_read_bytes: node.meters.device_read_bytes(),
    }
}

async fn store_error(node: &Node) -> String {
    match tokio::time::timeout(STORE_PATIENCE, node.refs.is_there()).await {
        Ok(Ok(true)) => String::new(),
        Ok(Ok(false)) => "nothing is there: not mounted, or nothing converted yet".to_owned(),
        Ok(Err(e)) => blobstore::causes(&e),
        Err(_) => format!("no answer within {STORE_PATIENCE:?}"),
    }
}

/// Layers and stacks that are mounted; `None` where that cannot be read.
pub(crate) fn mounts(node: &Node) -> Option<Vec<v1::Mounted>> {
    let layers = info::mounts().ok()?.into_iter().filter_map(|m| {
        let id = node.layers.layer_of(&m)?;
        let target = m.target.to_string_lossy().into_owned();
        Some(v1::Mounted { target, layer: id.to_string(), kind: "layer".to_owned(), ..v1::Mounted::default() })
    });
    let stacks = stack::records(&node.config).into_iter().map(|(_, record)| {
        let target = record.target.to_string_lossy().into_owned();
        let layers = record.layers.iter().map(ToString::to_string).collect();
        let upper = record.upper.map(|upper| upper.to_string_lossy().into_owned()).unwrap_or_default();
        v1::Mounted { target, layer: String::new(), kind: "stack".to_owned(), layers, upper }
    });
    Some(layers.chain(stacks).collect())
}
