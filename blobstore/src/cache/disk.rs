//! What the chunk cache asks of a directory: the seam at which tests put a disk that fails, or forgets what was not
//! synced.
//!
//! What a file was given is durable once [`DiskFile::sync`] has returned; that a name exists, or no longer does, once
//! [`Disk::sync`] has. Nothing else is assumed of the order in which anything reaches the disk.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory of files.
pub(super) trait Disk: Debug + Send + Sync {
    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Opens a file that is there.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Makes a file; one that is there is an error.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, and takes it from the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; who has it open can go on reading.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes the names durable.
    fn sync(&self) -> io::Result<()>;
    /// Bytes that may still be written.
    fn free(&self) -> io::Result<u64>;
    /// All bytes, free or not.
    fn size(&self) -> io::Result<u64>;
    /// Where it is, for messages.
    fn path(&self) -> &Path;
}

/// An open file.
#[allow(clippy::len_without_is_empty)]
pub(super) trait DiskFile: Debug + Send + Sync {
    /// Bytes of it.
    fn len(&self) -> io::Result<u64>;
    /// Fills `bytes` from `offset`.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts it, or makes it longer by zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Makes its content durable.
    fn sync(&self) -> io::Result<()>;
}

/// A real directory.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes the directory if it is missing.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self(path.to_owned()))
    }

    fn file(&self, options: &mut OpenOptions, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(options.read(true).write(true).open(self.0.join(name))?))
    }
}

impl Disk for Directory {
    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.0)?.filter_map(|entry| entry.map(|e| e.file_name().into_string().ok()).transpose()).collect()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        match self.file(&mut OpenOptions::new(), name) {
            // A file system that an error has made read-only still has chunks to read.
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(Box::new(File::open(self.0.join(name))?)),
            file => file,
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        match self.file(OpenOptions::new().create_new(true), name) {
            // Somebody may have emptied the cache while we run.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.0)?;
                self.file(OpenOptions::new().create_new(true), name)
            }
            file => file,
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn free(&self) -> io::Result<u64> {
        let fs = rustix::fs::statvfs(&self.0)?;
        Ok(fs.f_bavail.saturating_mul(fs.f_frsize))
    }

    fn size(&self) -> io::Result<u64> {
        let fs = rustix::fs::statvfs(&self.0)?;
        Ok(fs.f_blocks.saturating_mul(fs.f_frsize))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        File::set_len(self, length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
