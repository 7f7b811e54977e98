//! Bodies read: the data space from its start, as chunk after chunk wants it, and single ones to be hashed.

use super::contents::Bodies;
use super::hash::{BodyHasher, Hash};
use super::holders::Holders;
use super::item::Item;
use super::list::{List, Reader};
use crate::error::{Error, Result};
use std::borrow::Cow;

/// Reads bodies one behind the other. What comes from a source that can have been changed is hashed again: it has to be what
/// it was.
pub(super) struct DataReader<'a> {
    bodies: &'a Bodies,
    list: Reader<'a>,
    open: Option<OpenBody<'a>>,
}

/// A body of which some was read.
struct OpenBody<'a> {
    item: Cow<'a, Item>,
    at: u64,
    /// The first segment that may have bytes from `at` on.
    segment: usize,
    /// The hash that it has to have.
    again: Option<(BodyHasher, Hash)>,
}

/// Hash and long runs of zeros of a body, read through a buffer.
pub(super) fn hash_body(holders: &Holders, item: &Item, buffer: &mut [u8]) -> Result<(Hash, Vec<(u64, u64)>)> {
    let mut hasher = BodyHasher::default();
    let mut open = OpenBody::new(Cow::Borrowed(item), None);
    while open.at < item.length() {
        let count = usize::try_from(item.length() - open.at).unwrap_or(usize::MAX).min(buffer.len());
        buffer[..count].fill(0);
        open.fill(holders, &mut buffer[..count])?;
        hasher.bytes(&buffer[..count]);
    }
    Ok(item.finish(hasher))
}

impl<'a> DataReader<'a> {
    /// Of the contents on the list.
    pub(super) fn new(bodies: &'a Bodies, list: &'a List) -> Result<Self> {
        Ok(Self { bodies, list: list.read()?, open: None })
    }

    /// Fills a buffer of zeros with the next bytes of the data space.
    pub(super) fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let Some(open) = &mut self.open else {
                let next = self.list.next()?;
                let (number, item) = next.ok_or_else(|| Error::failed("cutting chunks", "there is no more data"))?;
                let hash = self.bodies.to_check(number, &item)?;
                let item = self.bodies.sparse(number).map_or(Cow::Owned(item), Cow::Borrowed);
                self.open = Some(OpenBody::new(item, hash));
                continue;
            };
            let left = open.item.length() - open.at;
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let (now, later) = buffer.split_at_mut(count);
            open.fill(&self.bodies.holders, now)?;
            buffer = later;
            if open.at == open.item.length()
                && let Some(done) = self.open.take()
            {
                done.finish()?;
            }
        }
        Ok(())
    }
}

impl<'a> OpenBody<'a> {
    fn new(item: Cow<'a, Item>, hash: Option<Hash>) -> Self {
        Self { item, at: 0, segment: 0, again: hash.map(|hash| (BodyHasher::default(), hash)) }
    }

    fn fill(&mut self, holders: &Holders, buffer: &mut [u8]) -> Result<()> {
        let end = self.at + buffer.len() as u64;
        while let Some(segment) = self.item.segment(self.segment).filter(|segment| segment.to < end) {
            let start = segment.to.max(self.at);
            let stop = (segment.to + segment.length).min(end);
            let to = (start - self.at) as usize..(stop - self.at) as usize;
            holders.read(&self.item, &mut buffer[to], segment.at + (start - segment.to))?;
            if stop < segment.to + segment.length {
                break;
            }
            self.segment += 1;
        }
        if let Some((hasher, _)) = &mut self.again {
            hasher.bytes(buffer);
        }
        self.at = end;
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self.again.is_none_or(|(hasher, hash)| self.item.finish(hasher).0 == hash) {
            true => Ok(()),
            false => Err(Error::failed("reading the source again", "it was changed while it was converted")),
        }
    }
}
