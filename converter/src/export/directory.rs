//! Into a directory of this machine: everything that a file system can hold, made as root.
//!
//! Nothing is followed: each directory is opened from the root's descriptor by a path that must not lead through a link or
//! a mount's border upwards, and names are made exclusively in it. Directories get their attributes last, since what is
//! made in them changes their times. Until then they are root's alone.

use super::Work;
use super::attributes::{apply, failed, named};
use super::view::View;
use crate::error::{Error, Result, show};
use crate::stored::runs;
use erofs::{Content, Kind, NodeId, Tree};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Fills an empty directory with a tree; what was left out.
pub(super) fn write(view: &View, work: &mut Work<'_>, root: BorrowedFd<'_>) -> Result<Vec<String>> {
    forget_access_lists(root)?;
    let mut filler = Filler { view, root, first: HashMap::new(), warnings: Vec::new() };
    let (mut open, mut made) = (vec![(Vec::new(), Tree::ROOT)], Vec::new());
    while let Some((path, id)) = open.pop() {
        let directory = filler.open(&path)?;
        for (name, child) in view.tree.children(id) {
            let path = if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
            filler.make(directory.as_fd(), name, &path, child, work)?;
            if view.tree.is_directory(child) {
                open.push((path, child));
            }
        }
        made.push((path, id));
    }
    for (path, id) in made.iter().rev() {
        let directory = filler.open(path)?;
        filler.apply(directory.as_fd(), path, *id)?;
    }
    Ok(filler.warnings)
}

/// A directory hands its default access list to what is made in it; the tree brings its own.
fn forget_access_lists(root: BorrowedFd<'_>) -> Result<()> {
    use rustix::io::Errno;
    for name in ["system.posix_acl_default", "system.posix_acl_access"] {
        match fs::fremovexattr(root, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(failed(b"", "removing its access list", e)),
        }
    }
    Ok(())
}

struct Filler<'a> {
    view: &'a View,
    root: BorrowedFd<'a>,
    /// First name of each node that is no directory.
    first: HashMap<NodeId, Vec<u8>>,
    warnings: Vec<String>,
}

impl Filler<'_> {
    fn open(&self, path: &[u8]) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let at = if path.is_empty() { b"." } else { path };
        fs::openat2(self.root, at, flags, Mode::empty(), resolve).map_err(|e| failed(path, "opening it", e))
    }

    /// Makes what stands under a name; a directory's attributes are left for later.
    fn make(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        id: NodeId,
        work: &mut Work<'_>,
    ) -> Result<()> {
        if let Some(first) = self.first.get(&id) {
            return self.link(first, directory, name, path);
        }
        let (private, making) = (Mode::RUSR | Mode::WUSR, |e| failed(path, "making it", e));
        let node =
            |kind, major, minor| fs::mknodat(directory, name, kind, private, fs::makedev(major, minor)).map_err(making);
        match &self.view.tree.node(id).kind {
            Kind::Directory => return fs::mkdirat(directory, name, Mode::RWXU).map_err(making),
            Kind::File(content) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(fs::openat(directory, name, flags, private).map_err(making)?);
                fill(&file, content, self.view.layer_of(id), path, work)?;
                self.apply(file.as_fd(), path, id)?;
                self.first.insert(id, path.to_vec());
                return Ok(());
            }
            Kind::Symlink(target) => fs::symlinkat(&target[..], directory, name).map_err(making)?,
            // An overlay shows no whiteout; where one layer is exported, neither does this.
            Kind::Char(0, 0) => return Ok(()),
            Kind::Char(major, minor) => node(FileType::CharacterDevice, *major, *minor)?,
            Kind::Block(major, minor) => node(FileType::BlockDevice, *major, *minor)?,
            Kind::Fifo => node(FileType::Fifo, 0, 0)?,
            Kind::Socket => node(FileType::Socket, 0, 0)?,
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(directory, name, flags, Mode::empty()).map_err(making)?;
        self.apply(made.as_fd(), path, id)?;
        self.first.insert(id, path.to_vec());
        Ok(())
    }

    fn link(&self, first: &[u8], directory: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<()> {
        let slash = first.iter().rposition(|&b| b == b'/');
        let (parent, old) = slash.map_or((&first[..0], first), |slash| (&first[..slash], &first[slash + 1..]));
        let parent = self.open(parent)?;
        fs::linkat(&parent, old, directory, name, AtFlags::empty())
            .map_err(|e| failed(path, &format!("linking it to '{}'", show(first)), e))
    }

    fn apply(&mut self, file: BorrowedFd<'_>, path: &[u8], id: NodeId) -> Result<()> {
        let node = self.view.tree.node(id);
        for name in apply(file, &node.attributes, &node.kind, path)? {
            let (path, name) = (named(path), show(&name));
            self.warnings.push(format!("{path}: the attribute {name} is left out: Linux shows it on no such file"));
        }
        Ok(())
    }
}

/// Writes a file's contents; holes stay holes.
fn fill(file: &File, content: &Content, layer: usize, path: &[u8], work: &mut Work<'_>) -> Result<()> {
    let failed = |e| Error::failed(format!("{}: writing it", named(path)), e);
    for run in runs(content) {
        let mut at = run.offset;
        work.read(layer, &run, &mut |bytes| {
            file.write_all_at(bytes, at).map_err(failed)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
    }
    file.set_len(content.size()).map_err(failed)
}
