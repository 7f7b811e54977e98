//! What the service does, request by request: plan on the last committed state, work on disk and with laminad, then make
//! one change to the database. The rules are in `transitions`.

use crate::attach::Attacher;
use crate::cleanup::Janitor;
use crate::compose;
use crate::daemon::{Daemon, Failure};
use crate::dirs::Dirs;
use crate::error::{Error, ErrorKind, Result};
use crate::filter::Filters;
use crate::keeper::Keeper;
use crate::mounts::{self, Mount, Own};
use crate::record::{Kind, Labels, Layer, Record, Usage};
use crate::remote::Remote;
use crate::state::{Durability, State};
use crate::tables::{Read, Tables};
use crate::transitions::{self, Commit, Lower, Lowers, New, TARGET};
use crate::usage::{self, Walks, off_thread};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often a Prepare plans again because its layers were retired under it. That takes a Cleanup between two steps of
/// it, so once is rare already.
const PLANS: usize = 5;

/// The snapshots of one root.
pub(crate) struct Snapshots {
    pub(crate) state: Arc<State>,
    pub(crate) dirs: Dirs,
    pub(crate) daemon: Daemon,
    pub(crate) remote: Remote,
    pub(crate) attacher: Attacher,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) keeper: Arc<Keeper>,
    /// What every overlay carries.
    pub(crate) overlay: Vec<String>,
    pub(crate) walks: Walks,
    /// For a reference that a container's labels name.
    pub(crate) deadline: Duration,
}

/// A snapshot to be prepared.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) key: String,
    pub(crate) parent: String,
    pub(crate) kind: Kind,
    pub(crate) labels: Labels,
}

impl Snapshots {
    /// Prepare and View.
    pub(crate) async fn prepare(&self, request: Request) -> Result<Mount> {
        if request.key.is_empty() {
            return Err(Error::invalid("a snapshot needs a key"));
        }
        let references = compose::requested(&request.key, &request.labels)?;
        if let Some(chain) = request.labels.get(TARGET).filter(|_| request.kind == Kind::Active) {
            self.commit_remote(chain, &request).await?;
        }
        transitions::may_create(&self.state.read()?, &request.key, &request.parent)?;
        let composed = self.resolve(references).await?;
        for _ in 0..PLANS {
            match self.create(&request, &composed).await {
                Err(error) if error.kind == ErrorKind::Moved => continue,
                other => return other,
            }
        }
        Err(Error::unavailable(format!("the layers of {:?} were removed again and again", request.key)))
    }

    /// Answers ALREADY_EXISTS if the snapshot that the unpack is to make is there or can be made without one.
    async fn commit_remote(&self, chain: &str, request: &Request) -> Result<()> {
        let exists = Error::already_exists(format!("target snapshot {chain:?}"));
        if transitions::has_remote(&self.state.read()?, chain, &request.parent)? {
            return Err(exists);
        }
        let Some(layers) = self.remote.stack(chain).await else { return Ok(()) };
        let (state, chain, request) = (Arc::clone(&self.state), chain.to_owned(), request.clone());
        let change = move |tables: &mut Tables<'_>| {
            let Request { parent, labels, .. } = request;
            transitions::commit_remote(tables, &chain, &parent, labels, layers, || state.allocate())
        };
        self.state.write(Durability::Now, change).await?;
        self.keeper.wake();
        Err(exists)
    }

    /// The layers that a container's labels name.
    async fn resolve(&self, references: Vec<String>) -> Result<Vec<Layer>> {
        let mut composed = Vec::new();
        for reference in references {
            match self.daemon.resolve(&reference, self.deadline).await {
                Ok(layers) => composed.extend(layers),
                // Not NOT_FOUND: containerd would take the parent for missing, and unpack the image.
                Err(Failure::Absent(why)) => {
                    return Err(Error::precondition(format!("{reference} is not in the store: {why}")));
                }
                Err(failure) => return Err(Error::unavailable(format!("{reference} cannot be resolved: {failure}"))),
            }
        }
        Ok(composed)
    }

    async fn create(&self, request: &Request, composed: &[Layer]) -> Result<Mount> {
        let lowers = transitions::lowers(&self.state.read()?, &request.parent, composed)?;
        let (paths, mounted) = self.attach(&request.key, &lowers).await?;
        let needs_dir = request.kind == Kind::Active || paths.is_empty();
        let dir = needs_dir.then(|| self.state.allocate());
        if let Some(dir) = dir {
            let (dirs, like) = (self.dirs.clone(), paths.get(lowers.root).cloned());
            let made = off_thread(move || dirs.make_snapshot(dir, like.as_deref())).await;
            made.inspect_err(|_| self.abandon(dir))?;
        }
        let Request { key, parent, kind, labels } = request.clone();
        let new = New { key, parent, kind, labels, dir, composed: composed.to_vec() };
        let change = move |tables: &mut Tables<'_>| transitions::create(tables, new, &mounted);
        let written = self.state.write(Durability::Now, change).await;
        written.inspect_err(|_| dir.into_iter().for_each(|dir| self.abandon(dir)))?;
        if !composed.is_empty() {
            self.keeper.wake();
        }
        Ok(self.mount(request.kind, dir, &paths))
    }

    /// A directory of a snapshot that did not come to be.
    fn abandon(&self, dir: u64) {
        if let Err(error) = self.dirs.set_aside(dir) {
            tracing::debug!("{error}");
        }
        self.janitor.wake();
    }

    /// Mounts the layers of a snapshot's stack. Returns its directories, top to bottom, and where each layer is.
    async fn attach(&self, key: &str, lowers: &Lowers) -> Result<(Vec<PathBuf>, Vec<(String, u64)>)> {
        let layers = self.layer_dirs(lowers).await?;
        let mounted = layers.iter().map(|(layer, dir)| (layer.id.clone(), *dir)).collect();
        let mut places = layers.iter().map(|(_, dir)| *dir).collect::<Vec<_>>().into_iter();
        let mut paths = Vec::with_capacity(lowers.stack.len());
        for lower in &lowers.stack {
            let dir = match lower {
                Lower::Plain(dir) => Some(*dir),
                Lower::Layer(_) => places.next(),
            };
            paths.extend(dir.map(|dir| self.dirs.fs(dir)));
        }
        self.attacher.attach(key, layers).await?;
        Ok((paths, mounted))
    }

    /// The layers of a stack, each with its directory; one that has none gets it.
    async fn layer_dirs(&self, lowers: &Lowers) -> Result<Vec<(Layer, u64)>> {
        let layers: Vec<Layer> = lowers
            .stack
            .iter()
            .filter_map(|lower| match lower {
                Lower::Layer(layer) => Some(layer.clone()),
                Lower::Plain(_) => None,
            })
            .collect();
        if let Some(known) = with_dirs(&self.state.read()?, &layers)? {
            return Ok(known);
        }
        let state = Arc::clone(&self.state);
        let change = move |tables: &mut Tables<'_>| {
            transitions::assign(tables, &layers, || state.allocate())?;
            with_dirs(tables, &layers)?.ok_or_else(|| Error::internal("a layer got no directory"))
        };
        self.state.write(Durability::Now, change).await
    }

    fn mount(&self, kind: Kind, dir: Option<u64>, lowers: &[PathBuf]) -> Mount {
        let own = dir.map(|dir| Own { fs: self.dirs.fs(dir), work: self.dirs.work(dir) });
        mounts::of(own.as_ref(), kind == Kind::Active, lowers, &self.overlay)
    }

    /// What Prepare or View answered. Layers that are no longer mounted (laminad or the node started again) are.
    pub(crate) async fn mounts(&self, key: &str) -> Result<Mount> {
        let (record, lowers) = {
            let reader = self.state.read()?;
            let record = found(&reader, key)?;
            if record.kind == Kind::Committed {
                return Err(Error::precondition(format!("snapshot {key:?} is committed: it has no mounts")));
            }
            let lowers = transitions::lowers(&reader, &record.parent, &record.composed)?;
            (record, lowers)
        };
        let (paths, _) = self.attach(key, &lowers).await?;
        Ok(self.mount(record.kind, record.dir, &paths))
    }

    /// Commit.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<()> {
        if commit.name.is_empty() {
            return Err(Error::invalid("a snapshot needs a name"));
        }
        let dir = transitions::committed(&self.state.read()?, &commit)?.dir;
        let usage = match dir.map(|dir| self.dirs.fs(dir)) {
            Some(path) => off_thread(move || usage::walk(&path)).await?,
            None => Usage::default(),
        };
        self.state.write(Durability::Now, move |tables| transitions::commit(tables, &commit, usage)).await?;
        dir.into_iter().for_each(|dir| self.walks.forget(dir));
        Ok(())
    }

    /// Remove: a record and a rename. The rest is the janitor's.
    pub(crate) async fn remove(&self, key: String) -> Result<()> {
        let record = self.state.write(Durability::Later, move |tables| transitions::remove(tables, &key)).await?;
        if let Some(dir) = record.dir {
            self.walks.forget(dir);
            if let Err(error) = self.dirs.set_aside(dir) {
                tracing::warn!("the directory is left until the next start: {error}");
            }
        }
        self.janitor.wake();
        Ok(())
    }

    /// Stat.
    pub(crate) fn stat(&self, key: &str) -> Result<Record> {
        found(&self.state.read()?, key)
    }

    /// Update.
    pub(crate) async fn update(&self, name: String, labels: Labels, mask: Vec<String>) -> Result<Record> {
        self.state.write(Durability::Now, move |tables| transitions::update(tables, &name, labels, &mask)).await
    }

    /// List: what matches, in the order of the names, as of now.
    pub(crate) fn list(&self, filters: &[String]) -> Result<Vec<(String, Record)>> {
        let filters = Filters::parse(filters)?;
        let mut listed = Vec::new();
        self.state.read()?.scan(|name, record| {
            if filters.matches(&|path| field(name, &record, path)) {
                listed.push((name.to_owned(), record));
            }
            Ok(())
        })?;
        Ok(listed)
    }

    /// Usage, without the parents.
    pub(crate) async fn usage(&self, key: &str) -> Result<Usage> {
        let record = self.stat(key)?;
        match record.dir {
            Some(dir) if record.kind == Kind::Active => self.walks.usage(dir, self.dirs.fs(dir)).await,
            _ => Ok(record.usage),
        }
    }
}

fn found(read: &impl Read, key: &str) -> Result<Record> {
    read.get(key)?.ok_or_else(|| Error::not_found(format!("snapshot {key:?}")))
}

/// The layers with their directories, if all have one.
fn with_dirs(read: &impl Read, layers: &[Layer]) -> Result<Option<Vec<(Layer, u64)>>> {
    let with = |layer: &Layer| Ok(read.layer_dir(&layer.id)?.map(|dir| (layer.clone(), dir)));
    layers.iter().map(with).collect()
}

/// The fields that a filter can ask for.
fn field(name: &str, record: &Record, path: &[String]) -> Option<String> {
    match (path.first()?.as_str(), &path[1..]) {
        ("name", _) => Some(name.to_owned()),
        ("parent", _) => Some(record.parent.clone()),
        ("kind", _) => Some(kind_name(record.kind).to_owned()),
        ("labels", key) => record.labels.get(&key.join(".")).cloned(),
        _ => None,
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Active => "active",
        Kind::View => "view",
        Kind::Committed => "committed",
    }
}
