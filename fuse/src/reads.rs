//! The kernel's reads of devices, as chunks of layers.
//!
//! It knows which chunks hold which bytes, and whom to ask for them; not what the bytes mean, nor who mounted what.

use crate::metrics::Meters;
use crate::table::Table;
use crate::{Error, Kind, head};
use blobstore::fetch::{Fetcher, Layer, OnOutage, OpenHead};
use blobstore::refs::StackEntry;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two tries to open a layer that readers wait for; each try has its own deadline.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers reads.
#[derive(Debug)]
pub(crate) struct Reads {
    fetcher: Fetcher,
    table: Arc<Table>,
    meters: Meters,
    on_outage: OnOutage,
}

impl Reads {
    pub(crate) fn new(fetcher: Fetcher, table: Arc<Table>, meters: Meters, on_outage: OnOutage) -> Self {
        Self { fetcher, table, meters, on_outage }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The bytes at `offset`, if no store is needed for them. Must be called within the runtime's context.
    pub(crate) fn read_now(&self, node: u64, offset: u64, size: u32) -> Option<io::Result<Vec<u8>>> {
        let layer = self.table.layer(node)?;
        let mut data = Vec::with_capacity(size as usize);
        for piece in pieces(&layer, offset, size) {
            let chunk = self.fetcher.cached(&layer, piece.chunk)?;
            data.extend_from_slice(&chunk[piece.within]);
        }
        self.fetcher.fetch_ahead(&layer, &self.noticed(&layer, offset, size));
        self.meters.device_read(data.len());
        Some(Ok(data))
    }

    /// The bytes at `offset`, whatever it takes, within the fetcher's deadline.
    pub(crate) async fn read(&self, node: u64, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let start = Instant::now();
        let eio = || io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error());
        let layer = self.layer(node).await.map_err(|error| {
            tracing::error!(node, %error, "cannot open the layer of a device that is being read");
            eio()
        })?;
        // All pieces are asked for at once, and with them what is to be fetched ahead of the next reads.
        let pieces: Vec<Piece> = pieces(&layer, offset, size).collect();
        let needed: Vec<u32> = pieces.iter().map(|piece| piece.chunk).collect();
        let chunks = self.fetcher.get_all(&layer, &needed, &self.noticed(&layer, offset, size)).await;
        // The fetcher has logged why.
        let chunks = chunks.map_err(|_| eio())?;
        let mut data = Vec::with_capacity(size as usize);
        for (piece, chunk) in pieces.into_iter().zip(&chunks) {
            data.extend_from_slice(&chunk[piece.within]);
        }
        self.meters.device_read(data.len());
        self.meters.read_waited(start.elapsed());
        Ok(data)
    }

    /// What to fetch ahead of the reads that this one lets expect.
    fn noticed(&self, layer: &Layer, offset: u64, size: u32) -> Vec<u32> {
        let end = layer.index.data_len().min(offset.saturating_add(u64::from(size)));
        self.fetcher.noticed(layer, offset..end.max(offset))
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
