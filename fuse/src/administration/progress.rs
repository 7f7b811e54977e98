//! Long work for a caller who is told how far it is, and who may go away.

use crate::Error;
use crate::service::to_status;
use control::v1::CacheProgress;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// What the caller reads.
pub(super) type Messages = ReceiverStream<Result<CacheProgress, Status>>;

/// The caller of long work.
#[derive(Debug, Clone)]
pub(super) struct Caller(mpsc::Sender<Result<CacheProgress, Status>>);

impl Caller {
    /// Tells how many bytes of how many are done. A caller who is slow is told less often.
    pub(super) fn tell(&self, done: u64, total: u64) {
        let _ = self.0.try_send(Ok(CacheProgress { done, total, ..CacheProgress::default() }));
    }

    /// Whether nobody waits any more.
    pub(super) fn has_gone(&self) -> bool {
        self.0.is_closed()
    }

    /// Work that is given up when the caller goes away.
    pub(super) async fn unless_gone<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            done = work => done,
            () = self.0.closed() => Err(Error::Invalid("who asked for it has gone".into())),
        }
    }
}

/// Begins long work; its result is the last message. It is itself to end when the caller has gone.
pub(super) fn begin<W>(work: impl FnOnce(Caller) -> W) -> Response<Messages>
where
    W: Future<Output = Result<CacheProgress, Error>> + Send + 'static,
{
    let (tell, told) = mpsc::channel(16);
    let work = work(Caller(tell.clone()));
    tokio::spawn(async move {
        let done = work.await;
        // A caller who has gone does not get it.
        let _ = tell.send(done.map_err(to_status)).await;
    });
    Response::new(ReceiverStream::new(told))
}
