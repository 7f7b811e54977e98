//! Tombstones: `tombstones/<key>` says since when nothing needs the object `<key>`: since the tombstone was written, by the
//! store's clock. Its content is for people. One that is dated in the future was written by a clock that was wrong: it is
//! written anew, and counts from then.
//!
//! `tombstones/<lease>/<seconds>` says since when a lease that was written then seems to have ended, or to be from the future.

use crate::store::{Listed, Result, Store, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Where they lie; sweeps too.
pub(super) const PREFIX: &str = "tombstones/";

const TEXT: &[u8] = b"nothing needs this object since this was written\n";

/// The tombstone of an object.
pub(super) fn key(object: &str) -> String {
    format!("{PREFIX}{object}")
}

/// Object and since when, of all tombstones in a listing.
pub(super) fn of_listing(listed: Vec<Listed>) -> BTreeMap<String, SystemTime> {
    let marks = listed.into_iter().filter(|o| !o.key.starts_with(super::sweep::PREFIX));
    marks.filter_map(|o| Some((o.key.strip_prefix(PREFIX)?.to_owned(), o.stat.modified))).collect()
}

/// Of a lease that was written then.
pub(super) fn of_lease(lease: &Listed) -> String {
    let since_1970 = lease.stat.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}/{}", lease.key, since_1970.as_secs())
}

/// Writes one anew.
pub(super) async fn again(store: &dyn Store, object: &str) -> Result<()> {
    store.put(&key(object), Bytes::from_static(TEXT)).await
}

/// Writes one, unless there is one.
pub(super) async fn put(store: &dyn Store, object: &str) -> Result<()> {
    match store.create(&key(object), Bytes::from_static(TEXT)).await {
        Err(StoreError::AlreadyExists { .. }) => Ok(()),
        done => done,
    }
}

pub(super) async fn remove(store: &dyn Store, object: &str) -> Result<()> {
    store.delete(&key(object)).await
}
