//! A blob of a repository as a stream for blocking readers.
//!
//! A task fetches ahead into a channel of a few pieces, so memory is bounded and network and reader work at once. A
//! connection that breaks is taken up where it broke; patience begins again with every byte. The digest is the reader's to
//! check; where mirrors may have given bytes, and the blob is read from its start, it is checked here too, before the last
//! piece: what comes of them is an error then, and `ledger` knows whose.

use super::Repository;
use super::repository::Part;
use super::retry::Tries;
use super::trouble::Trouble;
use crate::error::Error;
use blobstore::refs::Digest;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::io;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Pieces that wait for the reader; each is what one read of the connection gave, half a megabyte at most.
const AHEAD: usize = 16;

type Piece = Result<Bytes, Error>;

/// The stream. Not for the runtime's own threads.
pub(crate) struct Download {
    state: State,
    rest: Bytes,
    /// Bytes that are still to come.
    left: u64,
}

enum State {
    Waiting(Box<Plan>),
    Running(Receiver<Piece>),
    /// By an error, which is given again to who asks again.
    Failed(Error),
    Ended,
}

/// What came so far.
struct Came {
    /// The next byte.
    at: u64,
    /// Of all before that, where it is checked here.
    hasher: Option<Sha256>,
    /// The mirror that gave the last of it.
    mirror: Option<usize>,
}

struct Plan {
    repository: Repository,
    digest: Digest,
    size: u64,
    from: u64,
    runtime: Handle,
}

impl Repository {
    /// A blob from the byte `from` on, not verified; fetched once it is read, by tasks of `runtime`.
    pub(crate) fn blob(&self, digest: &Digest, size: u64, from: u64, runtime: Handle) -> Download {
        let plan = Plan { repository: self.clone(), digest: *digest, size, from, runtime };
        Download { state: State::Waiting(Box::new(plan)), rest: Bytes::new(), left: size.saturating_sub(from) }
    }
}

impl Plan {
    fn run(self) -> Receiver<Piece> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let runtime = self.runtime.clone();
        runtime.spawn(async move {
            if let Err(trouble) = self.fetch(&sender).await {
                let error = trouble.into_error(&self.repository.givers(&self.digest));
                // Nobody listens any more: then nobody wants to know.
                let _ = sender.send(Err(error)).await;
            }
        });
        receiver
    }

    async fn fetch(&self, to: &Sender<Piece>) -> Result<(), Trouble> {
        let checked = self.from == 0 && self.repository.has_mirrors();
        let mut came = Came { at: self.from, hasher: checked.then(Sha256::new), mirror: None };
        let mut tries = Tries::default();
        if self.from == 0 {
            self.repository.ledger().begin(&self.digest);
        }
        while came.at < self.size {
            let before = came.at;
            let Err(trouble) = self.fetch_on(&mut came, to).await else { return Ok(()) };
            match came.mirror.take() {
                // It answers, and gives nothing.
                Some(mirror) if came.at == before => {
                    self.repository.leave_out(&self.digest, mirror, &trouble);
                    continue;
                }
                _ if came.at > before => tries.progress(),
                _ => {}
            }
            tries.pause(trouble).await?;
        }
        Ok(())
    }

    /// One connection's worth. Good only when everything came, or nobody wants it any more.
    async fn fetch_on(&self, came: &mut Came, to: &Sender<Piece>) -> Result<(), Trouble> {
        let Part { mut response, mut skip, mirror } =
            self.repository.blob_from(&self.digest, self.size, came.at).await?;
        came.mirror = mirror;
        while let Some(mut piece) = response.chunk().await? {
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            skip -= known as u64;
            let piece = piece.split_off(known);
            if piece.is_empty() {
                continue;
            }
            self.take(came, &piece)?;
            if to.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
        let Came { at, .. } = came;
        match *at < self.size {
            true => Err(Trouble::passing(format!("blob {} ended after {at} of {} bytes", self.digest, self.size))),
            false => Ok(()),
        }
    }

    /// Looks at a piece before it is given on.
    fn take(&self, came: &mut Came, piece: &[u8]) -> Result<(), Trouble> {
        let Self { repository, digest, size, .. } = self;
        if let Some(mirror) = came.mirror {
            repository.ledger().gives(digest, mirror);
        }
        came.at += piece.len() as u64;
        if came.at > *size {
            return Err(Trouble::Refused(format!("blob {digest} has more than its {size} bytes")));
        }
        let Some(hasher) = &mut came.hasher else { return Ok(()) };
        hasher.update(piece);
        if came.at < *size {
            return Ok(());
        }
        let found = Digest::from_bytes(std::mem::take(hasher).finalize().into());
        if found != *digest {
            return Err(Trouble::Refused(format!("digest mismatch: blob {digest} came with the digest {found}")));
        }
        repository.ledger().verified(digest);
        Ok(())
    }
}

impl io::Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            // Ended, unless a piece comes.
            let mut pieces = match std::mem::replace(&mut self.state, State::Ended) {
                State::Waiting(plan) => plan.run(),
                State::Running(pieces) => pieces,
                State::Failed(error) => {
                    self.state = State::Failed(error.copy());
                    return Err(io::Error::other(error));
                }
                State::Ended => return Ok(0),
            };
            match pieces.blocking_recv() {
                Some(Ok(piece)) => {
                    self.left = self.left.saturating_sub(piece.len() as u64);
                    (self.rest, self.state) = (piece, State::Running(pieces));
                }
                Some(Err(error)) => self.state = State::Failed(error),
                None if self.left > 0 => {
                    self.state = State::Failed(Error::failed("fetching a blob", "its task ended early"));
                }
                None => {}
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
