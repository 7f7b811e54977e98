//! Layers on this node: their heads, their devices, their mounts, their reads.
//!
//! A layer is attached to a directory by giving the kernel two files: its metadata, which lies in the cache and was
//! checked, and its device. One superblock serves a layer; further targets are bind mounts of the first. What is mounted
//! where is read from mountinfo and remembered nowhere.

use crate::config::Config;
use crate::mount::info::{self, MountLine};
use crate::mount::mounter::{MountError, Mounter};
use crate::mount::request::{ErofsForm, Request};
use crate::table::Table;
use crate::turns::Turns;
use crate::{Error, metrics::Meters};
use blobstore::fetch::{Fetcher, Layer, OpenHead};
use blobstore::layer::{Index, LayerId};
use blobstore::refs::StackEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything that reads need, and everything that mounts need.
#[derive(Debug)]
pub(crate) struct Layers {
    config: Config,
    fetcher: Fetcher,
    table: Table,
    mounter: Mounter,
    form: ErofsForm,
    meters: Meters,
    /// One at a time attaches a given layer; others wait for it and find it there.
    attaching: Turns<LayerId>,
    /// One at a time mounts or unmounts at a given place.
    targets: Turns<PathBuf>,
}

impl Layers {
    pub(crate) fn new(
        config: Config,
        fetcher: Fetcher,
        table: Table,
        mounter: Mounter,
        form: ErofsForm,
        meters: Meters,
    ) -> Self {
        Self { config, fetcher, table, mounter, form, meters, attaching: Turns::default(), targets: Turns::default() }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn mounter(&self) -> &Mounter {
        &self.mounter
    }

    pub(crate) fn form(&self) -> ErofsForm {
        self.form
    }

    /// Mounts the layer at `target`, a directory. Already so: nothing is done.
    pub(crate) async fn attach(&self, entry: &StackEntry, target: &Path) -> Result<(), Error> {
        let _turn = self.attaching.take(entry.layer).await;
        self.attach_alone(entry, target).await
    }

    /// The turns of those who stack and unstack at a place.
    pub(crate) fn targets(&self) -> &Turns<PathBuf> {
        &self.targets
    }

    async fn attach_alone(&self, entry: &StackEntry, target: &Path) -> Result<(), Error> {
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
        let device = self.table.register(entry, Arc::new(head.layer), length).map_err(Error::system)?;
        let device = self.config.devices().join(device.entry.layer.to_string());
        let request = Request::Erofs { form: self.form, metadata: head.path, device, target: target.to_owned() };
        self.mounter.ask(&request).await.map_err(|e| Error::mount(entry.layer, e))?;
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

    /// The head of a layer, from the cache or the store; what comes from the store has been checked before.
    pub(crate) async fn open(&self, entry: &StackEntry) -> Result<OpenHead, Error> {
        self.fetcher
            .open_head(entry, prepare)
            .await
            .map_err(|source| Error::Head { layer: entry.layer, source: Box::new(source) })
    }

    /// The bytes at `offset`, if no store is needed for them.
    pub(crate) fn read_now(&self, node: u64, offset: u64, size: u32) -> Option<io::Result<Vec<u8>>> {
        let layer = self.table.layer(node)?;
        let mut data = Vec::with_capacity(size as usize);
        for piece in pieces(&layer, offset, size) {
            let chunk = self.fetcher.cached(&layer, piece.chunk)?;
            data.extend_from_slice(&chunk[piece.within]);
        }
        self.meters.device_read(data.len());
        Some(Ok(data))
    }

    /// The bytes at `offset`, whatever it takes, within the fetcher's deadline.
    pub(crate) async fn read(&self, node: u64, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let eio = || io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error());
        let layer = self.layer(node).await.map_err(|error| {
            tracing::error!(node, %error, "cannot open the layer of a device that is being read");
            eio()
        })?;
        // All pieces are asked for at once; each is fetched once, whoever else waits for it.
        let waits: Vec<_> = pieces(&layer, offset, size)
            .map(|piece| {
                let (fetcher, layer) = (self.fetcher.clone(), Arc::clone(&layer));
                let chunk = piece.chunk;
                (piece.within, tokio::spawn(async move { fetcher.get(&layer, chunk).await }))
            })
            .collect();
        let mut data = Vec::with_capacity(size as usize);
        for (within, wait) in waits {
            // The fetcher has logged why.
            let chunk = wait.await.map_err(|_| eio())?.map_err(|_| eio())?;
            data.extend_from_slice(&chunk[within]);
        }
        self.meters.device_read(data.len());
        Ok(data)
    }

    /// The layer behind a node: known, or opened now, as a successor must.
    async fn layer(&self, node: u64) -> Result<Arc<Layer>, Error> {
        if let Some(layer) = self.table.layer(node) {
            return Ok(layer);
        }
        let device = self.table.by_node(node).ok_or_else(|| Error::Invalid(format!("no device has node {node}")))?;
        let head = self.open(&device.entry).await?;
        let layer = Arc::new(head.layer);
        self.table.set_layer(node, Arc::clone(&layer));
        Ok(layer)
    }
}

/// The kernel is never given metadata that the checker has not accepted; then it is told of the device.
fn prepare(metadata: &mut [u8], index: &Index) -> Result<(), String> {
    let expect = erofs::Expect { image_blocks: index.image_blocks(), first_data_block: index.first_data_block() };
    erofs::check(metadata, &expect).map_err(|e| e.to_string())?;
    erofs::attach_device(metadata).map_err(|e| e.to_string())
}

/// A part of a read: which chunk, and which bytes of it.
struct Piece {
    chunk: u32,
    within: std::ops::Range<usize>,
}

/// The chunks that a read touches, in order; what lies past the end of the data is left out.
fn pieces(layer: &Layer, offset: u64, size: u32) -> impl Iterator<Item = Piece> {
    let end = layer.index.data_len().min(offset.saturating_add(u64::from(size)));
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let found = layer.index.locate(at)?;
        let stop = end.min(found.data_start + u64::from(found.entry.data_len));
        let within = usize::try_from(at - found.data_start).ok()?..usize::try_from(stop - found.data_start).ok()?;
        at = stop;
        Some(Piece { chunk: found.chunk, within })
    })
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
