//! Where profiles lie: `node/profiles/<layer id>/<node>` in the store, and copies in the cache directory.
//!
//! ```text
//! <dir>/<layer id>/<node>   this node's profile, and copies of others'
//! <dir>/<layer id>/.asked   made when the store was last asked for the others'
//! ```
//!
//! A node asks the store when it first needs a layer's profiles and then once a day; in between its starts need no request. It
//! reads its own and at most [`OTHERS`] others', those that follow its own name in a ring, so that nodes do not all follow the
//! same few. It writes its own where fewer than [`WRITERS`] have: more say nothing new. A store that cannot be written or
//! listed is no trouble: profiles stay on the node then. Nothing here is synced: what a crash loses is recorded again.

use super::format::MAX_LEN;
use super::{Profile, Run};
use crate::layer::{Index, LayerId};
use crate::store::{Store, StoreError};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Profiles of other nodes that a node follows.
const OTHERS: usize = 8;
/// Nodes that write a profile of a layer.
const WRITERS: usize = 16;
/// How long copies are good for.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long the directory of a layer that nobody asked for stays.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
const ASKED: &str = ".asked";
/// Longest name of a node.
const MAX_NAME: usize = 64;

/// Who else may see this node's profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Share {
    /// All nodes: they are written to the store, and read from it.
    #[default]
    Store,
    /// Nobody; those of others are not read either.
    Node,
}

/// A node's profiles.
#[derive(Debug)]
pub struct Keep {
    dir: PathBuf,
    store: Arc<dyn Store>,
    share: Share,
    name: String,
    /// Whether it was said already that the store does not take profiles.
    said: AtomicBool,
}

/// A node's name where none was given: the same after a restart, and another on every machine.
pub fn node_name() -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let host = rustix::system::uname();
    let hash = blake3::hash(&[b"lamina node", &machine[..], host.nodename().to_bytes()].concat());
    hash.to_hex()[..16].to_owned()
}

/// Whether a name can be a node's: the last part of a key, and a file's name.
fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

impl Keep {
    /// Profiles in `dir`, which is made when it is needed, and in the store. What has not been used for long is removed. An error
    /// where `name` is no node's name: up to 64 letters, digits, `-`, `_`, and `.` but not at the beginning.
    pub fn open(dir: &Path, store: Arc<dyn Store>, share: Share, name: &str) -> Result<Self, String> {
        if !is_name(name) {
            return Err(format!("\"{name}\" is no name of a node: up to 64 letters, digits and -_. are"));
        }
        remove_unused(dir);
        Ok(Self { dir: dir.to_owned(), store, share, name: name.to_owned(), said: AtomicBool::new(false) })
    }

    /// This node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The profiles of a layer, this node's first. What cannot be had or is wrong is left out. Asks the store once a day at most.
    pub async fn of(&self, index: &Arc<Index>) -> Vec<Profile> {
        if age(&self.layer_dir(&index.id()).join(ASKED)).is_none_or(|age| age > DAY) {
            return self.of_now(index).await.unwrap_or_default();
        }
        self.here(index).await
    }

    /// As [`Keep::of`], and asks the store in any case: for those who can wait for what other nodes have seen today.
    ///
    /// # Errors
    /// The store does not answer, and there is no profile here either.
    pub async fn of_now(&self, index: &Arc<Index>) -> Result<Vec<Profile>, StoreError> {
        let dir = self.layer_dir(&index.id());
        let asked = match self.share {
            Share::Store => self.take_copies(index, &dir).await.map(|()| self.asked(&dir)),
            Share::Node => Ok(()),
        };
        let here = self.here(index).await;
        let Err(error) = asked else { return Ok(here) };
        tracing::debug!(layer = %index.id(), %error, "the store's profiles cannot be had");
        if here.is_empty() { Err(error) } else { Ok(here) }
    }

    /// The profiles of a layer that this node has.
    async fn here(&self, index: &Arc<Index>) -> Vec<Profile> {
        let (dir, name, index) = (self.layer_dir(&index.id()), self.name.clone(), index.clone());
        let read = move || read_all(&dir, &name, &index);
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// Adds a run to this node's profile, here and, where it says anything new, in the store. Gives the profile.
    pub async fn add(&self, index: &Arc<Index>, run: Run) -> io::Result<Profile> {
        let (path, of) = (self.layer_dir(&index.id()).join(&self.name), index.clone());
        let added = tokio::task::spawn_blocking(move || add_run(&path, &of, run)).await;
        let Added { profile, news, bytes } = added.map_err(io::Error::other)??;
        if news && self.share == Share::Store {
            self.publish(&index.id(), bytes).await;
        }
        Ok(profile)
    }

    async fn publish(&self, layer: &LayerId, bytes: Vec<u8>) {
        let published = async {
            let names = names(&*self.store, layer).await?;
            if names.len() >= WRITERS && !names.contains(&self.name) {
                return Ok(());
            }
            self.store.put(&key(layer, &self.name), bytes.into()).await
        };
        if let Err(error) = published.await
            && !self.said.swap(true, Relaxed)
        {
            tracing::info!(%error, "the store does not take profiles: they stay on this node");
        }
    }

    /// Copies this node's profile, where it is not here, and some of the others'.
    async fn take_copies(&self, index: &Arc<Index>, dir: &Path) -> Result<(), StoreError> {
        let names = match names(&*self.store, &index.id()).await {
            Err(StoreError::Unsupported { .. }) => return Ok(()),
            other => other?,
        };
        let following = names.partition_point(|name| *name <= self.name);
        let others = names[following..].iter().chain(&names[..following]).filter(|name| **name != self.name);
        let own = names.iter().filter(|name| **name == self.name && !dir.join(name).exists());
        let mut copying = JoinSet::new();
        for name in own.chain(others.take(OTHERS)) {
            let (store, index, dir, name) = (self.store.clone(), index.clone(), dir.to_owned(), name.clone());
            copying.spawn(async move { copy(&*store, &index, &dir, &name).await });
        }
        while let Some(copied) = copying.join_next().await {
            if let Ok(Err(error)) = copied {
                tracing::info!(layer = %index.id(), error, "a profile is not used");
            }
        }
        Ok(())
    }

    fn asked(&self, dir: &Path) {
        // Where the disk does not take it, the store is asked again.
        let _ = write(&dir.join(ASKED), b"");
    }

    fn layer_dir(&self, layer: &LayerId) -> PathBuf {
        self.dir.join(layer.to_string())
    }
}

fn key(layer: &LayerId, name: &str) -> String {
    format!("node/profiles/{layer}/{name}")
}

/// The profiles of a layer that the store has, at most as many as nodes write. What is wrong is left out.
pub async fn published(store: &Arc<dyn Store>, index: &Index) -> Result<Vec<Profile>, StoreError> {
    let mut profiles = Vec::new();
    for name in names(&**store, &index.id()).await?.iter().take(WRITERS) {
        match fetch(&**store, index, name).await {
            Ok((_, profile)) => profiles.push(profile),
            Err(error) => tracing::warn!(layer = %index.id(), error, "a profile is not used"),
        }
    }
    Ok(profiles)
}

/// Nodes whose profiles of a layer the store has, in order.
async fn names(store: &dyn Store, layer: &LayerId) -> Result<Vec<String>, StoreError> {
    let prefix = key(layer, "");
    let keys = store.list(&prefix).await?;
    let names = keys.iter().filter_map(|key| key.strip_prefix(&prefix)).filter(|name| is_name(name));
    Ok(names.map(str::to_owned).collect())
}

/// Copies a profile of the store that is one.
async fn copy(store: &dyn Store, index: &Arc<Index>, dir: &Path, name: &str) -> Result<(), String> {
    let (bytes, _) = fetch(store, index, name).await?;
    write(&dir.join(name), &bytes).map_err(|e| format!("{}: {e}", dir.display()))
}

/// A profile of the store and its bytes. Its length is asked for first: the largest is some hundred KiB.
async fn fetch(store: &dyn Store, index: &Index, name: &str) -> Result<(Bytes, Profile), String> {
    let key = key(&index.id(), name);
    let size = store.stat(&key).await.map_err(|e| e.to_string())?.size;
    if size > MAX_LEN as u64 {
        return Err(format!("{key}: {size} bytes"));
    }
    let bytes = store.get_range(&key, 0..size).await.map_err(|e| e.to_string())?;
    let profile = Profile::decode(&bytes, index).map_err(|e| format!("{key}: {e}"))?;
    Ok((bytes, profile))
}

/// The profiles in a layer's directory, the one called `first` at the beginning.
fn read_all(dir: &Path, first: &str, index: &Index) -> Vec<Profile> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_name(name));
    names.sort_by_key(|name| (name != first, name.clone()));
    names.iter().take(1 + OTHERS).filter_map(|name| read_one(&dir.join(name), index)).collect()
}

/// A profile with another run in it, as it was written.
struct Added {
    profile: Profile,
    bytes: Vec<u8>,
    /// Whether it says anything that it did not say before.
    news: bool,
}

/// Adds a run to the profile in a file, or begins one.
fn add_run(path: &Path, index: &Index, run: Run) -> io::Result<Added> {
    let (news, profile) = match read_one(path, index) {
        Some(mut profile) => {
            let news = profile.lacks(&run) * 16 > run.len();
            profile.add(&run);
            (news || profile.runs.is_power_of_two(), profile)
        }
        None => (true, Profile::new(index.id(), run)),
    };
    let bytes = profile.encode();
    write(path, &bytes)?;
    Ok(Added { profile, bytes, news })
}

fn read_one(path: &Path, index: &Index) -> Option<Profile> {
    Profile::decode(&std::fs::read(path).ok()?, index).ok()
}

/// Writes a file so that readers see it whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

fn age(path: &Path) -> Option<Duration> {
    let modified = path.metadata().ok()?.modified().ok()?;
    SystemTime::now().duration_since(modified).ok()
}

/// Removes the directories of layers that were not used for long.
fn remove_unused(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if age(&entry.path()).is_some_and(|age| age > UNUSED) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
