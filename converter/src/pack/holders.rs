//! Where the bytes of contents are: those that passed once only in the spool, a nameless file; the others still in the input.

use super::files::DirectoryFiles;
use super::item::{Holder, Item};
use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// All that can hold bytes of a layer's contents.
#[derive(Debug)]
pub(super) struct Holders {
    spool: File,
    pub(super) input: Input,
}

/// Where the input can be read again.
#[derive(Debug)]
pub(super) enum Input {
    /// Nowhere.
    Passing,
    /// In a file, from a byte on; whether nobody can change it.
    File {
        file: File,
        start: u64,
        fixed: bool,
    },
    Directory(DirectoryFiles),
}

impl Holders {
    /// An empty spool in a directory, and an input that passes.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let spool = tempfile::tempfile_in(directory)
            .map_err(|e| Error::failed(format!("making a spool file in {}", directory.display()), e))?;
        Ok(Self { spool, input: Input::Passing })
    }

    /// Puts bytes into the spool.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.spool.write_all_at(bytes, at).map_err(|e| Error::failed("writing the spool file", e))
    }

    /// Fills `buffer` with bytes of an item, from where its segments say they are.
    pub(super) fn read(&self, item: &Item, buffer: &mut [u8], at: u64) -> Result<()> {
        let (file, what) = match (item.holder(), &self.input) {
            (Holder::Directory, Input::Directory(files)) => return files.read(item.number(), buffer, at),
            (Holder::Source, Input::File { file, .. }) => (file, "reading the source again"),
            _ => (&self.spool, "reading the spool file"),
        };
        file.read_exact_at(buffer, at).map_err(|e| Error::failed(what, e))
    }
}

impl Input {
    /// Whether its contents do not pass first, so that what is equal is found once all are known.
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::File { fixed: true, .. } | Self::Directory(_))
    }

    /// Whether what is read again can be something else than what passed.
    pub(super) fn can_change(&self) -> bool {
        matches!(self, Self::File { fixed: false, .. })
    }
}
