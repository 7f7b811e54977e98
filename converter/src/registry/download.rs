//! A blob of a repository as a stream for blocking readers.
//!
//! A task fetches ahead into a channel of a few pieces, so memory is bounded and network and reader work at once. A
//! connection that breaks is taken up where it broke; patience begins again with every byte. The digest is the reader's to
//! check.

use super::Repository;
use super::retry::Tries;
use super::trouble::Trouble;
use crate::error::Error;
use blobstore::refs::Digest;
use bytes::Bytes;
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
}

enum State {
    Waiting(Box<Plan>),
    Running(Receiver<Piece>),
    Ended,
}

struct Plan {
    repository: Repository,
    digest: Digest,
    size: u64,
    from: u64,
    runtime: Handle,
}

/// A stream of the bytes from `from` on; nothing is asked before it is read.
pub(super) fn start(repository: Repository, digest: Digest, size: u64, from: u64, runtime: Handle) -> Download {
    let plan = Plan { repository, digest, size, from, runtime };
    Download { state: State::Waiting(Box::new(plan)), rest: Bytes::new() }
}

impl Plan {
    fn run(self) -> Receiver<Piece> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let runtime = self.runtime.clone();
        runtime.spawn(async move {
            if let Err(trouble) = self.fetch(&sender).await {
                let error = trouble.into_error(&self.repository.place());
                // Nobody listens any more: then nobody wants to know.
                let _ = sender.send(Err(error)).await;
            }
        });
        receiver
    }

    async fn fetch(&self, to: &Sender<Piece>) -> Result<(), Trouble> {
        let (mut at, mut tries) = (self.from, Tries::default());
        while at < self.size {
            let before = at;
            let Err(trouble) = self.fetch_on(&mut at, to).await else { return Ok(()) };
            if at > before {
                tries.progress();
            }
            tries.pause(trouble).await?;
        }
        Ok(())
    }

    /// One connection's worth. Good only when everything came, or nobody wants it any more.
    async fn fetch_on(&self, at: &mut u64, to: &Sender<Piece>) -> Result<(), Trouble> {
        let (mut response, mut skip) = self.repository.blob_from(&self.digest, *at).await?;
        while let Some(mut piece) = response.chunk().await? {
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            skip -= known as u64;
            let piece = piece.split_off(known);
            *at += piece.len() as u64;
            if !piece.is_empty() && to.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
        match *at < self.size {
            true => Err(Trouble::passing(format!("blob {} ended after {at} of {} bytes", self.digest, self.size))),
            false => Ok(()),
        }
    }
}

impl io::Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            // Ended, unless a piece comes.
            let mut pieces = match std::mem::replace(&mut self.state, State::Ended) {
                State::Waiting(plan) => plan.run(),
                State::Running(pieces) => pieces,
                State::Ended => return Ok(0),
            };
            if let Some(piece) = pieces.blocking_recv() {
                self.rest = piece.map_err(io::Error::other)?;
                self.state = State::Running(pieces);
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}
