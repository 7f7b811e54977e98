//! What is uploaded: bytes that can be read from any place on, as often as it takes; and a request's body made of it.

use super::trouble::Trouble;
use crate::error::{Error, Result};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use reqwest::Body;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Read at a time.
const PIECE: usize = 256 << 10;

/// Pieces that wait to be sent.
const AHEAD: usize = 8;

/// How long nothing may be sent, or answered.
const STALL: Duration = Duration::from_secs(120);

/// Bytes that a thread reads which may block.
pub(crate) trait Content: Send + Sync {
    /// A reader of the bytes from `at` on.
    fn open(&self, at: u64) -> Result<Box<dyn Read + Send>>;

    /// Whether, after this error in reading them, they come from elsewhere when they are read again.
    fn has_elsewhere(&self, _error: &Error) -> bool {
        false
    }
}

/// Bytes in memory.
impl Content for Bytes {
    fn open(&self, at: u64) -> Result<Box<dyn Read + Send>> {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.len());
        Ok(Box::new(io::Cursor::new(self.slice(at..))))
    }
}

/// What is known of a body while it is sent.
#[derive(Clone, Default)]
pub(super) struct Sending(Arc<Progress>);

#[derive(Default)]
struct Progress {
    bytes: AtomicU64,
    /// Why the bytes could not be read.
    failed: Mutex<Option<Error>>,
}

impl Sending {
    /// A body of `content` from `at` on, read while it is sent.
    pub(super) fn body(&self, content: Arc<dyn Content>, at: u64) -> Body {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let progress = self.0.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = progress.pump(&*content, at, &sender) {
                // The request's sender learns only that its body broke.
                let broken = io::Error::other(error.to_string());
                *progress.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                let _ = sender.blocking_send(Err(broken));
            }
        });
        Body::wrap(StreamBody::new(ReceiverStream::new(receiver).map(|piece| piece.map(Frame::data))))
    }

    /// Waits for the answer to a request with this body, as long as anything moves.
    pub(super) async fn answered(
        &self,
        request: impl Future<Output = std::result::Result<reqwest::Response, Trouble>>,
    ) -> std::result::Result<reqwest::Response, Trouble> {
        let mut request = std::pin::pin!(request);
        loop {
            let before = self.0.bytes.load(Ordering::Relaxed);
            match tokio::time::timeout(STALL, &mut request).await {
                Ok(Err(trouble)) => return Err(self.cause(trouble)),
                Ok(answer) => return answer,
                Err(_) if self.0.bytes.load(Ordering::Relaxed) > before => {}
                Err(_) => return Err(Trouble::passing(format!("nothing was taken for {} s", STALL.as_secs()))),
            }
        }
    }

    /// A request whose bytes could not be read did not fail because of the registry.
    fn cause(&self, trouble: Trouble) -> Trouble {
        let failed = self.0.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(trouble, |error| Trouble::Source(Box::new(error)))
    }
}

impl Progress {
    fn pump(&self, content: &dyn Content, at: u64, to: &Sender<io::Result<Bytes>>) -> Result<()> {
        let mut reader = content.open(at)?;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = Read::by_ref(&mut reader).take(PIECE as u64).read_to_end(&mut piece);
            let count = read.map_err(|e| Error::stream("reading what is pushed", e))?;
            // Nobody takes it any more: the registry has answered.
            if count == 0 || to.blocking_send(Ok(piece.into())).is_err() {
                return Ok(());
            }
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}
