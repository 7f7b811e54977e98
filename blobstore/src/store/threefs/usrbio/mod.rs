//! Ranges of files on a 3FS mount read by 3FS's own process, through its user-space library ([`sys`]): past the kernel and
//! its limit on one read.
//!
//! A few rings, each used by one reader at a time; a range goes through in pieces, a ring's memory full at a time, and is
//! copied out. A ring of which a request did not come back is lost with its memory, and replaced; after a few of them
//! ranges are read directly ([`Direct`]): 3FS's own process is not well, or was started anew and knows no rings.
//! Whoever waits for a ring or an answer has a deadline.

#[allow(unsafe_code)]
mod sys;

use super::super::file::descriptors::{Descriptors, open_object};
use super::direct::Direct;
use bytes::Bytes;
use lru::LruCache;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::{Api, Piece, Registered, Ring};

/// Readers that are served at once.
const RINGS: usize = 8;

/// Rings that may be lost before they are given up: of their memory that stays taken.
const LOST_MAX: usize = 8;

/// One request.
const PIECE: usize = 512 << 10;

/// Requests of one ring at once: 8 MiB of memory.
const ENTRIES: u16 = 16;

/// How long a request, or the wait for a ring, may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Registered files that are kept: as many as descriptors.
const KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// See the module.
pub(super) struct Usrbio {
    api: Api,
    root: PathBuf,
    descriptors: Descriptors,
    /// By the address of the open file, which the entry itself keeps from being another's.
    registered: Mutex<LruCache<usize, Arc<Registered>>>,
    rings: Mutex<Rings>,
    returned: Condvar,
    /// For when the rings are given up.
    direct: Direct,
}

#[derive(Default)]
struct Rings {
    idle: Vec<Ring>,
    /// Idle or in use.
    made: usize,
    /// Of which a request did not come back.
    lost: usize,
    mount: Option<CString>,
}

impl Usrbio {
    /// Loads the library. Of the mount nothing is asked before the first read: it may come later.
    pub(super) fn new(library: &Path, root: &Path) -> Result<Self, String> {
        Ok(Self {
            api: Api::load(library)?,
            root: root.to_owned(),
            descriptors: Descriptors::opening_with(open_object),
            registered: Mutex::new(LruCache::new(KEPT)),
            rings: Mutex::default(),
            returned: Condvar::new(),
            direct: Direct::new(),
        })
    }

    /// The bytes of a range, or the file's size where the range reaches past it.
    pub(super) fn read(&self, path: &Path, range: Range<u64>) -> io::Result<Result<Bytes, u64>> {
        if self.lock().lost >= LOST_MAX {
            return self.direct.read(path, range);
        }
        let (file, size) = self.descriptors.get(path)?;
        if range.start > range.end || range.end > size {
            return Ok(Err(size));
        }
        if range.is_empty() {
            return Ok(Ok(Bytes::new()));
        }
        let file = self.register(file)?;
        let Some(mut ring) = self.take()? else { return self.direct.read(path, range) };
        let read = read_with(&mut ring, &file, range);
        self.give_back(ring);
        read.map(Ok)
    }

    fn register(&self, file: Arc<File>) -> io::Result<Arc<Registered>> {
        let address = Arc::as_ptr(&file).addr();
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = registered.get(&address) {
            return Ok(known.clone());
        }
        let new = Arc::new(self.api.register(file)?);
        registered.put(address, new.clone());
        Ok(new)
    }

    /// A ring that nobody else uses; one is made where there are not all yet. `None` when they are given up.
    fn take(&self) -> io::Result<Option<Ring>> {
        let end = Instant::now() + LIMIT;
        let mut rings = self.lock();
        loop {
            if rings.lost >= LOST_MAX {
                return Ok(None);
            }
            if let Some(ring) = rings.idle.pop() {
                return Ok(Some(ring));
            }
            if rings.made < RINGS {
                return self.make(&mut rings).map(Some);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "too many reads before this one"));
            }
            rings = self.returned.wait_timeout(rings, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn make(&self, rings: &mut Rings) -> io::Result<Ring> {
        if rings.mount.is_none() {
            rings.mount = self.api.mount_point(&self.root);
        }
        let none = || io::Error::other(format!("{} is on no 3FS mount, says its library", self.root.display()));
        let mount = rings.mount.as_ref().ok_or_else(none)?;
        let ring = Ring::new(&self.api, mount, PIECE * usize::from(ENTRIES), ENTRIES)?;
        rings.made += 1;
        Ok(ring)
    }

    fn give_back(&self, ring: Ring) {
        let mut rings = self.lock();
        let mut given_up = Vec::new();
        match ring.is_broken() {
            true => {
                rings.made -= 1;
                rings.lost += 1;
                if rings.lost == LOST_MAX {
                    tracing::warn!(root = %self.root.display(), "3FS's process does not answer: it is read directly");
                }
            }
            false => rings.idle.push(ring),
        }
        let lost = rings.lost >= LOST_MAX;
        if lost {
            given_up = std::mem::take(&mut rings.idle);
            rings.made -= given_up.len();
        }
        drop(rings);
        drop(given_up);
        match lost {
            // Those who wait are to go another way.
            true => self.returned.notify_all(),
            false => self.returned.notify_one(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        // Every state of it is a good one, also that left by a panic.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ring's memory full at a time.
fn read_with(ring: &mut Ring, file: &Registered, range: Range<u64>) -> io::Result<Bytes> {
    // Fits: it is at most the length of a file whose bytes are about to be in memory.
    let length = (range.end - range.start) as usize;
    let mut body = Vec::with_capacity(length);
    while body.len() < length {
        let round = (length - body.len()).min(PIECE * usize::from(ENTRIES));
        let piece =
            |at: usize| Piece { at, offset: range.start + (body.len() + at) as u64, length: PIECE.min(round - at) };
        let pieces: Vec<Piece> = (0..round).step_by(PIECE).map(piece).collect();
        let came = ring.read(file, &pieces, LIMIT)?;
        // What is short at the first short piece is asked for again; where nothing comes, the file has ended.
        for (piece, came) in pieces.iter().zip(came) {
            body.extend_from_slice(ring.memory(piece.at..piece.at + came));
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if came < piece.length {
                break;
            }
        }
    }
    Ok(body.into())
}

impl fmt::Debug for Usrbio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Usrbio").field("root", &self.root).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// With the stand-in that `tests/store_usrbio.rs` explains.
    #[test]
    fn a_ring_whose_request_does_not_come_back_is_not_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/usrbio.c");
        let (library, mount) = (dir.path().join("usrbio.so"), format!("-DMOUNT=\"{}\"", dir.path().display()));
        let mut cc = Command::new("cc");
        let Ok(status) = cc.args(["-shared", "-fPIC", "-pthread", &mount, "-o"]).arg(&library).arg(source).status()
        else {
            println!("SKIPPED: needs cc");
            return;
        };
        assert!(status.success());
        std::fs::write(dir.path().join("x.never"), [0; 1000]).unwrap();
        std::fs::write(dir.path().join("y"), [7; 1000]).unwrap();
        let usrbio = Usrbio::new(&library, dir.path()).unwrap();
        let lose = |mut ring: Ring| {
            let piece = [Piece { at: 0, offset: 0, length: 1000 }];
            let never = usrbio.register(usrbio.descriptors.get(&dir.path().join("x.never")).unwrap().0).unwrap();
            let error = ring.read(&never, &piece, Duration::from_millis(20)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(ring.is_broken() && ring.read(&never, &piece, LIMIT).is_err());
            usrbio.give_back(ring);
        };
        let read = || {
            assert_eq!(usrbio.read(&dir.path().join("y"), 1..999).unwrap().unwrap(), vec![7; 998]);
            assert_eq!(usrbio.read(&dir.path().join("y"), 1..1001).unwrap().unwrap_err(), 1000);
        };
        for _ in 1..LOST_MAX {
            lose(usrbio.take().unwrap().unwrap());
            read();
        }
        let count = |count: fn(&Rings) -> usize| count(&usrbio.lock());
        assert_eq!((count(|rings| rings.made), count(|rings| rings.lost)), (1, LOST_MAX - 1));
        // Another is idle when the last is lost that may be, and one more is in use.
        let three = [(); 3].map(|()| usrbio.take().unwrap().unwrap());
        let [idle, last, used] = three;
        usrbio.give_back(idle);
        lose(last);
        assert!(usrbio.take().unwrap().is_none());
        read();
        usrbio.give_back(used);
        assert_eq!((count(|rings| rings.made), count(|rings| rings.idle.len())), (0, 0), "none is kept, and none made");
    }
}
