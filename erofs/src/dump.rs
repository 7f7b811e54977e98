//! An image as text, for people and for tests that compare images.

use std::collections::HashSet;
use std::fmt::{self, Write};

use crate::ReadError;
use crate::format::Dirent;
use crate::inode::Inode;
use crate::read::Image;
use crate::{Content, FileType};

/// Lists an image, one line a name, a directory before what is in it, siblings in byte order:
///
/// ```text
/// drwxr-xr-x 2 0:0 59 1700000000.000000000 /etc
/// -rw-r--r-- 1 0:0 11 1700000000.000000000 /etc/hosts @12
///     security.selinux="system_u:object_r:net_conf_t:s0\x00"
/// lrwxrwxrwx 1 0:0 7 1700000000.000000000 /bin -> usr/bin
/// ```
///
/// Type and permissions, links, owner and group, size (of devices: major, minor), modification time, path; then the
/// target of a symlink, or the first data block of contents (with holes: `chunk size:blocks`, `-` for a hole). Extended
/// attributes follow on lines of their own. Bytes that are not printable ASCII are escaped as in Rust.
///
/// # Errors
/// Broken metadata, in [`Ok`] of the outer result; of `out`, in the outer.
pub fn dump(image: &Image<'_>, out: &mut impl Write) -> Result<Result<(), ReadError>, fmt::Error> {
    let mut dump = Dump { image, seen: HashSet::new(), entries: image.bytes().len() / Dirent::SIZE };
    let mut waiting = match image.root() {
        Ok(root) => vec![(root, Vec::new())],
        Err(error) => return Ok(Err(error)),
    };
    while let Some((inode, path)) = waiting.pop() {
        match dump.describe(&inode, &path) {
            Ok(text) => out.write_str(&text)?,
            Err(error) => return Ok(Err(error)),
        }
        if let Err(error) = dump.open(&inode, &path, &mut waiting) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

struct Dump<'a> {
    image: &'a Image<'a>,
    seen: HashSet<u64>,
    /// How many more entries there can be: no two of an honest image share their bytes.
    entries: usize,
}

impl Dump<'_> {
    /// Puts a directory's entries on the list, the first on top.
    fn open(&mut self, inode: &Inode, path: &[u8], waiting: &mut Vec<(Inode, Vec<u8>)>) -> Result<(), ReadError> {
        if inode.file_type != FileType::Directory {
            return Ok(());
        }
        if !self.seen.insert(inode.nid) {
            return Err(ReadError::Corrupt("a directory with two names"));
        }
        let first = waiting.len();
        for entry in self.image.entries(inode)? {
            let entry = entry?;
            self.entries = self.entries.checked_sub(1).ok_or(ReadError::Corrupt("directories that share blocks"))?;
            if entry.name != b"." && entry.name != b".." {
                waiting.push((self.image.inode(entry.nid)?, [path, b"/", entry.name].concat()));
            }
        }
        waiting[first..].reverse();
        Ok(())
    }

    fn describe(&self, inode: &Inode, path: &[u8]) -> Result<String, ReadError> {
        let path = if path.is_empty() { b"/" } else { path };
        let (major, minor) = inode.device();
        let size = match inode.file_type {
            FileType::Char | FileType::Block => format!("{major},{minor}"),
            _ => inode.size.to_string(),
        };
        let detail = match inode.file_type {
            FileType::Symlink => format!(" -> {}", self.image.readlink(inode)?.escape_ascii()),
            FileType::File => contents(&self.image.content(inode)?),
            _ => String::new(),
        };
        let Inode { nlink, uid, gid, mtime, mtime_nsec, .. } = inode;
        let mode = mode_text(inode);
        let path = path.escape_ascii();
        let mut text = format!("{mode} {nlink} {uid}:{gid} {size} {mtime}.{mtime_nsec:09} {path}{detail}\n");
        let mut xattrs = self.image.xattrs(inode)?;
        xattrs.sort_unstable();
        for (name, value) in xattrs {
            text += &format!("    {}=\"{}\"\n", name.escape_ascii(), value.escape_ascii());
        }
        Ok(text)
    }
}

fn contents(content: &Content) -> String {
    match content {
        Content::Plain { size: 0, .. } => String::new(),
        Content::Plain { start, .. } => format!(" @{start}"),
        Content::Sparse { chunk_bits, chunks, .. } => {
            let places: Vec<_> =
                chunks.iter().map(|start| start.map_or("-".into(), |start| start.to_string())).collect();
            format!(" @{}:{}", 4096_u64 << chunk_bits, places.join(","))
        }
    }
}

/// As `ls -l` has it.
fn mode_text(inode: &Inode) -> String {
    let kind = match inode.file_type {
        FileType::File => '-',
        FileType::Directory => 'd',
        FileType::Char => 'c',
        FileType::Block => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = inode.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (inode.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}
