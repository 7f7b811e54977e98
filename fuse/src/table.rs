//! The device files: which node id stands for which layer, and who has it open.
//!
//! Node ids outlive a worker: the kernel knows devices by them. So the table is a journal on the run directory's file
//! system, written before the kernel hears of a change, and read again by the successor, which may be another build: its
//! first line is its version, and one that is not known is an error, so that the connection is begun anew. It need not
//! survive a reboot, for the connection does not either: no fsync. It gets a line for each open and each release, and is
//! written anew once it has become long.

use blobstore::fetch::Layer;
use blobstore::layer::LayerId;
use blobstore::refs::StackEntry;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Node id of the directory that holds the devices.
pub(crate) const ROOT: u64 = 1;

/// Version of the journal. A build that writes what this one would misread writes a higher one.
const VERSION: u32 = 1;

/// A journal that has grown by so many bytes is written anew: with some ten thousand opens and releases less.
const LONG: u64 = 1 << 20;

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
    Version(u32),
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
    journal: Journal,
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
        let (journal, records) = Journal::open(path)?;
        let mut state = State { journal, slots: HashMap::new(), names: HashMap::new(), next: ROOT + 1 };
        records.into_iter().for_each(|record| state.replay(record));
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
        state.journal.write(&Record::Device(device.clone()))?;
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
    fn record(&mut self, record: Record) -> io::Result<()> {
        self.journal.write(&record)?;
        self.replay(record);
        if self.journal.is_long() {
            self.begin_anew();
        }
        Ok(())
    }

    /// Puts a journal of what still counts in the place of the one that has grown long. Where that fails, that one goes on.
    fn begin_anew(&mut self) {
        let mut slots: Vec<&Slot> = self.slots.values().collect();
        slots.sort_by_key(|slot| slot.device.node);
        let of = |slot: &&Slot| {
            let opens = std::iter::repeat_n(slot.device.node, usize::try_from(slot.opens).unwrap_or(usize::MAX));
            std::iter::once(Record::Device(slot.device.clone())).chain(opens.map(Record::Opened))
        };
        match Journal::replace(&self.journal.path, slots.iter().flat_map(of)) {
            Ok(journal) => self.journal = journal,
            Err(error) => {
                tracing::warn!(path = %self.journal.path.display(), %error, "the journal of devices cannot be written anew");
                self.journal.begun = self.journal.length;
            }
        }
    }

    fn add(&mut self, device: Device) {
        self.next = self.next.max(device.node + 1);
        self.names.insert(device.entry.layer, device.node);
        self.slots.insert(device.node, Slot { device, opens: 0, layer: None });
    }

    fn replay(&mut self, record: Record) {
        match record {
            Record::Version(_) => {}
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

/// The file: whole lines only, one record each.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of the whole lines.
    length: u64,
    /// How many there were when it was opened or written anew.
    begun: u64,
}

impl Journal {
    /// Opens the file or begins it. A line without its end was being written when the predecessor died: the kernel has
    /// not heard of it, and it is cut off.
    fn open(path: &Path) -> io::Result<(Self, Vec<Record>)> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut old = Vec::new();
        file.read_to_end(&mut old)?;
        let whole = old.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let mut journal = Self { path: path.to_owned(), file, length: whole as u64, begun: whole as u64 };
        let lines = old[..whole].split_inclusive(|b| *b == b'\n');
        let records: Vec<Record> =
            lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(io::Error::other)?;
        match records.first() {
            None => journal.write(&Record::Version(VERSION))?,
            Some(Record::Version(VERSION)) => {}
            Some(other) => {
                return Err(io::Error::other(format!("it begins with {other:?}; version {VERSION} is known")));
            }
        }
        Ok((journal, records))
    }

    /// Writes another one beside it, and lets it take its place: a worker that dies meanwhile leaves one of the two.
    fn replace(path: &Path, records: impl Iterator<Item = Record>) -> io::Result<Self> {
        let new = path.with_extension("new");
        let _ = std::fs::remove_file(&new);
        let file = File::options().append(true).create_new(true).open(&new)?;
        let mut journal = Self { path: path.to_owned(), file, length: 0, begun: 0 };
        let written = std::iter::once(Record::Version(VERSION)).chain(records).try_for_each(|r| journal.write(&r));
        written.and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        journal.begun = journal.length;
        Ok(journal)
    }

    /// Whether it has become much longer than it was.
    fn is_long(&self) -> bool {
        self.length - self.begun >= LONG.max(self.begun)
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if let Err(e) = self.file.write_all(&line) {
            // Half a line must not stand before the next one.
            self.file.set_len(self.length)?;
            return Err(e);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(node: u64) -> Device {
        Device { node, entry: StackEntry::bare(LayerId::from_bytes([node as u8; 32])), length: 4096 }
    }

    fn add(table: &Table, node: u64) {
        table.lock().record(Record::Device(device(node))).unwrap();
    }

    #[test]
    fn a_successor_knows_what_its_predecessor_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let table = Table::open(&path).unwrap();
        add(&table, 2);
        add(&table, 3);
        table.opened(3).unwrap();
        let table = Table::open(&path).unwrap();
        assert_eq!(table.in_use(), [device(3).entry.layer]);
        table.released(3).unwrap();
        assert_eq!(Table::open(&path).unwrap().in_use(), []);
        assert_eq!(table.by_name(&device(2).entry.layer).map(|d| d.node), Some(2));
    }

    #[test]
    fn a_torn_line_is_cut_off_for_all_successors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        add(&Table::open(&path).unwrap(), 2);
        File::options().append(true).open(&path).unwrap().write_all(b"{\"opened\":").unwrap();
        let table = Table::open(&path).unwrap();
        assert!(table.in_use().is_empty());
        table.opened(2).unwrap();
        assert_eq!(Table::open(&path).unwrap().in_use(), [device(2).entry.layer]);
    }

    #[test]
    fn a_journal_that_has_become_long_is_written_anew_and_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices.journal");
        let table = Table::open(&path).unwrap();
        (2..5).for_each(|node| add(&table, node));
        (0..2).for_each(|_| table.opened(4).unwrap());
        for _ in 0..LONG / 30 {
            table.opened(3).unwrap();
            table.released(3).unwrap();
        }
        assert!(path.metadata().unwrap().len() < LONG, "{}", path.metadata().unwrap().len());
        table.released(4).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let table = Table::open(&path).unwrap();
        assert_eq!(table.in_use(), [device(4).entry.layer], "one handle is left");
        assert_eq!(table.devices().iter().map(|d| d.node).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(table.lock().next, 5);
    }

    #[test]
    fn a_journal_of_another_version_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        std::fs::write(&path, "{\"version\":2}\n").unwrap();
        let error = Table::open(&path).unwrap_err().to_string();
        assert!(error.contains("Version(2)"), "{error}");
    }
}
