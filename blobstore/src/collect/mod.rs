//! Deleting what of a store nothing needs, and holding what somebody does, while both go on beside each other.
//!
//! What is needed is what names (images, tags) and leases reach (`reach`). Other references are weak (`weak`): they go
//! before what they name. Nobody locks anything; three orders make it safe:
//!
//! * **A writer** ([`Lease`], [`Held`]) *holds* a key, *then* looks whether a collector has said that it will delete it, *then*
//!   names it, and releases it after that. **A collector** ([`collect`]) *says* what it will delete (`sweep`), *then* reads the
//!   leases, *then* the names, *then* deletes. Whichever of the two was second in its first step sees the other's. A writer
//!   that sees the collector waits for its end; a collector that sees the lease leaves the key alone. Leases are
//!   read before names, for a writer goes the other way: who is in neither had no use for the key.
//! * **A node** looks a layer up and reads it at once, and holds it a moment later, so that no start waits for that. What it
//!   looks up by a name was needed then, and stays for the grace at least: the collector deletes only what had a
//!   tombstone all the time (`mark`), and whoever holds a key to name it takes the tombstone away. What it looks up by a weak
//!   reference can go at once: so these go first, then nodes get [`Options::settle`] to speak up, then the leases are read once
//!   more.
//! * **A killed collector** leaves tombstones, which go on counting, and its word, for which writers wait until it is
//!   dead (`sweep`). One that was held up for longer than they wait deletes nothing more.
//!
//! The times that are compared are the store's, of its objects; durations are a process's own. In a directory the former can come
//! from clocks that are wrong: one such machine must not cost anybody what he uses, nor keep anything for ever (`seen`). `model`
//! explores what can happen between collectors, writers and nodes, step by step.

mod clock;
mod error;
mod lease;
mod leftovers;
mod mark;
#[cfg(test)]
mod model;
mod process;
mod publish;
mod reach;
mod report;
mod run;
mod seen;
mod sweep;
mod weak;

pub use error::{Error, Result};
pub use lease::{Lease, TTL_MAX, WRITER_TTL};
pub use process::holder_name;
pub use publish::Held;
pub use report::{Fate, Report, Step, Sum, Unneeded};
pub use run::{Options, collect};

use crate::refs::Refs;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// The keys of everything that names and leases reach now.
pub async fn reached(refs: &Refs) -> Result<BTreeSet<String>> {
    let held = lease::read(&**refs.store(), SystemTime::now(), &BTreeMap::new()).await?;
    Ok(reach::reach(refs, &held.keys, Options::default().at_once).await?.keys)
}

/// [`Error::Lease`] where one cannot be read.
pub async fn leases_are_readable(store: &dyn Store) -> Result<()> {
    lease::read(store, SystemTime::now(), &BTreeMap::new()).await.map(drop)
}
