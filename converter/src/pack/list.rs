//! Contents in the order in which they are read: a nameless file, since nothing else of them is needed by then.

use super::item::Item;
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, Write as _};
use std::path::Path;

/// A number and what [`Item::to_bytes`] gives.
const RECORD: usize = 4 + Item::BYTES;

/// Records that are read at once.
const AT_ONCE: usize = 1024;

/// The list while it is written.
#[derive(Debug)]
pub(super) struct Writer(BufWriter<File>);

/// The list.
#[derive(Debug)]
pub(super) struct List(File);

impl Writer {
    /// An empty list; the file goes to `directory`.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        tempfile::tempfile_in(directory).map(|file| Self(BufWriter::new(file))).map_err(failed)
    }

    pub(super) fn push(&mut self, number: u32, item: &Item) -> Result<()> {
        let written = self.0.write_all(&number.to_le_bytes());
        written.and_then(|()| self.0.write_all(&item.to_bytes())).map_err(failed)
    }

    pub(super) fn finish(self) -> Result<List> {
        self.0.into_inner().map(List).map_err(|e| failed(e.into_error()))
    }
}

impl List {
    /// An error where its disk has lost any of it: what was read of it is wrong then.
    pub(super) fn check(&self) -> Result<()> {
        spill::written(&self.0).map_err(failed)
    }

    /// The contents with their numbers. One reader at a time.
    pub(super) fn read(&self) -> Result<Reader<'_>> {
        let mut file = &self.0;
        file.rewind().map_err(failed)?;
        Ok(Reader { file, buffer: Vec::new(), at: 0 })
    }
}

#[cfg(test)]
impl List {
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut reader = self.read().unwrap();
        std::iter::from_fn(|| Some(reader.next().unwrap()?.0)).collect()
    }
}

#[derive(Debug)]
pub(super) struct Reader<'a> {
    file: &'a File,
    buffer: Vec<u8>,
    at: usize,
}

impl Reader<'_> {
    /// The next contents; what a file with holes has besides is not in them.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Item)>> {
        if self.at == self.buffer.len() {
            (self.at, self.buffer) = (0, std::mem::take(&mut self.buffer));
            self.buffer.clear();
            let most = (AT_ONCE * RECORD) as u64;
            self.file.take(most).read_to_end(&mut self.buffer).map_err(failed)?;
        }
        let Some((number, rest)) = self.buffer[self.at..].split_first_chunk() else { return Ok(None) };
        let item = rest.first_chunk().map(Item::from_bytes);
        self.at += RECORD;
        Ok(item.map(|item| (u32::from_le_bytes(*number), item)))
    }
}

fn failed(error: io::Error) -> Error {
    Error::failed("the list of contents in a temporary file", error)
}

#[cfg(test)]
mod tests {
    use super::super::item::Holder;
    use super::*;
    use crate::tar::Shape;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let mut list = Writer::new(&std::env::temp_dir()).unwrap();
        let item = |at: u64| Item::new(&Shape { size: at * 3, map: None }, Holder::Source, at);
        (0..5000).for_each(|at| list.push(at, &item(at.into())).unwrap());
        let list = list.finish().unwrap();
        for _ in 0..2 {
            let mut reader = list.read().unwrap();
            for at in 0..5000 {
                let (number, found) = reader.next().unwrap().unwrap();
                assert_eq!((number, found.size(), found.holder()), (at, u64::from(at) * 3, Holder::Source));
                assert_eq!(found.segment(0), item(at.into()).segment(0));
            }
            assert!(reader.next().unwrap().is_none());
        }
    }
}
