//! The lock of a slot: one conversion at a time has it, says who it is, and that it goes on.
//!
//! A lock ends with its process, so nobody waits for the dead. A process can also hang or be stopped while it holds one. So
//! its progress is to be seen from outside, by the times of two files: the lock, which it touches while it reads, and the
//! layer file that it writes. Who waits for one that has shown no sign for [`STILL`] waits no longer. To be wrong about
//! that costs work and nothing else: a layer is made twice.

use super::LOCK;
use crate::build::PART;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a holder may show no sign of progress: more than it takes to decide on the tree of a layer of millions of
/// entries. A step without signs can take longer (a kept layer of many gigabytes that is verified, a registry that asks
/// for patience again and again): then others do the same work.
pub(super) const STILL: Duration = Duration::from_secs(300);

/// A lock is touched this often at most.
const SIGN: Duration = Duration::from_secs(1);

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock in a directory, which is made if need be; `None` where another has it. `stage` is where the holder
    /// writes its layer.
    pub(super) fn take(directory: &Path, stage: Option<&Path>) -> io::Result<Option<Self>> {
        loop {
            let opened = fs::create_dir_all(directory)
                .and_then(|()| File::options().write(true).create(true).truncate(false).open(directory.join(LOCK)));
            let file = match opened {
                // Its last holder has just removed it, or the directory when that had just been found.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
                        && directory.parent().is_some_and(Path::is_dir)
                        && fs::symlink_metadata(directory).map_or(true, |found| found.is_dir()) =>
                {
                    continue;
                }
                file => file?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                done => done?,
            }
            // A lock on a file that was removed meanwhile is none.
            let (ours, found) = (file.metadata()?, fs::metadata(directory.join(LOCK)));
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino())) {
                let lock = Self { file };
                // Where there is no room for it, its holder is not known. Who removes what takes the room needs a lock too.
                let _ = lock.sign_in(stage);
                return Ok(Some(lock));
            }
        }
    }

    /// Writes into the lock who holds it.
    fn sign_in(&self, stage: Option<&Path>) -> io::Result<()> {
        let host = rustix::system::uname();
        let stage = stage.map_or(String::new(), |stage| stage.display().to_string());
        let text = format!("{}\n{}\n{stage}", std::process::id(), host.nodename().to_string_lossy());
        self.file.set_len(0)?;
        self.file.write_all_at(text.as_bytes(), 0)
    }

    fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?)
    }
}

/// Who holds a lock, as far as that is known.
#[derive(Debug)]
pub(super) struct Holder {
    /// Process and host.
    who: Option<(String, String)>,
    /// What it touches while it goes on.
    signs: Vec<PathBuf>,
}

impl Holder {
    /// Of the lock in a directory.
    pub(super) fn of(directory: &Path) -> Self {
        let lock = directory.join(LOCK);
        let text = fs::read_to_string(&lock).unwrap_or_default();
        let mut lines = text.lines().map(str::to_owned).filter(|line| !line.is_empty());
        let who = lines.next().zip(lines.next());
        let part = lines.next().map(|stage| Path::new(&stage).join(PART));
        Self { who, signs: [lock].into_iter().chain(part).collect() }
    }

    /// How long it has shown no sign of progress.
    pub(super) fn still(&self) -> Duration {
        let last = self.signs.iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max();
        last.and_then(|last| last.elapsed().ok()).unwrap_or_default()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Some((process, host)) => write!(f, "process {process} on {host}"),
            None => f.write_str("a process that is not known"),
        }
    }
}

/// A reader that touches a lock as it goes on, for as long as the lock is held.
pub(crate) struct Signing<R> {
    inner: R,
    lock: Weak<Lock>,
    last: Option<Instant>,
}

impl<R> Signing<R> {
    pub(super) fn new(inner: R, lock: &Arc<Lock>) -> Self {
        Self { inner, lock: Arc::downgrade(lock), last: None }
    }
}

impl<R: Read> Read for Signing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if count > 0 && self.last.is_none_or(|last| last.elapsed() >= SIGN) {
            self.last = Some(Instant::now());
            // Without a sign others may take up the same work, and that is all.
            let _ = self.lock.upgrade().map(|lock| lock.touch());
        }
        Ok(count)
    }
}
