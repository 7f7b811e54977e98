//! A disk for tests: in memory, fails when told, and loses power after so many changes. What was not synced then reaches
//! it wholly, partly or not at all ([`Loss`]).

use super::disk::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

const PAGE: usize = 4096;

/// Which of the changes that were not synced are on the disk afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// None.
    All,
    /// All of them.
    Nothing,
    /// The first few of each file and of the directory; the last of these torn.
    Tail,
    /// Any, in any order: of what is written, any pages; of names, any first few.
    Any,
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Default, Clone)]
struct Inode {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    /// The names as synced, and after each change since.
    history: Vec<BTreeMap<String, usize>>,
    /// Changes until the power goes.
    left: Option<u64>,
    changes: u64,
    fail_reads: bool,
    hold_reads: bool,
    /// Reads so far.
    reads: u64,
    fail_writes: bool,
    /// Reads of the files whose names end so fail.
    unreadable: Option<String>,
    fail_footers: bool,
    /// Most bytes that all segments have had together.
    peak: u64,
    capacity: u64,
}

/// The disk; a clone is the same one.
#[derive(Debug, Clone)]
pub(super) struct SimDisk(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug)]
struct SimFile(SimDisk, usize);

impl SimDisk {
    pub(super) fn new(capacity: u64) -> Self {
        let state = State { capacity, history: vec![BTreeMap::new()], ..State::default() };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    /// Lets the power go after so many further changes.
    pub(super) fn cut_after(&self, changes: u64) {
        self.state().left = Some(changes);
    }

    pub(super) fn has_power(&self) -> bool {
        self.state().left != Some(0)
    }

    /// Changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.state().changes
    }

    pub(super) fn fail(&self, reads: bool, writes: bool) {
        (self.state().fail_reads, self.state().fail_writes) = (reads, writes);
    }

    /// Lets reads of the files fail whose names end so.
    pub(super) fn fail_reads_of(&self, end: Option<&str>) {
        self.state().unreadable = end.map(str::to_owned);
    }

    /// Lets the writing and the cutting off of footers fail.
    pub(super) fn fail_footers(&self, fail: bool) {
        self.state().fail_footers = fail;
    }

    /// Most bytes that all segments have had together.
    pub(super) fn peak(&self) -> u64 {
        self.state().peak
    }

    /// Lets reads wait until they are let go.
    pub(super) fn hold_reads(&self, hold: bool) {
        self.state().hold_reads = hold;
        self.0.1.notify_all();
    }

    /// Reads that were begun so far.
    pub(super) fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Bytes of all files that have a name.
    pub(super) fn used(&self) -> u64 {
        self.state().used()
    }

    /// Name and size of all files.
    pub(super) fn files(&self) -> Vec<(String, u64)> {
        let state = self.state();
        state.names.iter().map(|(name, inode)| (name.clone(), state.inodes[*inode].now.len() as u64)).collect()
    }

    /// Inverts a byte of a file.
    pub(super) fn damage(&self, name: &str, at: usize) {
        let mut state = self.state();
        let inode = state.names[name];
        state.inodes[inode].now[at] ^= 0xff;
    }

    /// The disk after the power came back. `seed` says which changes are lost.
    pub(super) fn after(&self, loss: Loss, seed: u64) -> Self {
        let state = self.state();
        let mut random = Random(seed);
        let inodes = state.inodes.iter().map(|inode| inode.after(loss, &mut random)).collect();
        let names = match loss {
            Loss::All => 0,
            Loss::Nothing => state.history.len() - 1,
            Loss::Tail | Loss::Any => random.below(state.history.len()),
        };
        let names = state.history[names].clone();
        let history = vec![names.clone()];
        let state = State { inodes, names, history, capacity: state.capacity, ..State::default() };
        Self(Arc::new((Mutex::new(state), Condvar::new())))
    }
}

impl Inode {
    fn after(&self, loss: Loss, random: &mut Random) -> Self {
        let mut content = self.synced.clone();
        let kept = match loss {
            Loss::All => 0,
            Loss::Tail => random.below(self.unsynced.len() + 1),
            Loss::Nothing | Loss::Any => self.unsynced.len(),
        };
        for (at, change) in self.unsynced[..kept].iter().enumerate() {
            match change {
                Change::Write(offset, bytes) if loss == Loss::Any => pages(&mut content, *offset, bytes, random),
                Change::Write(offset, bytes) if loss == Loss::Tail && at + 1 == kept => {
                    apply(&mut content, *offset, &bytes[..random.below(bytes.len() + 1)]);
                }
                Change::Write(offset, bytes) => apply(&mut content, *offset, bytes),
                Change::Length(_) if loss == Loss::Any && random.below(2) == 0 => {}
                Change::Length(length) => content.resize(*length as usize, 0),
            }
        }
        Self { now: content.clone(), synced: content, unsynced: Vec::new() }
    }
}

/// Writes some pages of a piece.
fn pages(content: &mut Vec<u8>, offset: u64, bytes: &[u8], random: &mut Random) {
    let mut at = 0;
    while at < bytes.len() {
        let end = ((offset as usize + at) / PAGE + 1) * PAGE - offset as usize;
        let end = end.min(bytes.len());
        if random.below(2) == 0 {
            apply(content, offset + at as u64, &bytes[at..end]);
        }
        at = end;
    }
}

fn apply(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let offset = offset as usize;
    content.resize(content.len().max(offset + bytes.len()), 0);
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Numbers that look random and depend on the seed only (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].now.len() as u64).sum()
    }

    fn of_segments(&self) -> u64 {
        let segments = self.names.iter().filter(|(name, _)| !name.ends_with(".pin"));
        segments.map(|(_, inode)| self.inodes[*inode].now.len() as u64).sum()
    }

    /// Counts a change; an error where there is no power for it.
    fn change(&mut self) -> io::Result<()> {
        if self.fail_writes {
            return Err(io::Error::from_raw_os_error(5));
        }
        match &mut self.left {
            Some(0) => return Err(io::Error::from_raw_os_error(5)),
            Some(left) => *left -= 1,
            None => {}
        }
        self.changes += 1;
        Ok(())
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn renamed(&mut self) {
        self.history.push(self.names.clone());
    }

    fn has_room(&self, more: u64) -> io::Result<()> {
        match self.used() + more <= self.capacity {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(28)),
        }
    }
}

impl Disk for SimDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.state().inode(name)?;
        Ok(Box::new(SimFile(self.clone(), inode)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.change()?;
        assert!(!state.names.contains_key(name), "{name} is there");
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(name.to_owned(), inode);
        state.renamed();
        Ok(Box::new(SimFile(self.clone(), inode)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        let inode = state.inode(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), inode);
        state.renamed();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.inode(name)?;
        state.change()?;
        state.names.remove(name);
        state.renamed();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        state.history = vec![state.names.clone()];
        Ok(())
    }

    fn free(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.saturating_sub(state.used()))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state().capacity)
    }

    fn path(&self) -> &Path {
        Path::new("/simulated")
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().inodes[self.1].now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.state();
        state.reads += 1;
        let state = self.0.0.1.wait_while(state, |state| state.hold_reads).unwrap();
        let unreadable = |name: &String| state.unreadable.as_ref().is_some_and(|end| name.ends_with(end));
        if state.fail_reads || state.names.iter().any(|(name, inode)| *inode == self.1 && unreadable(name)) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let end = offset as usize + bytes.len();
        let found = state.inodes[self.1].now.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.0.state();
        state.has_room(bytes.len() as u64)?;
        if state.fail_footers && bytes.ends_with(b"LAMINACF") {
            return Err(io::Error::from_raw_os_error(5));
        }
        state.change()?;
        let inode = &mut state.inodes[self.1];
        apply(&mut inode.now, offset, bytes);
        inode.unsynced.push(Change::Write(offset, bytes.to_vec()));
        state.peak = state.peak.max(state.of_segments());
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.state();
        if state.fail_footers {
            return Err(io::Error::from_raw_os_error(5));
        }
        state.change()?;
        let inode = &mut state.inodes[self.1];
        inode.now.resize(length as usize, 0);
        inode.unsynced.push(Change::Length(length));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.state();
        state.change()?;
        let inode = &mut state.inodes[self.1];
        inode.synced = inode.now.clone();
        inode.unsynced.clear();
        Ok(())
    }
}
