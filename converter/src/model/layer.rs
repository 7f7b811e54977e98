//! A layer's tar as what it says, by name and type of each entry.

use super::content::ContentHash;
use super::{Inode, Kind};
use crate::error::{Error, Result};
use crate::limits::Budget;
use crate::tar::{self, Extent, Reader, Shape};
use std::io::Read;

/// One thing that a layer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// At a path there is this.
    Entry(Vec<u8>, Inode),
    /// A path is another name of what stands at the second.
    Link(Vec<u8>, Vec<u8>),
    /// The layers below have nothing at this path.
    Whiteout(Vec<u8>),
    /// The layers below have nothing in this directory.
    Opaque(Vec<u8>),
}

/// All that a layer says, in order.
pub(super) fn read<R: Read>(reader: &mut Reader<R>) -> Result<Vec<Item>> {
    let (mut items, mut budget) = (Vec::new(), Budget::default());
    while let Some(entry) = reader.next_entry()? {
        let path = entry.path.to_bytes();
        budget.charge(&entry, 0).map_err(|e| e.at(&path))?;
        match mark(&path).map_err(|e| e.at(&path))? {
            Mark::Item(item) => items.push(item),
            Mark::Ignored => {}
            Mark::None => items.push(item(reader, entry).map_err(|e| e.at(&path))?),
        }
    }
    Ok(items)
}

enum Mark {
    None,
    Ignored,
    Item(Item),
}

/// What a name that begins with `.wh.` makes of an entry, whatever its type.
fn mark(path: &[u8]) -> Result<Mark> {
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
    let Some((name, directory)) = parts.split_last() else { return Ok(Mark::None) };
    // AUFS keeps its own data so at the root.
    if parts[0].starts_with(b".wh..wh.") && parts[0] != b".wh..wh..opq" {
        return Ok(Mark::Ignored);
    }
    if directory.iter().any(|part| part.starts_with(b".wh.")) {
        return Err(Error::refused("something below a whiteout"));
    }
    let at = |name: &[u8]| [directory, &[name]].concat().join(&b'/');
    match name.strip_prefix(b".wh.") {
        None => Ok(Mark::None),
        Some(b".wh..opq") => Ok(Mark::Item(Item::Opaque(directory.join(&b'/')))),
        Some(b"" | b"." | b"..") => Err(Error::refused("a whiteout of nothing")),
        Some(hidden) => Ok(Mark::Item(Item::Whiteout(at(hidden)))),
    }
}

fn item<R: Read>(reader: &mut Reader<R>, entry: tar::Entry) -> Result<Item> {
    let path = entry.path.to_bytes();
    let kind = match entry.kind {
        tar::Kind::HardLink(target) => return Ok(Item::Link(path, target.to_bytes())),
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
