//! What is mounted: `/proc/self/mountinfo`, which is the truth about mounts. Nothing else is remembered of them.
//!
//! Reading it touches no file system but proc, so it never waits for our own daemon.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One line of mountinfo, proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLine {
    /// Mount ID, as statx(2) has it too.
    pub(crate) id: u64,
    /// Minor number of the st_dev of the files on it: for FUSE, the connection's number.
    pub(crate) minor: u32,
    /// Which directory or file of the file system is shown: `/` is all of it, else it is part of it, bound by somebody.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) target: PathBuf,
    /// Type of the file system.
    pub(crate) fs_type: String,
    /// What is mounted: for EROFS the metadata file, or the loop device that shows it.
    pub(crate) source: PathBuf,
}

/// All mounts of this mount namespace, in the order of the kernel's list.
pub(crate) fn mounts() -> io::Result<Vec<MountLine>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at exactly `target`.
pub(crate) fn at<'a>(mounts: &'a [MountLine], target: &Path) -> Option<&'a MountLine> {
    mounts.iter().rev().find(|m| m.target == target)
}

/// The metadata file of the layer that a mount shows, if it is an EROFS mount of a file in `cache`.
pub(crate) fn layer_metadata(mount: &MountLine, cache: &Path) -> Option<PathBuf> {
    if mount.fs_type != "erofs" {
        return None;
    }
    backing_file(&mount.source).filter(|file| file.starts_with(cache))
}

/// The file behind an EROFS mount's source: the file itself, or what the loop device shows.
fn backing_file(source: &Path) -> Option<PathBuf> {
    let name = source.to_str()?;
    let Some(number) = name.strip_prefix("/dev/loop") else { return Some(source.to_owned()) };
    let text = std::fs::read(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    // A head that was found damaged was replaced under the mount, which goes on showing the old one.
    let text = text.strip_suffix(b" (deleted)").unwrap_or(text);
    Some(PathBuf::from(OsString::from_vec(text.to_vec())))
}

/// Where an overlay is mounted that writes to this directory, a path without links: a second one would write beside the first
/// without seeing what that has in memory, and the kernel only logs a word about it.
pub(crate) fn overlay_of(upper: &Path) -> io::Result<Option<PathBuf>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = text.split(|b| *b == b'\n');
    Ok(lines.find(|line| writes_to(line, upper)).and_then(parse).map(|mount| mount.target))
}

/// Whether a line of mountinfo is of an overlay with this option `upperdir`: as it was given, with overlayfs's own escapes.
fn writes_to(line: &[u8], upper: &Path) -> bool {
    let options = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
    let given = options.split(|b| *b == b',').find_map(|option| option.strip_prefix(b"upperdir="));
    let Some(given) = given.map(path) else { return false };
    given == upper || given.as_os_str().as_bytes() == super::kernel::escape(upper)
}

fn parse(line: &[u8]) -> Option<MountLine> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let text = |i: usize| fields.get(i).and_then(|f| std::str::from_utf8(f).ok());
    let (_, minor) = text(2)?.split_once(':')?;
    Some(MountLine {
        id: text(0)?.parse().ok()?,
        minor: minor.parse().ok()?,
        root: path(fields.get(3)?),
        target: path(fields.get(4)?),
        fs_type: text(dash + 1)?.to_owned(),
        source: path(fields.get(dash + 2)?),
    })
}

/// Undoes the kernel's escapes: blank, tab, newline and backslash stand as three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let value = octal.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        match value {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_optional_fields_and_escapes_is_read() {
        let line = br"57 24 0:48 / /var/my\040dir rw,relatime shared:25 master:1 - erofs /c/heads/abcd ro,user_xattr";
        let m = parse(line).unwrap();
        assert_eq!((m.id, m.minor), (57, 48));
        assert_eq!((m.root.as_path(), m.target.as_path()), (Path::new("/"), Path::new("/var/my dir")));
        assert_eq!((m.fs_type.as_str(), m.source.as_path()), ("erofs", Path::new("/c/heads/abcd")));
    }

    #[test]
    fn the_directory_that_an_overlay_writes_to_is_found_under_its_escapes() {
        let line = br"45 27 0:39 / /m rw - overlay overlay rw,lowerdir=l,upperdir=/u\134\054p\134:p\134\134x\040y/fs,workdir=/w";
        assert!(writes_to(line, Path::new(r"/u,p:p\x y/fs")) && !writes_to(line, Path::new("/w")));
        assert!(writes_to(b"1 2 0:3 / /m rw - overlay overlay rw,upperdir=/a/fs,uuid=on", Path::new("/a/fs")));
        assert!(!writes_to(b"", Path::new("/a/fs")));
    }

    #[test]
    fn a_broken_line_is_passed_over() {
        assert_eq!(parse(b"57 24 0:48 / /x rw"), None);
        assert_eq!(parse(b""), None);
    }
}
