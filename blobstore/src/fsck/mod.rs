//! Looks at everything that a store holds, and says what is wrong: layers that are not what their names say, names and
//! references that lead to what is not there, objects that nobody can read.
//!
//! Two kinds of findings: a [`Kind::Fault`] is wrong, a [`Kind::Note`] is worth knowing (what nothing needs, tombstones, what
//! killed writers left). Repair does what is safe and nothing else: references to what is missing or damaged go, so that
//! nodes unpack the image as ever and a conversion makes it anew; what is old and half written goes. Layer files, names,
//! and what a later build may have written stay.

mod layers;
mod names;
mod references;

use crate::collect;
use crate::layer::LayerId;
use crate::refs::{self, Refs, format};
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// Half-written files that are older belong to no living writer.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something is wrong.
    Fault,
    /// Nothing is wrong.
    Note,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub kind: Kind,
    /// Of which object.
    pub key: String,
    /// What is the matter.
    pub what: String,
    /// Something was done about it.
    pub repaired: bool,
}

/// How to look.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Read every byte of every layer, not only its index.
    pub deep: bool,
    /// Do what is safe about what is found.
    pub repair: bool,
}

/// What there is, and what is the matter with it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Layers looked at, and their bytes.
    pub layers: collect::Sum,
    /// Image names and tags.
    pub names: u64,
    /// Manifests and blobs.
    pub documents: u64,
    /// Chain, diff and digest references.
    pub references: u64,
    /// Everything that was found, faults first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many faults are left.
    pub fn faults(&self) -> usize {
        self.findings.iter().filter(|finding| finding.kind == Kind::Fault && !finding.repaired).count()
    }

    fn fault(&mut self, key: &str, what: impl ToString, repaired: bool) {
        let (key, what) = (key.to_owned(), what.to_string());
        self.findings.push(Finding { kind: Kind::Fault, key, what, repaired });
    }

    fn note(&mut self, key: &str, what: impl ToString, repaired: bool) {
        let (key, what) = (key.to_owned(), what.to_string());
        self.findings.push(Finding { kind: Kind::Note, key, what, repaired });
    }
}

/// What is being looked at.
struct Check<'a> {
    refs: &'a Refs,
    options: Options,
    report: Report,
    /// Layers that are there and right.
    good: BTreeSet<LayerId>,
    /// Keys of layers that are not right, and what is wrong.
    bad: Vec<(String, String)>,
}

/// Looks at a whole store. `progress` is told bytes of layers that were looked at, of how many.
///
/// # Errors
/// Where the store cannot be asked, or is none. What is wrong in it is in the report.
pub async fn check(
    refs: &Refs,
    options: Options,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, collect::Error> {
    if !refs.is_there().await? {
        return Err(collect::Error::NoStore { store: refs.store().url().to_owned() });
    }
    let mut check = Check { refs, options, report: Report::default(), good: BTreeSet::new(), bad: Vec::new() };
    check.layers(progress).await?;
    check.blobs().await?;
    check.manifests().await?;
    check.references().await?;
    check.names().await?;
    check.rest().await?;
    check.report.findings.sort_by(|a, b| (a.kind, &a.key).cmp(&(b.kind, &b.key)));
    Ok(check.report)
}

impl Check<'_> {
    /// What lies beside all that.
    async fn rest(&mut self) -> Result<(), collect::Error> {
        let store = self.refs.store().clone();
        let known = ["layers", "blobs", "manifests", "refs", "images", "tags", "revoked", "tombstones", "node"];
        let (mut tombstones, mut sweeps) = (0, Vec::new());
        for key in store.list("").await? {
            let (first, rest) = key.split_once('/').unwrap_or((&key, ""));
            match first {
                "tombstones" if rest.starts_with("sweeps/") => sweeps.push(key),
                // Of leases: that they seem to have ended.
                "tombstones" if rest.starts_with("node/") => {}
                "tombstones" => tombstones += 1,
                "conformance" => {}
                _ if !known.contains(&first) && key != format::KEY => {
                    self.report.note(&key, "nothing of Lamina's", false);
                }
                _ => {}
            }
        }
        if tombstones > 0 {
            let what = format!("{tombstones} objects that nothing needs wait for their end: lamina store gc --delete");
            self.report.note("tombstones/", what, false);
        }
        for key in sweeps {
            self.report.note(&key, "a collector is at work, or was killed; the next one takes this away", false);
        }
        if let Err(error) = collect::leases_are_readable(&*store).await {
            match error {
                collect::Error::Lease { key, what } => self.report.fault(&key, what, false),
                error => return Err(error),
            }
        }
        let before = SystemTime::now() - LEFTOVER_AGE;
        for left in store.leftovers(before, self.options.repair).await? {
            let what = format!("{} bytes that a killed writer left", left.stat.size);
            self.report.note(&left.key, what, self.options.repair);
        }
        Ok(())
    }

    /// What cannot be read; a store that cannot be asked is no finding.
    fn unreadable(&mut self, key: &str, error: refs::Error) -> Result<bool, collect::Error> {
        match error {
            refs::Error::Store(error) => Err(error.into()),
            error @ refs::Error::Unsupported { .. } => {
                self.report.note(key, error, false);
                Ok(false)
            }
            error => {
                self.report.fault(key, error, self.options.repair);
                Ok(self.options.repair)
            }
        }
    }

    async fn is_there(&self, key: &str) -> Result<bool, StoreError> {
        match self.refs.store().stat(key).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
