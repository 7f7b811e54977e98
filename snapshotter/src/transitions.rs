//! The state machine: what each request does to the records, as changes to [`Tables`] and nothing else. No disk, no
//! network, no clock but the time of a change.
//!
//! The rules are containerd's (its `core/snapshots/storage/bolt.go` is the reference): active keys and committed names
//! share one space; a parent is committed; what has children stays. Every function checks all before it writes.

use crate::error::{Error, ErrorKind, Result};
use crate::record::{Kind, Labels, Layer, Record, Time, Usage};
use crate::tables::{Read, Tables};
use std::collections::HashSet;

/// Names, as in `containerd.io/snapshot.ref=<chain id>`, the snapshot that an unpack is to make.
pub(crate) const TARGET: &str = "containerd.io/snapshot.ref";

/// Lower layers in one overlay (OVL_MAX_STACK of the kernel's fs/overlayfs/params.h).
const MAX_LOWERS: usize = 500;

/// One lower directory of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lower {
    /// Of a plain snapshot.
    Plain(u64),
    /// A layer, wherever it is mounted.
    Layer(Layer),
}

/// A stack's lower directories, top to bottom, and the one whose root lends its attributes to an upper directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lowers {
    pub(crate) stack: Vec<Lower>,
    /// Index into `stack`: the topmost one of the parent itself; workspaces and toolkits come above it and do not
    /// change what the root directory is.
    pub(crate) root: usize,
}

/// The stack on which a snapshot with this parent and these layers above it stands.
pub(crate) fn lowers(read: &impl Read, parent: &str, composed: &[Layer]) -> Result<Lowers> {
    let mut pile = Pile::default();
    pile.layers(composed);
    let above = pile.stack.len();
    let mut name = parent.to_owned();
    while !name.is_empty() && !pile.complete {
        let record = read.get(&name)?.ok_or_else(|| Error::not_found(format!("parent snapshot {name:?}")))?;
        if let Some(layers) = &record.remote {
            pile.layers(layers);
            break;
        }
        pile.stack.extend(record.dir.map(Lower::Plain));
        pile.layers(&record.composed);
        name = record.parent;
    }
    if pile.stack.len() > MAX_LOWERS {
        let count = pile.stack.len();
        return Err(Error::precondition(format!("{count} layers are stacked, overlayfs takes {MAX_LOWERS}")));
    }
    let root = above.min(pile.stack.len().saturating_sub(1));
    Ok(Lowers { stack: pile.stack, root })
}

/// A stack in the making, from the top down.
#[derive(Default)]
struct Pile {
    stack: Vec<Lower>,
    /// Layers already there: overlayfs refuses one directory twice, and below itself a layer shows nothing more.
    seen: HashSet<String>,
    /// Nothing below shows through.
    complete: bool,
}

impl Pile {
    /// Adds layers, given bottom to top.
    fn layers(&mut self, layers: &[Layer]) {
        for layer in layers.iter().rev() {
            if self.complete {
                return;
            }
            if self.seen.insert(layer.id.clone()) {
                self.stack.push(Lower::Layer(layer.clone()));
            }
            self.complete = layer.root_opaque;
        }
    }
}

/// A snapshot to be made.
pub(crate) struct New {
    pub(crate) key: String,
    pub(crate) parent: String,
    pub(crate) kind: Kind,
    pub(crate) labels: Labels,
    pub(crate) dir: Option<u64>,
    pub(crate) composed: Vec<Layer>,
}

/// Whether `new` could be made now.
pub(crate) fn may_create(read: &impl Read, key: &str, parent: &str) -> Result<()> {
    parent_is_committed(read, parent, ErrorKind::InvalidArgument)?;
    name_is_free(read, key)
}

/// Prepare and View. `mounted` lists the layers and directories that the plan counted on: where one has changed in
/// between, the error is [`ErrorKind::Moved`].
pub(crate) fn create(tables: &mut Tables<'_>, new: New, mounted: &[(String, u64)]) -> Result<()> {
    may_create(tables, &new.key, &new.parent)?;
    for (layer, dir) in mounted {
        if tables.layer_dir(layer)? != Some(*dir) {
            return Err(Error::new(ErrorKind::Moved, format!("layer {layer} was unmounted meanwhile")));
        }
    }
    let now = Time::now();
    let record = Record {
        kind: new.kind,
        parent: new.parent,
        labels: kept(new.labels),
        created: now,
        updated: now,
        dir: new.dir,
        remote: None,
        composed: new.composed,
        usage: Usage::default(),
    };
    tables.insert(&new.key, &record)
}

/// Whether a snapshot of chain `chain` on `parent`, made by [`commit_remote`], exists.
pub(crate) fn has_remote(read: &impl Read, chain: &str, parent: &str) -> Result<bool> {
    Ok(remote_name(read, chain, parent)?.is_none())
}

/// Records the stack of a chain as a committed snapshot on `parent`, unless it is there already. Its name is the chain
/// id, else the first free `<chain id>@<n>`: one chain id can have two parents, where an outage made one namespace
/// unpack a lower layer and another not. Layers without a directory get one from `allocate`.
pub(crate) fn commit_remote(
    tables: &mut Tables<'_>,
    chain: &str,
    parent: &str,
    labels: Labels,
    layers: Vec<Layer>,
    allocate: impl Fn() -> u64,
) -> Result<()> {
    parent_is_committed(tables, parent, ErrorKind::InvalidArgument)?;
    let Some(name) = remote_name(tables, chain, parent)? else { return Ok(()) };
    assign(tables, &layers, allocate)?;
    let now = Time::now();
    let record = Record {
        kind: Kind::Committed,
        parent: parent.to_owned(),
        labels: kept(labels),
        created: now,
        updated: now,
        dir: None,
        remote: Some(layers),
        composed: Vec::new(),
        usage: Usage::default(),
    };
    tables.insert(&name, &record)
}

/// The name under which a remote snapshot is to be made; None where it exists.
fn remote_name(read: &impl Read, chain: &str, parent: &str) -> Result<Option<String>> {
    let names = std::iter::once(chain.to_owned()).chain((2..).map(|n: u64| format!("{chain}@{n}")));
    for name in names {
        let Some(record) = read.get(&name)? else { return Ok(Some(name)) };
        let same_target = record.labels.get(TARGET).map(String::as_str) == Some(chain);
        if record.remote.is_some() && record.parent == parent && same_target {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Gives a directory to each layer that has none.
pub(crate) fn assign(tables: &mut Tables<'_>, layers: &[Layer], allocate: impl Fn() -> u64) -> Result<()> {
    for layer in layers {
        if tables.layer_dir(&layer.id)?.is_none() {
            tables.assign_layer(&layer.id, allocate())?;
        }
    }
    Ok(())
}

/// A request to commit.
pub(crate) struct Commit {
    pub(crate) name: String,
    pub(crate) key: String,
    /// Replace the active snapshot's.
    pub(crate) labels: Labels,
    /// "" = as the active snapshot's; else where that one had none.
    pub(crate) parent: String,
}

/// What `commit` would make, without its usage.
pub(crate) fn committed(read: &impl Read, commit: &Commit) -> Result<Record> {
    let Commit { name, key, .. } = commit;
    name_is_free(read, name)?;
    let active = read.get(key)?.ok_or_else(|| Error::not_found(format!("active snapshot {key:?}")))?;
    if active.kind != Kind::Active {
        return Err(Error::precondition(format!("snapshot {key:?} is not active")));
    }
    let parent = match (active.parent.as_str(), commit.parent.as_str()) {
        ("", given) => given,
        (own, "") => own,
        (own, given) if own == given => own,
        (own, given) => {
            return Err(Error::invalid(format!("cannot commit {key:?} on {given:?}: it stands on {own:?}")));
        }
    };
    parent_is_committed(read, parent, ErrorKind::FailedPrecondition)?;
    let now = Time::now();
    let labels = kept(commit.labels.clone());
    Ok(Record { kind: Kind::Committed, parent: parent.to_owned(), labels, created: now, updated: now, ..active })
}

/// Commit: the key goes, the name comes.
pub(crate) fn commit(tables: &mut Tables<'_>, commit: &Commit, usage: Usage) -> Result<()> {
    let record = Record { usage, ..committed(tables, commit)? };
    if let Some(active) = tables.get(&commit.key)? {
        tables.delete(&commit.key, &active)?;
    }
    tables.insert(&commit.name, &record)
}

/// Remove. Returns what was recorded, for its directory.
pub(crate) fn remove(tables: &mut Tables<'_>, key: &str) -> Result<Record> {
    let record = tables.get(key)?.ok_or_else(|| Error::not_found(format!("snapshot {key:?}")))?;
    if tables.has_children(key)? {
        return Err(Error::precondition(format!("cannot remove snapshot with child: {key:?}")));
    }
    tables.delete(key, &record)?;
    Ok(record)
}

/// Update: labels are all that changes. `mask` empty = all of them.
pub(crate) fn update(tables: &mut Tables<'_>, name: &str, labels: Labels, mask: &[String]) -> Result<Record> {
    let mut record = tables.get(name)?.ok_or_else(|| Error::not_found(format!("snapshot {name:?}")))?;
    let mut updated = record.labels.clone();
    if mask.is_empty() {
        updated = labels.clone();
    }
    for path in mask {
        match path.strip_prefix("labels.") {
            Some(key) => {
                updated.insert(key.to_owned(), labels.get(key).cloned().unwrap_or_default());
            }
            None if path == "labels" => updated = labels.clone(),
            None => return Err(Error::invalid(format!("cannot update field {path:?} of snapshot {name:?}"))),
        }
    }
    record.labels = kept(updated);
    record.updated = Time::now();
    tables.replace(name, &record)?;
    Ok(record)
}

/// Takes the directories of layers that no snapshot names.
pub(crate) fn retire_layers(tables: &mut Tables<'_>) -> Result<()> {
    let mut named = HashSet::new();
    tables.scan(|_, record| {
        named.extend(record.layers().map(|layer| layer.id.clone()));
        Ok(())
    })?;
    tables.retire_layers(|id| named.contains(id))
}

/// Labels as they are kept: one without a value is one that is not there.
fn kept(labels: Labels) -> Labels {
    labels.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn name_is_free(read: &impl Read, name: &str) -> Result<()> {
    match read.get(name)? {
        Some(_) => Err(Error::already_exists(format!("snapshot {name:?}"))),
        None => Ok(()),
    }
}

fn parent_is_committed(read: &impl Read, parent: &str, otherwise: ErrorKind) -> Result<()> {
    if parent.is_empty() {
        return Ok(());
    }
    match read.get(parent)? {
        Some(record) if record.kind == Kind::Committed => Ok(()),
        Some(_) => Err(Error::new(otherwise, format!("parent {parent:?} is not a committed snapshot"))),
        None => Err(Error::not_found(format!("parent snapshot {parent:?}"))),
    }
}
