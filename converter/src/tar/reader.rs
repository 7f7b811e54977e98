//! Going through a tar: headers, what stands before them and describes the same entry, and the entries' data.

use super::header::{self, Header};
use super::pax::Records;
use super::sparse::{self, Extent};
use super::{Entry, Kind, Shape, TreePath, number};
use crate::error::{Error, Result};
use crate::limits::EXTENDED;
use std::io::{self, Read};

/// Reads entries from a decompressed tar stream.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Passes over so many bytes of the input, or fewer; none at its end only.
    pass: fn(&mut R, u64) -> io::Result<u64>,
    /// Bytes read of it.
    position: u64,
    /// Stored bytes of the current entry that are not read yet.
    remaining: u64,
    /// Bytes after them up to the next header.
    padding: u64,
    ended: bool,
    /// The end was a block of zeros, and not only the end of the input.
    marked: bool,
    passed_over: Vec<Vec<u8>>,
}

/// What stands before an entry and describes it.
#[derive(Default)]
struct Extended {
    records: Records,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    any: bool,
    /// Bytes of records.
    size: u64,
}

impl<R: Read> Reader<R> {
    /// A reader at the start of a stream.
    pub fn new(input: R) -> Self {
        Self::passing(input, read_over)
    }

    /// One that passes over data by `pass`, which takes how many bytes to pass, and gives how many it has: none at the end only.
    pub fn passing(input: R, pass: fn(&mut R, u64) -> io::Result<u64>) -> Self {
        Self {
            input,
            pass,
            position: 0,
            remaining: 0,
            padding: 0,
            ended: false,
            marked: false,
            passed_over: Vec::new(),
        }
    }

    /// The stream: behind the current entry's header, or what was read of its data, or the end of the archive.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// Reads what stands behind the end of the archive; whether anything does that is not zero.
    pub fn rest(&mut self) -> Result<bool> {
        let (mut buffer, mut any) = (vec![0; 64 << 10], false);
        loop {
            match self.input.read(&mut buffer) {
                Ok(0) => return Ok(any),
                Ok(got) => any |= buffer[..got].iter().any(|&byte| byte != 0),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::stream("reading behind the tar", e)),
            }
        }
    }

    /// Whether the archive's end, when it was reached, was marked by a block of zeros: where the input just ended, it may have
    /// been cut short between two entries.
    pub fn end_was_marked(&self) -> bool {
        self.marked
    }

    /// Byte of the stream that is read next: at first of the stored bytes of the entry that was given last.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// As [`Reader::input`], taken back.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// The next entry; `None` at the end of the archive. What was not read of the last entry's data is skipped.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let mut extended = Extended::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return if extended.any {
                    Err(Error::refused("the tar ends behind an extended header"))
                } else {
                    Ok(None)
                };
            };
            match header.kind() {
                b'g' => {
                    let mut records = Records::default();
                    records.read(&self.special(&header, &mut 0)?).map_err(|e| e.at(&header.name()))?;
                    records.check_global().map_err(|e| e.at(&header.name()))?;
                }
                // A volume's label.
                b'V' => self.set_data(header.size()?),
                b'x' | b'X' => {
                    let body = self.special(&header, &mut extended.size)?;
                    extended.records.read(&body).map_err(|e| e.at(&header.name()))?;
                    extended.any = true;
                }
                b'L' => {
                    extended.long_name = Some(self.long(&header, &mut extended.size)?);
                    extended.any = true;
                }
                b'K' => {
                    extended.long_link = Some(self.long(&header, &mut extended.size)?);
                    extended.any = true;
                }
                _ => {
                    let name = entry_name(&header, &extended);
                    return self.entry(&header, extended, &name).map(Some).map_err(|e| e.at(&name));
                }
            }
        }
    }

    /// Keys of the current entry's records that say something of it and are not followed.
    pub fn passed_over(&self) -> &[Vec<u8>] {
        &self.passed_over
    }

    /// Reads stored bytes of the current entry; 0 at their end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let want = buffer.len().min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let got = self.input.read(&mut buffer[..want]).map_err(|e| Error::stream("reading the tar", e))?;
        self.went(got as u64)?;
        Ok(got)
    }

    /// Passes over what was not read of the current entry's data.
    pub fn pass_data(&mut self) -> Result<()> {
        while self.remaining > 0 {
            let passed =
                (self.pass)(&mut self.input, self.remaining).map_err(|e| Error::stream("reading the tar", e))?;
            self.went(passed)?;
        }
        Ok(())
    }

    /// Counts bytes of the current entry's data.
    fn went(&mut self, count: u64) -> Result<()> {
        if count == 0 {
            return Err(Error::refused("the tar is truncated: unexpected end in the entry's data"));
        }
        self.remaining -= count;
        self.position += count;
        Ok(())
    }

    fn entry(&mut self, header: &Header, extended: Extended, name: &[u8]) -> Result<Entry> {
        let records = &extended.records;
        let path = TreePath::clean(name)?;
        let attributes = header::attributes(header, records)?;
        let link = || match records.get("linkpath") {
            Some(link) => link.to_vec(),
            None => extended.long_link.clone().unwrap_or_else(|| header.link()),
        };
        let kind =
            match header.kind() {
                0 if name.ends_with(b"/") => Kind::Directory,
                0 | b'0' | b'7' | b'S' => Kind::File(self.shape(header, records)?),
                b'1' => Kind::HardLink(TreePath::clean(&link()).map_err(|_| {
                    Error::refused(format!("invalid hard link target '{}'", crate::error::short(&link())))
                })?),
                b'2' => Kind::Symlink(header::symlink_target(link())?),
                b'3' => Kind::Char(header.device()?.0, header.device()?.1),
                b'4' => Kind::Block(header.device()?.0, header.device()?.1),
                b'5' => Kind::Directory,
                b'6' => Kind::Fifo,
                // With the names in it as data: written by `tar --incremental`.
                b'D' => {
                    self.set_data(header.size()?);
                    Kind::Directory
                }
                b'M' => return Err(Error::refused("a part of a multi-volume archive")),
                other => {
                    let shown = crate::error::show(&[other]);
                    return Err(Error::refused(format!("the tar entry type '{shown}' is not supported")));
                }
            };
        self.passed_over = header::passed_over(records);
        Ok(Entry { path, kind, attributes })
    }

    /// Sets the data to be read and gives the file's shape.
    fn shape(&mut self, header: &Header, records: &Records) -> Result<Shape> {
        let stored = records.number("size")?.map_or_else(|| header.size(), Ok)?;
        if stored > i64::MAX as u64 {
            return Err(Error::refused("invalid size: out of range"));
        }
        if header.kind() == b'S' {
            let (size, map) = self.old_sparse(header)?;
            self.set_data(stored);
            return Ok(Shape { size, map: Some(sparse::check(map, size, stored)?) });
        }
        self.set_data(stored);
        let form = (records.number("GNU.sparse.major")?, records.number("GNU.sparse.minor")?);
        let size = match records.number("GNU.sparse.realsize")? {
            Some(size) => Some(size),
            None => records.number("GNU.sparse.size")?,
        };
        let map = match (form, sparse::from_records(records)?) {
            ((Some(1), Some(0)), None) => {
                let map = sparse::from_data(|| self.data_block())?;
                if self.remaining > stored {
                    return Err(Error::refused("invalid sparse entry: its size is too small for its map"));
                }
                map
            }
            ((None, None) | (Some(0), Some(_)), Some(map)) => map,
            ((None, None), None) if size.is_none() => return Ok(Shape { size: stored, map: None }),
            _ => return Err(Error::refused("this form of sparse entry is not supported")),
        };
        let size = size.ok_or_else(|| Error::refused("invalid sparse entry: it has no size"))?;
        if size > i64::MAX as u64 {
            return Err(Error::refused("invalid sparse entry: its size is out of range"));
        }
        Ok(Shape { size, map: Some(sparse::check(map, size, self.remaining)?) })
    }

    fn old_sparse(&mut self, header: &Header) -> Result<(u64, Vec<Extent>)> {
        let gnu = header.as_gnu().ok_or_else(|| Error::refused("invalid sparse entry: its header is not a GNU one"))?;
        let size = number::parse(&gnu.realsize).and_then(|n| u64::try_from(n).ok());
        let size = size.ok_or_else(|| Error::refused("invalid sparse entry: its size"))?;
        let mut map = Vec::new();
        sparse::header_pieces(&gnu.sparse, &mut map)?;
        let mut more = gnu.is_extended();
        while more {
            let block =
                self.block()?.ok_or_else(|| Error::refused("the tar is truncated: unexpected end in a header"))?;
            more = sparse::extension(&block, &mut map)?;
        }
        Ok((size, map))
    }

    fn data_block(&mut self) -> Result<[u8; 512]> {
        let mut block = [0; 512];
        let mut at = 0;
        while at < block.len() {
            match self.read(&mut block[at..])? {
                0 => return Err(Error::refused("invalid sparse entry: its map does not end")),
                got => at += got,
            }
        }
        Ok(block)
    }

    fn set_data(&mut self, stored: u64) {
        self.remaining = stored;
        self.padding = stored.wrapping_neg() % 512;
    }

    /// The body of an extended header. `all` counts the bytes of those of the same entry.
    fn special(&mut self, header: &Header, all: &mut u64) -> Result<Vec<u8>> {
        let size = header.size()?;
        *all = all.saturating_add(size);
        if *all > EXTENDED {
            let what = format!("its extended headers are too large: {size} bytes more, {EXTENDED} are possible");
            return Err(Error::refused(what).at(&header.name()));
        }
        self.set_data(size);
        let mut body = vec![0; size as usize];
        let mut at = 0;
        while at < body.len() {
            at += self.read(&mut body[at..])?;
        }
        Ok(body)
    }

    /// A GNU long name or link: the body up to its NUL.
    fn long(&mut self, header: &Header, all: &mut u64) -> Result<Vec<u8>> {
        let mut body = self.special(header, all)?;
        body.truncate(body.iter().position(|&b| b == 0).unwrap_or(body.len()));
        Ok(body)
    }

    fn skip(&mut self) -> Result<()> {
        self.pass_data()?;
        self.remaining = std::mem::take(&mut self.padding);
        self.pass_data()
    }

    /// The next header; `None` at the end: two zero blocks, one and nothing more, or nothing more.
    fn header(&mut self) -> Result<Option<Header>> {
        if self.ended {
            return Ok(None);
        }
        let zero = |block: &[u8; 512]| block.iter().all(|&b| b == 0);
        match self.block()? {
            Some(block) if !zero(&block) => return Header::new(&block).map(Some),
            None => {}
            Some(_) => match self.block()? {
                Some(block) if !zero(&block) => {
                    return Err(Error::refused("invalid tar: a header behind a zero block"));
                }
                _ => self.marked = true,
            },
        }
        self.ended = true;
        Ok(None)
    }

    fn block(&mut self) -> Result<Option<[u8; 512]>> {
        let mut block = [0; 512];
        let mut at = 0;
        while at < block.len() {
            match self.input.read(&mut block[at..]) {
                Ok(0) if at == 0 => return Ok(None),
                Ok(0) => return Err(Error::refused("the tar is truncated: unexpected end in a header")),
                Ok(got) => at += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::stream("reading the tar", e)),
            }
        }
        self.position += block.len() as u64;
        Ok(Some(block))
    }
}

/// Passes over bytes by reading them.
fn read_over<R: Read>(input: &mut R, count: u64) -> io::Result<u64> {
    let mut buffer = [0; 8192];
    let want = buffer.len().min(usize::try_from(count).unwrap_or(usize::MAX));
    input.read(&mut buffer[..want]).map(|got| got as u64)
}

/// The name by the strongest of the places that may hold it.
fn entry_name(header: &Header, extended: &Extended) -> Vec<u8> {
    let records = &extended.records;
    match records.get("GNU.sparse.name").or_else(|| records.get("path")) {
        Some(name) => name.to_vec(),
        None => extended.long_name.clone().unwrap_or_else(|| header.name()),
    }
}
