//! Has the disk take what was written while more is being made.
//!
//! A layer is synced before it gets its name in a store. Were that left to the end, the processors would wait for the disk
//! then, as the disk did for them before. A thread syncs what there is every [`STEP`] bytes instead. What it is told of
//! a failure the system tells once only, so it is kept, and [`Writeback::finish`] gives it.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes between two syncs: each costs a commit of the file system's journal.
const STEP: u64 = 32 << 20;

/// The thread. Dropping it ends it after the sync under way.
#[derive(Debug)]
pub(super) struct Writeback {
    tell: SyncSender<()>,
    thread: JoinHandle<io::Result<()>>,
    written: u64,
}

impl Writeback {
    pub(super) fn start(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (tell, told) = sync_channel(1);
        let sync = move || told.into_iter().try_for_each(|()| file.sync_data());
        let thread = std::thread::Builder::new().name("layer-sync".to_owned()).spawn(sync)?;
        Ok(Self { tell, thread, written: 0 })
    }

    /// Counts what was written.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
        if self.written >= STEP {
            self.written = 0;
            // One that is already waiting for its turn will sync these bytes too.
            let _ = self.tell.try_send(());
        }
    }

    /// Ends the thread; what went wrong.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.tell);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that syncs ended")))
    }
}
