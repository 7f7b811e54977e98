//! `lamina status`: what runs here, gathered at the moment it is asked.

use crate::mount::info;
use crate::mount::request::ErofsForm;
use crate::stack;
use crate::worker::Shared;
use control::v1;
use std::time::Duration;

/// A store that does not answer in this time is reported as not answering.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// The name of a form of the kernel face.
pub(crate) fn face(form: ErofsForm) -> &'static str {
    match form {
        ErofsForm::FileDirect | ErofsForm::File => "file",
        ErofsForm::Loop => "loop",
    }
}

pub(crate) async fn report(shared: &Shared) -> v1::StatusReply {
    let features = shared.features.iter().map(|f| v1::Feature {
        name: f.name.to_owned(),
        present: f.present,
        detail: f.detail.clone(),
    });
    let meter = shared.fetcher.meter();
    v1::StatusReply {
        pid: std::process::id(),
        holder_pid: rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get().unsigned_abs()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        face: face(shared.layers.form()).to_owned(),
        features: features.collect(),
        mounts: mounts(shared),
        store: shared.config.store.clone(),
        store_error: store_error(shared).await,
        cache_bytes: meter.cache_bytes(),
        cache_limit: shared.config.cache_size,
        fetched_bytes: meter.fetched_bytes(),
        fetches: meter.fetches(),
        takeovers: shared.takeovers,
        device_read_bytes: shared.meters.device_read_bytes(),
    }
}

async fn store_error(shared: &Shared) -> String {
    match tokio::time::timeout(STORE_PATIENCE, shared.refs.is_there()).await {
        Ok(Ok(true)) => String::new(),
        Ok(Ok(false)) => "nothing is there: not mounted, or nothing converted yet".to_owned(),
        Ok(Err(e)) => crate::error::chain(&e),
        Err(_) => format!("no answer within {STORE_PATIENCE:?}"),
    }
}

fn mounts(shared: &Shared) -> Vec<v1::Mounted> {
    let layers = info::mounts().unwrap_or_default().into_iter().filter_map(|m| {
        let id = shared.layers.layer_of(&m)?;
        let target = m.target.to_string_lossy().into_owned();
        Some(v1::Mounted { target, layer: id.to_string(), kind: "layer".to_owned() })
    });
    let stacks = stack::records(&shared.config).into_iter().map(|(_, record)| {
        let target = record.target.to_string_lossy().into_owned();
        v1::Mounted { target, layer: String::new(), kind: "stack".to_owned() }
    });
    layers.chain(stacks).collect()
}
