//! Small objects that have had their time: older objects of names that have moved, leases that have ended, profiles of
//! layers that are gone.

use super::error::Result;
use super::lease::Leased;
use crate::refs::{layer_of, series};
use crate::store::{Listed, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Keys of those that nobody can be about to read any more.
pub(super) async fn find(store: &dyn Store, now: SystemTime, grace: Duration, held: &Leased) -> Result<Vec<String>> {
    let old = |object: &Listed| now.duration_since(object.stat.modified).is_ok_and(|age| age >= grace);
    let mut found = held.ended.clone();
    for root in ["images/", "tags/"] {
        found.extend(superseded(&store.scan(root).await?, old));
    }
    let layers: BTreeSet<String> = store.list("layers/").await?.into_iter().collect();
    let there: BTreeSet<String> =
        layers.iter().filter_map(|key| layer_of(key)).map(|layer| layer.to_string()).collect();
    let profiles = store.scan("node/profiles/").await?;
    let of_none = |object: &&Listed| {
        let layer = object.key.split('/').nth(2).unwrap_or_default();
        !there.contains(layer) && old(object)
    };
    found.extend(profiles.iter().filter(of_none).map(|object| object.key.clone()));
    Ok(found)
}

/// All but the highest of each series, where that one is old: a reader can have listed a series before it was written, and
/// is then looking for the one below.
fn superseded(listed: &[Listed], old: impl Fn(&Listed) -> bool) -> Vec<String> {
    let mut members: BTreeMap<&str, Vec<(u64, &Listed)>> = BTreeMap::new();
    for object in listed {
        if let Some((prefix, sequence)) = series::split(&object.key) {
            members.entry(prefix).or_default().push((sequence, object));
        }
    }
    let mut found = Vec::new();
    for mut series in members.into_values() {
        series.sort_unstable_by_key(|(sequence, _)| *sequence);
        if let Some((_, top)) = series.pop()
            && old(top)
        {
            found.extend(series.into_iter().map(|(_, object)| object.key.clone()));
        }
    }
    found
}
