//! Files of a directory that are read when their bytes are wanted, and not before.
//!
//! Meanwhile a file can be changed, or replaced: what the first look at it showed, its place and times and size, must be what
//! the opened file shows after each read. So what is read of a file at several times is the same.

use crate::error::{Error, Result, show};
use rustix::fs::{Mode, OFlags, Stat, fstat, openat};
use std::cell::RefCell;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The kernel takes no longer path at once.
const PATH_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct DirectoryFiles {
    root: OwnedFd,
    files: Vec<Found>,
    /// The one that is being read.
    open: RefCell<Option<(u32, File)>>,
}

#[derive(Debug)]
struct Found {
    path: Box<[u8]>,
    looks: u64,
}

impl DirectoryFiles {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, files: Vec::new(), open: RefCell::new(None) }
    }

    /// The number of a regular file below the directory; `None` where no path leads to it.
    pub(super) fn add(&mut self, path: &[u8], stat: &Stat) -> Option<u32> {
        let number = u32::try_from(self.files.len()).ok()?;
        let possible = path.len() < PATH_MAX;
        possible.then(|| self.files.push(Found { path: path.into(), looks: looks(stat) }))?;
        Some(number)
    }

    /// Fills `buffer` with bytes of a file from `at` on.
    pub(super) fn read(&self, number: u32, buffer: &mut [u8], at: u64) -> Result<()> {
        let found = &self.files[number as usize];
        let failed = |e: io::Error| Error::failed(format!("reading '{}'", show(&found.path)), e);
        let mut open = self.open.borrow_mut();
        let file = match open.take() {
            Some((this, file)) if this == number => file,
            _ => self.open(found).map_err(failed)?,
        };
        let read = file.read_exact_at(buffer, at);
        unchanged(&file, found.looks).and(read).map_err(failed)?;
        *open = Some((number, file));
        Ok(())
    }

    fn open(&self, found: &Found) -> io::Result<File> {
        // A pipe that stands there now is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.root, &*found.path, flags, Mode::empty())?.into())
    }
}

/// An error where an opened file does not look as it did.
pub fn unchanged(file: impl AsFd, before: u64) -> io::Result<()> {
    match looks(&fstat(file)?) == before {
        true => Ok(()),
        false => Err(io::Error::other("it was changed while the directory was converted")),
    }
}

/// What a change of a file changes.
pub fn looks(stat: &Stat) -> u64 {
    let mut hasher = DefaultHasher::new();
    let times = (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    (stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, times).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, statat};

    #[test]
    fn a_file_that_does_not_look_as_it_did_is_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        std::fs::create_dir(path("d")).unwrap();
        for name in ["d/same", "d/longer", "d/replaced", "d/gone"] {
            std::fs::write(path(name), "before").unwrap();
        }
        let mut files = DirectoryFiles::new(File::open(temp.path()).unwrap().into());
        let mut add = |name: &str| {
            let stat = statat(&files.root, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            files.add(name.as_bytes(), &stat).unwrap()
        };
        let numbers = ["d/same", "d/longer", "d/replaced", "d/gone"].map(&mut add);
        std::fs::write(path("d/longer"), "longer").unwrap();
        std::fs::write(path("d/longer"), "longer than before").unwrap();
        std::fs::write(path("other"), "before").unwrap();
        std::fs::rename(path("other"), path("d/replaced")).unwrap();
        std::fs::remove_file(path("d/gone")).unwrap();
        let mut buffer = [0; 4];
        files.read(numbers[0], &mut buffer, 2).unwrap();
        assert_eq!(&buffer, b"fore");
        // While it is open.
        std::fs::write(path("d/same"), "not the same").unwrap();
        for (number, name) in numbers.into_iter().zip(["d/same", "d/longer", "d/replaced", "d/gone"]) {
            let error = files.read(number, &mut buffer, 0).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(files.add(&[b'x'; PATH_MAX], &statat(&files.root, "d", AtFlags::empty()).unwrap()).is_none());
    }
}
