//! A directory of this machine as a layer's entries.
//!
//! Nothing is followed: each name is looked at from its directory's descriptor. Names come in byte order, so that equal
//! directories give equal layers. Hard links inside the directory stay hard links, holes stay holes. Sockets, which no
//! image can hold, and character devices 0:0, which overlayfs takes for whiteouts, are left out with a warning. A name
//! that looks like a whiteout is a name like any other here. The tree must not change meanwhile: files are read when their
//! bytes are wanted, and one that was changed by then ends the conversion.

use crate::error::{Error, Result, show};
use crate::limits::Budget;
use crate::pack::{Spool, looks, unchanged};
use crate::tar::{Entry, Extent, Kind, Shape, TreePath};
use crate::tree::{Upper, Xattrs};
use erofs::Attributes;
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

struct Walker<'a> {
    upper: &'a mut Upper,
    spool: &'a mut Spool,
    /// First name of each file with several.
    linked: HashMap<(u64, u64), TreePath>,
    budget: Budget,
}

/// A name that is still to be looked at.
struct Pending {
    parent: Rc<OwnedFd>,
    name: Vec<u8>,
    path: TreePath,
}

/// Adds what a directory holds to a layer; how many entries that is.
pub(crate) fn read_directory(directory: &Path, upper: &mut Upper, spool: &mut Spool) -> Result<u64> {
    let root = fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::failed(directory.display().to_string(), std::io::Error::from(e)))?;
    let mut walker = Walker { upper, spool, linked: HashMap::new(), budget: Budget::default() };
    walker.walk(root).map_err(|e| e.in_layer(&directory.display().to_string()))?;
    Ok(walker.budget.entries())
}

impl Walker<'_> {
    fn walk(&mut self, root: OwnedFd) -> Result<()> {
        let stat = fs::fstat(&root).map_err(failed(&TreePath::default()))?;
        let xattrs = xattrs(&format!("/proc/self/fd/{}/.", root.as_raw_fd()), &TreePath::default())?;
        self.add(TreePath::default(), Kind::Directory, &stat, xattrs, None)?;
        self.spool.read_directory(root.try_clone().map_err(|e| Error::failed("opening the directory", e))?);
        let mut pending = Vec::new();
        push_names(Rc::new(root), &TreePath::default(), &mut pending)?;
        while let Some(next) = pending.pop() {
            self.visit(&next, &mut pending).map_err(|e| e.at(&next.path.to_bytes()))?;
        }
        Ok(())
    }

    fn visit(&mut self, at: &Pending, pending: &mut Vec<Pending>) -> Result<()> {
        let path = TreePath::clean(&at.path.to_bytes())?;
        let stat = fs::statat(&*at.parent, &at.name[..], AtFlags::SYMLINK_NOFOLLOW).map_err(failed(&path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Directory && stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)).cloned() {
                return self.add(path, Kind::HardLink(first), &stat, Xattrs::new(), None);
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.clone());
        }
        let mut from = format!("/proc/self/fd/{}/", at.parent.as_raw_fd()).into_bytes();
        from.extend_from_slice(&at.name);
        let (major, minor) = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
        let (kind, contents) = match kind {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let directory = fs::openat(&*at.parent, &at.name[..], flags, Mode::empty()).map_err(failed(&path))?;
                push_names(Rc::new(directory), &path, pending)?;
                (Kind::Directory, None)
            }
            FileType::RegularFile => {
                let (shape, number) = self.file(at, &stat)?;
                (Kind::File(shape), Some(number))
            }
            FileType::Symlink => {
                let target = fs::readlinkat(&*at.parent, &at.name[..], Vec::new()).map_err(failed(&path))?;
                (Kind::Symlink(target.into_bytes()), None)
            }
            FileType::CharacterDevice if (major, minor) != (0, 0) => (Kind::Char(major, minor), None),
            FileType::BlockDevice => (Kind::Block(major, minor), None),
            FileType::Fifo => (Kind::Fifo, None),
            FileType::CharacterDevice => return self.leave_out(&path, "a device 0:0"),
            FileType::Socket => return self.leave_out(&path, "a socket"),
            _ => return self.leave_out(&path, "of an unknown type"),
        };
        let xattrs = xattrs(&from, &path)?;
        self.add(path, kind, &stat, xattrs, contents)
    }

    fn leave_out(&mut self, path: &TreePath, what: &str) -> Result<()> {
        self.upper.warn(format!("'{path}' is {what}: left out"));
        Ok(())
    }

    fn add(
        &mut self,
        path: TreePath,
        kind: Kind,
        stat: &Stat,
        mut xattrs: Xattrs,
        contents: Option<u32>,
    ) -> Result<()> {
        for name in crate::tree::keep_possible(&mut xattrs) {
            self.upper.warn(format!("'{path}': the attribute '{}' is left out", show(&name)));
        }
        let attributes = Attributes {
            mode: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stat.st_mtime,
            mtime_nsec: stat.st_mtime_nsec as u32,
            xattrs,
        };
        let entry = Entry { path, kind, attributes };
        self.budget.charge(&entry, self.upper.paths())?;
        self.upper.add(entry, contents)
    }

    /// Only of a file with holes the bytes are copied now, and it must look as it did when that is done.
    fn file(&mut self, at: &Pending, stat: &Stat) -> Result<(Shape, u32)> {
        let size = stat.st_size as u64;
        let open = || {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            fs::openat(&*at.parent, &at.name[..], flags, Mode::empty()).map_err(failed(&at.path))
        };
        let sparse = (stat.st_blocks as u64) * 512 < size;
        let opened = sparse.then(open).transpose()?;
        let map = opened.as_ref().map_or(Ok(None), |file| extents(file, size)).map_err(failed(&at.path))?;
        if map.is_none()
            && let Some(number) = self.spool.add_file(&at.path.to_bytes(), stat)?
        {
            return Ok((Shape { size, map }, number));
        }
        let shape = Shape { size, map };
        let whole = [Extent { offset: 0, length: size }];
        let pieces = shape.map.as_deref().unwrap_or(&whole).to_vec();
        let file = opened.map_or_else(open, Ok)?;
        let mut file = Pieces { file: File::from(file), pieces: pieces.into_iter(), left: 0 };
        let reading = |e| Error::failed(format!("reading '{}'", at.path), e);
        let number = self.spool.add(&shape, |buffer| file.read(buffer).map_err(reading))?;
        unchanged(&file.file, looks(stat)).map_err(reading)?;
        Ok((shape, number))
    }
}

/// Reads the stored pieces of a file one after the other.
struct Pieces {
    file: File,
    pieces: std::vec::IntoIter<Extent>,
    left: u64,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.left == 0 {
            let Some(piece) = self.pieces.next() else { return Ok(0) };
            fs::seek(&self.file, SeekFrom::Start(piece.offset))?;
            self.left = piece.length;
        }
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read(&mut buffer[..want])?;
        if count == 0 {
            return Err(std::io::Error::other("the file got shorter while it was read"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// The data of a file that may have holes; `None` if it has none.
fn extents(file: &OwnedFd, size: u64) -> rustix::io::Result<Option<Vec<Extent>>> {
    let (mut map, mut at) = (Vec::new(), 0);
    while at < size {
        let offset = match fs::seek(file, SeekFrom::Data(at)) {
            Ok(offset) => offset,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e),
        };
        let end = fs::seek(file, SeekFrom::Hole(offset))?.min(size);
        if offset >= end {
            break;
        }
        map.push(Extent { offset, length: end - offset });
        at = end;
    }
    let whole = map == [Extent { offset: 0, length: size }];
    Ok((!whole).then_some(map))
}

/// Puts a directory's names on the stack so that they come off in byte order.
fn push_names(directory: Rc<OwnedFd>, path: &TreePath, pending: &mut Vec<Pending>) -> Result<()> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&*directory).map_err(failed(path))? {
        let name = entry.map_err(failed(path))?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    let each = |name: Vec<u8>| Pending { parent: directory.clone(), path: path.join(&name), name };
    pending.extend(names.into_iter().map(each));
    Ok(())
}

/// All extended attributes of what a path's last name is, links not followed. None where the file system has none.
fn xattrs<P: rustix::path::Arg + Copy>(from: P, path: &TreePath) -> Result<Xattrs> {
    let mut names = vec![0; 64 << 10];
    let length = match fs::llistxattr(from, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(failed(path)(e)),
    };
    let mut all = Xattrs::new();
    let mut value = Vec::new();
    for name in names[..length].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        value.resize(64 << 10, 0);
        match fs::lgetxattr(from, name, &mut value[..]) {
            Ok(length) => drop(all.insert(name.to_vec(), value[..length].to_vec())),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(failed(path)(e)),
        }
    }
    Ok(all)
}

fn failed(path: &TreePath) -> impl FnOnce(Errno) -> Error {
    let what = format!("reading '{path}'");
    move |e| Error::failed(what, std::io::Error::from(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Merged;
    use erofs::{Kind as Node, Tree};
    use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

    #[test]
    fn a_directory_becomes_a_tree_with_links_holes_and_no_sockets() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::set_permissions(root.join("d"), std::fs::Permissions::from_mode(0o1751)).unwrap();
        std::fs::write(root.join("d/.wh.f"), "text").unwrap();
        std::fs::hard_link(root.join("d/.wh.f"), root.join("second")).unwrap();
        symlink("/etc", root.join("link")).unwrap();
        let holes = File::create(root.join("holes")).unwrap();
        holes.write_all_at(b"end", 1 << 20).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();

        let (mut upper, mut spool) = (Upper::new(), Spool::new(root).unwrap());
        let entries = read_directory(root, &mut upper, &mut spool).unwrap();
        let settled = upper.settle(&Merged::new()).unwrap();
        let tree = settled.tree;
        let paths: Vec<_> = tree.walk().map(|visit| String::from_utf8(visit.path).unwrap()).collect();
        assert_eq!(paths, ["", "d", "d/.wh.f", "holes", "link", "second"]);
        assert_eq!(entries, 6);
        let d = tree.lookup(Tree::ROOT, b"d").unwrap();
        assert_eq!(tree.node(d).attributes.mode, 0o1751);
        assert_eq!(tree.lookup(d, b".wh.f"), tree.lookup(Tree::ROOT, b"second"));
        let link = tree.lookup(Tree::ROOT, b"link").unwrap();
        assert_eq!(tree.node(link).kind, Node::Symlink(b"/etc".to_vec()));
        assert!(settled.warnings.iter().any(|warning| warning.contains("'socket'")));
        assert!(spool.stored() < 1 << 19);
    }
}
