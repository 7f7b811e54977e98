//! The device files: which node id stands for which layer, and who has it open.
//!
//! Node ids outlive a worker: the kernel knows devices by them. So the table is a journal on the run directory's file
//! system, written before the kernel hears of a change, and read again by the successor. It need not survive a reboot,
//! for the connection does not either: no fsync.

use blobstore::fetch::Layer;
use blobstore::layer::LayerId;
use blobstore::refs::StackEntry;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Node id of the directory that holds the devices.
pub(crate) const ROOT: u64 = 1;

/// What is known of a device without looking into its layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) node: u64,
    pub(crate) entry: StackEntry,
    /// Length of the data space, bytes.
    pub(crate) length: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Record {
    Device(Device),
    Opened(u64),
    Released(u64),
}

#[derive(Debug)]
struct Slot {
    device: Device,
    /// Open handles in the kernel.
    opens: u64,
    /// The layer, when it has been opened in this process.
    layer: Option<Arc<Layer>>,
}

#[derive(Debug)]
struct State {
    journal: File,
    /// Bytes of whole lines in it.
    length: u64,
    slots: HashMap<u64, Slot>,
    names: HashMap<LayerId, u64>,
    next: u64,
}

/// The table. Its lock is never held across a wait.
#[derive(Debug)]
pub(crate) struct Table(Mutex<State>);

impl Table {
    /// Opens the journal at `path`, or begins one; takes up what a predecessor left there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let old = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        // What follows the last newline was being written when the predecessor died: the kernel has not heard of it, and what
        // is written next must not join it.
        let whole = old.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let journal = File::options().append(true).create(true).open(path)?;
        journal.set_len(whole as u64)?;
        let mut state =
            State { journal, length: whole as u64, slots: HashMap::new(), names: HashMap::new(), next: ROOT + 1 };
        for line in old[..whole].split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            state.replay(serde_json::from_slice(line).map_err(io::Error::other)?);
        }
        Ok(Self(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code below panics while it holds the lock with a half-made change.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The device of `layer`, made known when it is not yet.
    pub(crate) fn register(&self, entry: &StackEntry, layer: Arc<Layer>, length: u64) -> io::Result<Device> {
        let mut state = self.lock();
        if let Some(slot) = state.names.get(&entry.layer).copied().and_then(|n| state.slots.get_mut(&n)) {
            slot.layer = Some(layer);
            return Ok(slot.device.clone());
        }
        let device = Device { node: state.next, entry: entry.clone(), length };
        state.write(&Record::Device(device.clone()))?;
        state.add(device.clone());
        if let Some(slot) = state.slots.get_mut(&device.node) {
            slot.layer = Some(layer);
        }
        Ok(device)
    }

    pub(crate) fn by_name(&self, id: &LayerId) -> Option<Device> {
        let state = self.lock();
        Some(state.slots.get(state.names.get(id)?)?.device.clone())
    }

    pub(crate) fn by_node(&self, node: u64) -> Option<Device> {
        Some(self.lock().slots.get(&node)?.device.clone())
    }

    /// The layer behind a node, when this process has opened it.
    pub(crate) fn layer(&self, node: u64) -> Option<Arc<Layer>> {
        self.lock().slots.get(&node)?.layer.clone()
    }

    /// Gives a node its opened layer: a successor does so at the first read.
    pub(crate) fn set_layer(&self, node: u64, layer: Arc<Layer>) {
        if let Some(slot) = self.lock().slots.get_mut(&node) {
            slot.layer = Some(layer);
        }
    }

    /// Counts an open handle. To be called before the kernel gets its answer.
    pub(crate) fn opened(&self, node: u64) -> io::Result<()> {
        self.lock().record(Record::Opened(node))
    }

    /// Counts a handle less.
    pub(crate) fn released(&self, node: u64) -> io::Result<()> {
        self.lock().record(Record::Released(node))
    }

    /// Devices with open handles: what a mount, or an overlay on one, still stands on.
    pub(crate) fn in_use(&self) -> Vec<LayerId> {
        let state = self.lock();
        state.slots.values().filter(|s| s.opens > 0).map(|s| s.device.entry.layer).collect()
    }

    /// All devices, by node id.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let mut all: Vec<Device> = self.lock().slots.values().map(|s| s.device.clone()).collect();
        all.sort_by_key(|d| d.node);
        all
    }
}

impl State {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if let Err(e) = self.journal.write_all(&line) {
            // A full disk takes half a line. It must go, or the next line is lost with it, and with both the successor.
            self.journal.set_len(self.length)?;
            return Err(e);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    fn record(&mut self, record: Record) -> io::Result<()> {
        self.write(&record)?;
        self.replay(record);
        Ok(())
    }

    fn add(&mut self, device: Device) {
        self.next = self.next.max(device.node + 1);
        self.names.insert(device.entry.layer, device.node);
        self.slots.insert(device.node, Slot { device, opens: 0, layer: None });
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Device(device) => self.add(device),
            Record::Opened(node) => {
                if let Some(slot) = self.slots.get_mut(&node) {
                    slot.opens += 1;
                }
            }
            Record::Released(node) => {
                if let Some(slot) = self.slots.get_mut(&node) {
                    slot.opens = slot.opens.saturating_sub(1);
                    if slot.opens == 0 {
                        // Nobody reads it: its index need not stay mapped. Opened again when needed.
                        slot.layer = None;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices.journal");
        let entry = StackEntry {
            layer: "ab".repeat(32).parse().unwrap(),
            head: 1,
            size: 2,
            format: 1,
            generation: 1,
            root_opaque: false,
        };
        let line = serde_json::to_string(&Record::Device(Device { node: 2, entry, length: 4096 })).unwrap();
        std::fs::write(&path, format!("{line}\n{{\"opened\":2}}\n{{\"rele")).unwrap();
        (dir, path)
    }

    #[test]
    fn a_torn_line_is_forgotten_and_spoils_neither_the_next_one_nor_the_successors_start() {
        let (_dir, path) = journal();
        for expected in 1..4 {
            let table = Table::open(&path).unwrap();
            assert_eq!(table.lock().slots[&2].opens, expected);
            table.opened(2).unwrap();
            File::options().append(true).open(&path).unwrap().write_all(b"{\"op").unwrap();
        }
    }
}
