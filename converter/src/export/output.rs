//! Where an export goes, so that nothing half-done looks whole: a file under another name until it is complete, a new
//! directory as well.

use crate::error::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, TempDir};

const PREFIX: &str = ".lamina-export-";

/// A file that gets its name when it is complete, in place of what had it.
#[derive(Debug)]
pub(super) struct NewFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// One that is to be `path`.
    ///
    /// # Errors
    /// Also where something else than a file is there: a device must not be replaced.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::failed(path.display().to_string(), e);
        let path = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => path.canonicalize().map_err(failed)?,
            _ => path.to_owned(),
        };
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Err(failed(io::Error::other("it exists, and is not a file"))),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        // What the umask leaves, as with any new file.
        let permissions = fs::Permissions::from_mode(0o666);
        let temporary = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(permissions)
            .tempfile_in(parent(&path))
            .map_err(failed)?;
        Ok(Self { temporary, path })
    }

    pub(super) fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Gives it its name.
    pub(super) fn finish(self) -> Result<()> {
        let failed = |e: io::Error| Error::failed(self.path.display().to_string(), e);
        self.temporary.as_file().sync_all().map_err(failed)?;
        self.temporary.persist(&self.path).map(drop).map_err(|e| failed(e.error))
    }
}

/// A directory to be filled.
#[derive(Debug)]
pub(super) enum NewDirectory {
    /// One that gets its name when it is complete.
    Made {
        /// Under another name, removed unless it gets its own.
        temporary: TempDir,
        /// What it is to be.
        path: PathBuf,
    },
    /// An empty one that was there: perhaps where something is mounted, so that it cannot be replaced.
    Found(PathBuf),
}

impl NewDirectory {
    /// One that is to be, or is, `path`.
    ///
    /// # Errors
    /// Also where it exists and is not an empty directory.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::failed(path.display().to_string(), e);
        match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                None => Ok(Self::Found(path.to_owned())),
                Some(_) => Err(failed(io::Error::other("the directory is not empty"))),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if path.is_symlink() {
                    return Err(failed(io::Error::other("it is a link that leads nowhere")));
                }
                // Without the slashes that it may end in: a rename wants a name.
                let path: PathBuf = path.components().collect();
                let temporary = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent(&path)).map_err(failed)?;
                Ok(Self::Made { temporary, path })
            }
            Err(e) => Err(failed(e)),
        }
    }

    pub(super) fn open(&self) -> Result<OwnedFd> {
        let path = match self {
            Self::Made { temporary, .. } => temporary.path(),
            Self::Found(path) => path,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Error::failed(path.display().to_string(), io::Error::from(e)))
    }

    /// Gives it its name.
    pub(super) fn finish(self) -> Result<()> {
        let Self::Made { temporary, path } = self else { return Ok(()) };
        let renamed = rustix::fs::renameat_with(CWD, temporary.path(), CWD, &path, RenameFlags::NOREPLACE);
        match renamed {
            Ok(()) => {
                let _ = temporary.keep();
                Ok(())
            }
            Err(Errno::EXIST) => {
                Err(Error::failed(path.display().to_string(), "it was made by somebody else meanwhile"))
            }
            Err(e) => Err(Error::failed(path.display().to_string(), io::Error::from(e))),
        }
    }

    /// Says what a failure leaves behind: of a directory of our own, nothing.
    pub(super) fn unfinished(&self, error: Error) -> Error {
        let Self::Found(path) = self else { return error };
        match error {
            Error::Failed { what, source } => {
                Error::Failed { what: format!("{} is unfinished: {what}", path.display()), source }
            }
            refused => refused,
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
