//! A directory of this machine, which must not change meanwhile.

use super::content::ContentHash;
use super::layer::is_kept;
use super::{Inode, Kind, Model, PathId};
use crate::error::{Error, Result, show};
use erofs::{Attributes, RareMap};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Something that is no part of any image: a socket, a device 0:0, or an attribute of overlayfs's own. In words.
pub type LeftOut = String;

/// A name that is still to be looked at: where, as a path that is short however deep it lies, and what it is called.
struct Pending {
    /// Kept open as long as `place` leads through it.
    _parent: Option<Rc<File>>,
    place: PathBuf,
    path: PathId,
}

pub(super) fn read(root: &Path) -> Result<(Model, Vec<LeftOut>)> {
    let mut model = Model { layers: 1, ..Model::default() };
    let (mut left_out, mut linked) = (Vec::new(), HashMap::new());
    // With the dot, a link that the caller names is followed; nothing else is.
    let mut open = vec![Pending { _parent: None, place: root.join("."), path: PathId::ROOT }];
    while let Some(next) = open.pop() {
        let Pending { place, path, .. } = &next;
        let bytes = model.paths.bytes(*path);
        let failed = |e| Error::failed(format!("reading '{}'", show(&bytes)), e);
        let found = fs::symlink_metadata(place).map_err(failed)?;
        let several = !found.is_dir() && found.nlink() > 1;
        if let Some(&inode) = linked.get(&(found.dev(), found.ino())).filter(|_| several) {
            model.link(*path, inode, 1);
            continue;
        }
        let Some(kind) = kind(place, &found).map_err(failed)? else {
            left_out.push(format!("'{}'", show(&bytes)));
            continue;
        };
        if kind == Kind::Directory {
            push_names(place, *path, &mut model, &mut open).map_err(failed)?;
        }
        let attributes = attributes(place, &bytes, &found, &mut left_out).map_err(failed)?;
        let inode = model.set(*path, Inode { attributes, kind }, 1);
        if several {
            linked.insert((found.dev(), found.ino()), inode);
        }
    }
    Ok((model, left_out))
}

fn push_names(place: &Path, path: PathId, model: &mut Model, open: &mut Vec<Pending>) -> io::Result<()> {
    let directory = Rc::new(File::open(place)?);
    let through = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    for entry in fs::read_dir(&through)? {
        let name = entry?.file_name();
        let place = through.join(&name);
        let path = model.child(path, name.as_bytes());
        open.push(Pending { _parent: Some(directory.clone()), place, path });
    }
    Ok(())
}

fn kind(path: &Path, found: &Metadata) -> io::Result<Option<Kind>> {
    let (kind, device) = (found.file_type(), found.rdev());
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(Some(if kind.is_dir() {
        Kind::Directory
    } else if kind.is_file() {
        Kind::File { size: found.len(), content: content(path, found.len())? }
    } else if kind.is_symlink() {
        Kind::Symlink(fs::read_link(path)?.into_os_string().into_vec())
    } else if kind.is_char_device() && (major, minor) != (0, 0) {
        Kind::Char(major, minor)
    } else if kind.is_block_device() {
        Kind::Block(major, minor)
    } else if kind.is_fifo() {
        Kind::Fifo
    } else {
        return Ok(None);
    }))
}

/// Reads data only: a file can be all hole, and larger than time allows.
fn content(path: &Path, size: u64) -> io::Result<[u8; 32]> {
    use rustix::fs::{SeekFrom, seek};
    let mut file = File::open(path)?;
    let (mut hash, mut buffer, mut at) = (ContentHash::new(size), vec![0; 256 << 10], 0);
    while at < size {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = seek(&file, SeekFrom::Hole(at))?.min(size);
        seek(&file, SeekFrom::Start(at))?;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            match file.read(&mut buffer[..want])? {
                0 => return Err(io::Error::other("it got shorter while it was read")),
                got => {
                    hash.write(at, &buffer[..got]);
                    at += got as u64;
                }
            }
        }
    }
    Ok(hash.finish())
}

fn attributes(place: &Path, path: &[u8], found: &Metadata, left_out: &mut Vec<LeftOut>) -> io::Result<Attributes> {
    let mut xattrs = RareMap::new();
    for name in names(place)? {
        if !is_kept(&name) {
            left_out.push(format!("'{}': {}", show(path), show(&name)));
            continue;
        }
        let mut value = vec![0; 64 << 10]; // XATTR_SIZE_MAX
        match rustix::fs::lgetxattr(place, &name[..], &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                xattrs.insert(name, value);
            }
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Attributes {
        mode: (found.mode() & 0o7777) as u16,
        uid: found.uid(),
        gid: found.gid(),
        mtime: found.mtime(),
        mtime_nsec: found.mtime_nsec() as u32,
        xattrs,
    })
}

fn names(place: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; 64 << 10]; // XATTR_LIST_MAX
    let length = match rustix::fs::llistxattr(place, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(e.into()),
    };
    Ok(names[..length].split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}
