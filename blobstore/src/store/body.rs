//! A body on its way over the network, of which is known how long it is to be.
//!
//! Handed over piece by piece as it comes, or collected. Every wait for a piece has an end; what is too short or too long
//! is an error in place of the piece that shows it. What the answer's head said is checked by who opened it.

use super::client::STALL;
use super::{Pieces, Result, StoreError};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use std::io;
use tokio::time::timeout;

/// See the module.
pub(super) struct Body {
    store: String,
    key: String,
    pieces: Pieces,
    length: u64,
    /// Bytes handed over.
    got: u64,
    /// Whether there must be no more; else nothing more is read.
    whole: bool,
}

impl Body {
    /// The next `length` bytes of what `pieces` give, as the answer for a store's key.
    pub(super) fn new(store: &str, key: &str, pieces: Pieces, length: u64, whole: bool) -> Self {
        Self { store: store.to_owned(), key: key.to_owned(), pieces, length, got: 0, whole }
    }

    /// One of no bytes.
    pub(super) fn empty(store: &str, key: &str) -> Self {
        Self::new(store, key, Box::pin(stream::empty()), 0, true)
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.got == self.length && !self.whole {
            return Ok(None);
        }
        let Some(piece) = timeout(STALL, self.pieces.next()).await.map_err(|_| self.late())? else {
            return match self.got == self.length {
                true => Ok(None),
                false => Err(self.answer(format!("the body ended after {} of {} bytes", self.got, self.length))),
            };
        };
        let (mut piece, room) = (piece?, self.length - self.got);
        if piece.len() as u64 > room {
            if self.whole {
                return Err(self.answer(format!("more than the {} bytes that were said to come", self.length)));
            }
            // Fits: it is less than the piece.
            piece.truncate(room as usize);
        }
        self.got += piece.len() as u64;
        Ok(Some(piece))
    }

    /// As it comes.
    pub(super) fn pieces(self) -> Pieces {
        let next = async |mut body: Self| Ok(body.next().await?.map(|piece| (piece, body)));
        Box::pin(stream::try_unfold(self, next))
    }

    /// All of it. What comes in one piece, as small ranges do, is not copied.
    pub(super) async fn collect(mut self) -> Result<Bytes> {
        let first = self.next().await?.unwrap_or_default();
        let Some(second) = self.next().await? else { return Ok(first) };
        let mut body = BytesMut::from(first);
        body.extend_from_slice(&second);
        while let Some(piece) = self.next().await? {
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    fn answer(&self, what: String) -> StoreError {
        StoreError::Answer { store: self.store.clone(), key: self.key.clone(), what }
    }

    fn late(&self) -> StoreError {
        let source = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {STALL:?}"));
        StoreError::Io { store: self.store.clone(), key: self.key.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[&'static [u8]], length: u64, whole: bool) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
        Body::new("s", "k", Box::pin(stream::iter(pieces)), length, whole)
    }

    #[tokio::test]
    async fn a_body_is_as_long_as_it_was_said_to_be() {
        assert_eq!(body(&[b"ab", b"", b"c"], 3, true).collect().await.unwrap(), &b"abc"[..]);
        assert_eq!(body(&[b"ab", b"cd"], 3, false).collect().await.unwrap(), &b"abc"[..]);
        assert_eq!(body(&[], 0, true).collect().await.unwrap(), Bytes::new());
        for (pieces, length, whole) in
            [(&[&b"ab"[..], b"cd"][..], 3, true), (&[b"ab"], 3, true), (&[b"ab"], 3, false), (&[b"a"], 0, true)]
        {
            let answer = body(pieces, length, whole).collect().await;
            assert!(matches!(answer, Err(StoreError::Answer { .. })), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn pieces_come_before_the_last_one_and_an_error_ends_them() {
        let mut pieces = body(&[b"ab", b"cd"], 3, true).pieces();
        assert_eq!(pieces.next().await.unwrap().unwrap(), &b"ab"[..]);
        assert!(pieces.next().await.unwrap().is_err());
        assert!(pieces.next().await.is_none());
        let first = stream::iter([Ok(Bytes::from_static(b"ab"))]).chain(stream::pending());
        let mut pieces = Body::new("s", "k", Box::pin(first), 3, true).pieces();
        assert_eq!(pieces.next().await.unwrap().unwrap(), &b"ab"[..]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_does_not_come_is_told() {
        let pieces = Body::new("s", "k", Box::pin(stream::pending()), 3, true);
        let answer = pieces.collect().await;
        assert!(matches!(&answer, Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut));
    }
}
