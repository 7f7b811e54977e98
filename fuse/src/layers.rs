//! Layers on this node: their devices and their mounts.
//!
//! A layer is attached to a directory by giving the kernel two files: its metadata, which lies in the cache and was
//! checked, and its device. One superblock serves a layer; further targets are bind mounts of the first. What is mounted
//! where is read from mountinfo and remembered nowhere.

use crate::config::Config;
use crate::mount::info::{self, MountLine};
use crate::mount::mounter::{MountError, Mounter};
use crate::mount::request::{ErofsForm, Request};
use crate::probe::Probed;
use crate::profile::Profiles;
use crate::table::Table;
use crate::turns::Turns;
use crate::{Error, head};
use blobstore::fetch::{Fetcher, OpenHead};
use blobstore::layer::LayerId;
use blobstore::refs::StackEntry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinSet;

/// Attaches layers and takes them off again.
#[derive(Debug)]
pub(crate) struct Layers {
    config: Config,
    fetcher: Fetcher,
    profiles: Arc<Profiles>,
    table: Arc<Table>,
    mounter: Mounter,
    form: ErofsForm,
    overlay_options: Vec<String>,
    /// One at a time attaches a given layer; others wait for it and find it there.
    attaching: Turns<LayerId>,
    /// One at a time mounts or unmounts at a given place.
    targets: Turns<PathBuf>,
}

impl Layers {
    pub(crate) fn new(
        config: Config,
        fetcher: Fetcher,
        profiles: Arc<Profiles>,
        table: Arc<Table>,
        mounter: Mounter,
        probed: &Probed,
    ) -> Self {
        Self {
            config,
            fetcher,
            profiles,
            table,
            mounter,
            form: probed.form,
            overlay_options: probed.overlay_options.clone(),
            attaching: Turns::default(),
            targets: Turns::default(),
        }
    }

    pub(crate) fn mounter(&self) -> &Mounter {
        &self.mounter
    }

    /// The mount options of every overlay here.
    pub(crate) fn overlay_options(&self) -> &[String] {
        &self.overlay_options
    }

    pub(crate) fn form(&self) -> ErofsForm {
        self.form
    }

    /// Mounts the layer at `target`, a directory, for something that starts: what is mounted for the same `start` is fetched ahead
    /// as one. Already so: nothing is done.
    pub(crate) async fn attach(&self, entry: &StackEntry, target: &Path, start: &str) -> Result<(), Error> {
        let _turn = self.attaching.take(entry.layer).await;
        self.attach_alone(entry, target, start).await
    }

    /// The turns of those who stack and unstack at a place.
    pub(crate) fn targets(&self) -> &Turns<PathBuf> {
        &self.targets
    }

    async fn attach_alone(&self, entry: &StackEntry, target: &Path, start: &str) -> Result<(), Error> {
        if !target.is_absolute() {
            return Err(Error::Invalid(format!("target {} is not an absolute path", target.display())));
        }
        let mounts = info::mounts().map_err(Error::system)?;
        if let Some(there) = info::at(&mounts, target) {
            return match self.layer_of(there) {
                Some(id) if id == entry.layer => Ok(()),
                _ => Err(Error::Invalid(format!("{} is a mount point of something else", target.display()))),
            };
        }
        for other in mounts.iter().filter(|m| self.layer_of(m) == Some(entry.layer)) {
            let bind = Request::Bind { source: other.target.clone(), mount: other.id, target: target.to_owned() };
            match self.mounter.ask(&bind).await {
                // Something else is seen at its place: try the next, or make a mount of our own.
                Err(e) if e.is(rustix::io::Errno::STALE) => {}
                done => return done.map_err(|e| Error::mount(entry.layer, e)),
            }
        }
        let head = self.open(entry).await?;
        let length = head.layer.index.data_len();
        let layer = Arc::new(head.layer);
        let device = self.table.register(entry, Arc::clone(&layer), length).map_err(Error::system)?;
        self.profiles.mounting(&layer, start);
        let device = self.config.devices().join(device.entry.layer.to_string());
        let request = Request::Erofs { form: self.form, metadata: head.path, device, target: target.to_owned() };
        let mounted = self.mounter.ask(&request).await.inspect_err(|_| self.profiles.gone(&entry.layer));
        mounted.map_err(|e| Error::mount(entry.layer, e))?;
        tracing::info!(layer = %entry.layer, target = %target.display(), "mounted");
        Ok(())
    }

    /// Which of our layers a mount shows, all of it: a part that somebody has bound elsewhere is not ours.
    pub(crate) fn layer_of(&self, mount: &MountLine) -> Option<LayerId> {
        if mount.root != Path::new("/") {
            return None;
        }
        info::layer_metadata(mount, &self.config.cache_dir)?.file_name()?.to_str()?.parse().ok()
    }

    /// Unmounts targets of [`Self::attach`]; what is still in use under an overlay lives on there.
    pub(crate) async fn detach(&self, targets: &[PathBuf]) -> Result<(), Error> {
        for target in targets {
            let mounts = info::mounts().map_err(Error::system)?;
            match info::at(&mounts, target).map(|m| self.layer_of(m)) {
                Some(Some(layer)) => {
                    let request = Request::Unmount { target: target.clone(), detach: true };
                    self.mounter.ask(&request).await.map_err(|e| Error::mount(layer, e))?;
                }
                Some(None) => return Err(Error::Invalid(format!("{} is no layer's mount", target.display()))),
                None => {}
            }
        }
        Ok(())
    }

    /// Fetches and checks the heads of layers that are about to be attached, all at once.
    pub(crate) async fn open_all(&self, entries: &[StackEntry]) -> Result<(), Error> {
        let mut opening = JoinSet::new();
        for entry in entries {
            let (fetcher, entry) = (self.fetcher.clone(), entry.clone());
            opening.spawn(async move { head::open(&fetcher, &entry).await.map(drop) });
        }
        while let Some(done) = opening.join_next().await {
            done.map_err(|e| Error::system(e.into()))??;
        }
        Ok(())
    }

    /// Removes the head of a layer, unless it is in use; nobody attaches it meanwhile. Gives whether there was one.
    pub(crate) async fn drop_head(
        &self,
        layer: LayerId,
        is_in_use: impl Fn() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let _turn = self.attaching.take(layer).await;
        let heads = self.fetcher.heads();
        if is_in_use()? || !heads.path(&layer).exists() {
            return Ok(false);
        }
        heads.remove(&layer).map_err(Error::cache)?;
        Ok(true)
    }

    /// Fetches and checks the head of a layer.
    pub(crate) async fn open(&self, entry: &StackEntry) -> Result<OpenHead, Error> {
        head::open(&self.fetcher, entry).await
    }
}

impl Error {
    pub(crate) fn unmount(target: &Path, source: MountError) -> Self {
        let target = target.to_owned();
        match source.is(rustix::io::Errno::BUSY) {
            true => Self::InUse { target },
            false => Self::Unmount { target, source: Box::new(source) },
        }
    }

    fn mount(layer: LayerId, source: MountError) -> Self {
        Self::Mount { what: format!("layer {layer}"), source: Box::new(source) }
    }
}
