//! A layer's tar as what it says, by name and type of each entry.

use super::content::ContentHash;
use super::paths::{PathId, Paths};
use super::{Inode, Kind};
use crate::error::{Error, Result};
use crate::limits::Budget;
use crate::tar::{self, Extent, Reader, Shape, TreePath};
use std::io::Read;

/// One thing that a layer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// At a path there is this.
    Entry(PathId, Inode),
    /// A path is another name of what stands at the second, which is not kept among the paths.
    Link(PathId, Box<[u8]>),
    /// The layers below have nothing at this path.
    Whiteout(PathId),
    /// The layers below have nothing in this directory.
    Opaque(PathId),
}

impl Item {
    pub(super) fn path(&self) -> PathId {
        let (Self::Entry(path, _) | Self::Link(path, _) | Self::Whiteout(path) | Self::Opaque(path)) = self;
        *path
    }
}

/// All that a layer says, in order.
pub(super) fn read<R: Read>(reader: &mut Reader<R>, paths: &mut Paths) -> Result<Vec<Item>> {
    let (mut items, mut budget, before) = (Vec::new(), Budget::default(), paths.len());
    let mut last = (Vec::new(), PathId::ROOT);
    while let Some(entry) = reader.next_entry()? {
        let name = entry.path.to_bytes();
        budget.charge(&entry, paths.len() - before).map_err(|e| e.at(&name))?;
        match meaning(entry.path.parts()).map_err(|e| e.at(&name))? {
            Meaning::Whiteout(directory, hidden) => items.push(Item::Whiteout({
                let directory = paths.at(directory);
                paths.child(directory, hidden)
            })),
            Meaning::Opaque(directory) => items.push(Item::Opaque(paths.at(directory))),
            Meaning::Ignored => {}
            Meaning::Entry => {
                let path = path(&entry.path, paths, &mut last);
                items.push(item(reader, entry, path).map_err(|e| e.at(&name))?);
            }
        }
    }
    Ok(items)
}

/// The path of an entry. Neighbours mostly lie in the same directory, and perhaps a deep one: that of the last is kept.
fn path(path: &TreePath, paths: &mut Paths, last: &mut (Vec<Vec<u8>>, PathId)) -> PathId {
    let Some((directory, name)) = path.split() else { return PathId::ROOT };
    if directory != last.0 {
        *last = (directory.to_vec(), paths.at(directory));
    }
    paths.child(last.1, name)
}

/// What the name of an entry makes of it, whatever its type.
enum Meaning<'a> {
    Entry,
    /// A directory, and the name in it.
    Whiteout(&'a [Vec<u8>], &'a [u8]),
    Opaque(&'a [Vec<u8>]),
    Ignored,
}

fn meaning(parts: &[Vec<u8>]) -> Result<Meaning<'_>> {
    let Some((name, directory)) = parts.split_last() else { return Ok(Meaning::Entry) };
    // AUFS keeps its own data so at the root.
    if parts[0].starts_with(b".wh..wh.") && parts[0] != b".wh..wh..opq" {
        return Ok(Meaning::Ignored);
    }
    if directory.iter().any(|part| part.starts_with(b".wh.")) {
        return Err(Error::refused("something below a whiteout"));
    }
    match name.strip_prefix(b".wh.") {
        None => Ok(Meaning::Entry),
        Some(b".wh..opq") => Ok(Meaning::Opaque(directory)),
        Some(b"" | b"." | b"..") => Err(Error::refused("a whiteout of nothing")),
        Some(hidden) => Ok(Meaning::Whiteout(directory, hidden)),
    }
}

fn item<R: Read>(reader: &mut Reader<R>, entry: tar::Entry, path: PathId) -> Result<Item> {
    let kind = match entry.kind {
        tar::Kind::HardLink(target) => return Ok(Item::Link(path, target.to_bytes().into())),
        tar::Kind::File(shape) => Kind::File { size: shape.size, content: content(reader, &shape)? },
        tar::Kind::Directory => Kind::Directory,
        tar::Kind::Symlink(target) => Kind::Symlink(target),
        tar::Kind::Char(major, minor) => Kind::Char(major, minor),
        tar::Kind::Block(major, minor) => Kind::Block(major, minor),
        tar::Kind::Fifo => Kind::Fifo,
    };
    let mut attributes = entry.attributes;
    attributes.xattrs.retain(|name, _| is_kept(name));
    Ok(Item::Entry(path, Inode { attributes, kind }))
}

/// Whether an attribute can be an image's: Linux knows its namespace, and it is none of overlayfs's own.
pub(super) fn is_kept(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name);
    match text.split_once('.') {
        Some((_, "")) => false,
        Some(("user" | "trusted", rest)) => !rest.starts_with("overlay."),
        Some(("security", _)) => true,
        _ => text == "system.posix_acl_access" || text == "system.posix_acl_default",
    }
}

fn content<R: Read>(reader: &mut Reader<R>, shape: &Shape) -> Result<[u8; 32]> {
    let whole = [Extent { offset: 0, length: shape.size }];
    let mut hash = ContentHash::new(shape.size);
    let mut buffer = vec![0; 64 << 10];
    for extent in shape.map.as_deref().unwrap_or(&whole) {
        let (mut at, end) = (extent.offset, extent.offset + extent.length);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            match reader.read(&mut buffer[..want])? {
                0 => return Err(Error::refused("its contents end early")),
                got => {
                    hash.write(at, &buffer[..got]);
                    at += got as u64;
                }
            }
        }
    }
    Ok(hash.finish())
}
