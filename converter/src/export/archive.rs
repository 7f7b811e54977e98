//! A deterministic PAX tar: each directory before what is in it, siblings in byte order of their names, all attributes.
//!
//! The first name of a file with several carries it, the others are hard links to that. Files with holes stand in GNU
//! tar's sparse format 1.0. The marks of a layer's own tree become OCI's: `.wh.NAME`, and `.wh..wh..opq` right behind its
//! directory. What a tar cannot hold, or a reader would take for something else, is refused.

use super::Work;
use super::pax::{self, Described};
use super::view::View;
use crate::error::{Error, Result};
use crate::stored::{Run, runs};
use crate::tar::{PATH_MAX, WHITEOUT};
use crate::tree::OPAQUE;
use erofs::{Attributes, Content, Kind, NodeId, Visit};
use std::collections::HashMap;
use std::io::Write;
use tar::EntryType;

/// Writes the tar; bytes of it.
pub(super) fn write(view: &View, work: &mut Work<'_>, out: &mut dyn Write) -> Result<u64> {
    let mut archive = Archive { view, out, written: 0, first: HashMap::new() };
    for visit in view.tree.walk() {
        archive.visit(&visit, work).map_err(|e| e.at(&visit.path))?;
    }
    archive.put(&[0; 1024])?;
    archive.out.flush().map_err(failed)?;
    Ok(archive.written)
}

struct Archive<'a> {
    view: &'a View,
    out: &'a mut dyn Write,
    written: u64,
    /// First name of each node that is no directory.
    first: HashMap<NodeId, Vec<u8>>,
}

impl Archive<'_> {
    fn visit(&mut self, visit: &Visit, work: &mut Work<'_>) -> Result<()> {
        let (path, node) = (&visit.path, self.view.tree.node(visit.node));
        if path.split(|&b| b == b'/').any(|part| part.starts_with(WHITEOUT)) {
            return Err(Error::refused("in a tar, a name that starts with '.wh.' hides another"));
        }
        if let Some(first) = self.first.get(&visit.node) {
            let (attributes, link) = (without_xattrs(&node.attributes), first.clone());
            return self.entry(EntryType::Link, path, &link, &attributes, (0, 0));
        }
        let attributes = &node.attributes;
        match &node.kind {
            Kind::Directory => return self.directory(path, visit.node),
            Kind::Char(0, 0) => return self.mark(&marked(path, WHITEOUT)),
            Kind::File(content) => self.file(path, visit.node, content, work)?,
            Kind::Symlink(target) => self.entry(EntryType::Symlink, path, target, attributes, (0, 0))?,
            Kind::Char(major, minor) => self.entry(EntryType::Char, path, b"", attributes, (*major, *minor))?,
            Kind::Block(major, minor) => self.entry(EntryType::Block, path, b"", attributes, (*major, *minor))?,
            Kind::Fifo => self.entry(EntryType::Fifo, path, b"", attributes, (0, 0))?,
            Kind::Socket => return Err(Error::refused("a tar cannot hold a socket")),
        }
        self.first.insert(visit.node, path.clone());
        Ok(())
    }

    fn directory(&mut self, path: &[u8], node: NodeId) -> Result<()> {
        let mut attributes = self.view.tree.attributes(node);
        attributes.xattrs.remove(OPAQUE);
        let name = match path.len() {
            0 => b"./".to_vec(),
            PATH_MAX => path.to_vec(),
            _ => [path, b"/"].concat(),
        };
        self.entry(EntryType::Directory, &name, b"", &attributes, (0, 0))?;
        match (self.view.is_opaque(node), path.is_empty()) {
            (false, _) => Ok(()),
            (true, true) => self.mark(b".wh..wh..opq"),
            (true, false) => self.mark(&[path, b"/.wh..wh..opq"].concat()),
        }
    }

    fn mark(&mut self, name: &[u8]) -> Result<()> {
        self.entry(EntryType::Regular, name, b"", &Attributes::default(), (0, 0))
    }

    /// An entry without contents.
    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        attributes: &Attributes,
        device: (u32, u32),
    ) -> Result<()> {
        let header = pax::encode(&Described { kind, path, link, attributes, stored: 0, sparse: None, device })?;
        self.put(&header)
    }

    fn file(&mut self, path: &[u8], node: NodeId, content: &Content, work: &mut Work<'_>) -> Result<()> {
        let runs = runs(content);
        let data: u64 = runs.iter().map(|run| run.length).sum();
        let (sparse, map) = match content {
            Content::Plain { .. } => (None, Vec::new()),
            Content::Sparse { size, .. } => (Some(*size), map(*size, &runs)),
        };
        let attributes = &self.view.tree.attributes(node);
        let stored = map.len() as u64 + data;
        let described =
            Described { kind: EntryType::Regular, path, link: b"", attributes, stored, sparse, device: (0, 0) };
        self.put(&pax::encode(&described)?)?;
        self.put(&map)?;
        for run in &runs {
            work.read(self.view.layer_of(node), run, &mut |bytes| self.put(bytes))?;
        }
        self.put(&vec![0; (data.wrapping_neg() % 512) as usize])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(failed)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// The map of GNU's sparse format 1.0: a count, then pairs of offset and length, in decimal lines. Like GNU tar's own, it
/// ends with an empty piece where the file ends with a hole.
fn map(size: u64, runs: &[Run]) -> Vec<u8> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        match pieces.last_mut() {
            Some((offset, length)) if *offset + *length == run.offset => *length += run.length,
            _ => pieces.push((run.offset, run.length)),
        }
    }
    if pieces.last().is_none_or(|(offset, length)| offset + length < size) {
        pieces.push((size, 0));
    }
    let mut text = format!("{}\n", pieces.len()).into_bytes();
    for (offset, length) in pieces {
        text.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    pax::pad(&mut text);
    text
}

/// The path with something in front of its last name.
fn marked(path: &[u8], mark: &[u8]) -> Vec<u8> {
    let name = path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
    [&path[..name], mark, &path[name..]].concat()
}

fn without_xattrs(attributes: &Attributes) -> Attributes {
    Attributes { xattrs: Default::default(), ..attributes.clone() }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed("writing the tar", error)
}
