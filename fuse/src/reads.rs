//! The kernel's reads of devices, as chunks of layers.
//!
//! It knows which chunks hold which bytes, and whom to ask for them; not what the bytes mean, nor who mounted what.

use crate::meters::Meters;
use crate::profile::Profiles;
use crate::table::Table;
use crate::{Error, Kind, head};
use blobstore::fetch::{self, Failures, Fetcher, Layer, OnOutage, OpenHead};
use blobstore::meter::Source;
use blobstore::refs::StackEntry;
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two tries to open a layer that readers wait for; each try has its own deadline.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers reads.
#[derive(Debug)]
pub(crate) struct Reads {
    fetcher: Fetcher,
    table: Arc<Table>,
    profiles: Arc<Profiles>,
    meters: Meters,
    on_outage: OnOutage,
    deadline: Duration,
    /// Devices whose layers could not be opened a moment ago.
    unopened: Failures<u64, ()>,
}

impl Reads {
    pub(crate) fn new(
        fetcher: Fetcher,
        table: Arc<Table>,
        profiles: Arc<Profiles>,
        meters: Meters,
        options: &fetch::Options,
    ) -> Self {
        let (on_outage, deadline) = (options.on_outage, options.deadline);
        Self { fetcher, table, profiles, meters, on_outage, deadline, unopened: Failures::default() }
    }

    /// The kernel has closed a device: one of so many handles.
    pub(crate) fn released(&self, node: u64) -> io::Result<()> {
        let released = self.table.released(node);
        if self.table.layer(node).is_none()
            && let Some(device) = self.table.by_node(node)
        {
            self.profiles.gone(&device.entry.layer);
        }
        released
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The bytes at `offset`, if no store is needed for them. Must be called within the runtime's context.
    pub(crate) fn read_now(&self, node: u64, offset: u64, size: u32) -> Option<io::Result<Bytes>> {
        let (layer, start) = (self.table.layer(node)?, Instant::now());
        let (mut parts, mut farthest) = (Vec::new(), Source::Memory);
        for piece in pieces(&layer, offset, size) {
            let (chunk, source) = self.fetcher.cached_from(&layer, piece.chunk)?;
            parts.push(chunk.slice(piece.within));
            farthest = farthest.max(source);
        }
        let data = joined(parts);
        self.fetcher.was_read(&layer, bytes(&layer, offset, size), Some(farthest), start);
        self.fetcher.fetch_ahead(&layer, &self.noticed(&layer, offset, size));
        self.meters.device_read(data.len());
        Some(Ok(data))
    }

    /// The bytes at `offset`, whatever it takes, within the fetcher's deadline.
    pub(crate) async fn read(&self, node: u64, offset: u64, size: u32) -> io::Result<Bytes> {
        let start = Instant::now();
        let eio = || io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error());
        // The deadline is one for both: for a successor's first read opens the layer.
        let since = match self.table.layer(node) {
            Some(_) => start.into(),
            None => self.unopened.since(&node, self.deadline).map_err(|()| eio())?,
        };
        let layer = self.layer(node).await.map_err(|error| {
            tracing::error!(node, %error, "cannot open the layer of a device that is being read");
            self.unopened.note(node, since, ());
            eio()
        })?;
        // All pieces are asked for at once, and with them what is to be fetched ahead of the next reads.
        let pieces: Vec<Piece> = pieces(&layer, offset, size).collect();
        let needed: Vec<u32> = pieces.iter().map(|piece| piece.chunk).collect();
        let chunks = self.fetcher.get_all_since(&layer, &needed, &self.noticed(&layer, offset, size), since).await;
        let source = chunks.as_ref().ok().map(|(_, source)| *source);
        self.fetcher.was_read(&layer, bytes(&layer, offset, size), source, start);
        // The fetcher has logged why.
        let (chunks, _) = chunks.map_err(|_| eio())?;
        let data = joined(pieces.into_iter().zip(chunks).map(|(piece, chunk)| chunk.slice(piece.within)).collect());
        self.meters.device_read(data.len());
        self.meters.read_waited(start.elapsed());
        Ok(data)
    }

    /// What to fetch ahead of the reads that this one lets expect.
    fn noticed(&self, layer: &Layer, offset: u64, size: u32) -> Vec<u32> {
        self.fetcher.noticed(layer, bytes(layer, offset, size))
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

    /// Opens a layer; again and again while the store is out of reach, where readers are to wait for that.
    async fn open(&self, entry: &StackEntry) -> Result<OpenHead, Error> {
        loop {
            match head::open(&self.fetcher, entry).await {
                Err(error) if self.on_outage == OnOutage::Wait && error.kind() == Kind::Unavailable => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }
}

/// Those bytes of a read that the layer has.
fn bytes(layer: &Layer, offset: u64, size: u32) -> Range<u64> {
    let end = layer.index.data_len().min(offset.saturating_add(u64::from(size)));
    offset..end.max(offset)
}

/// The parts of a read as one; nothing is copied where there is only one, as for most.
fn joined(parts: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(parts) {
        Ok([only]) => only,
        Err(parts) => parts.concat().into(),
    }
}

/// A part of a read: which chunk, and which bytes of it.
struct Piece {
    chunk: u32,
    within: Range<usize>,
}

/// The chunks that a read touches, in order; what lies past the end of the data is left out.
fn pieces(layer: &Layer, offset: u64, size: u32) -> impl Iterator<Item = Piece> {
    let Range { start: mut at, end } = bytes(layer, offset, size);
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
