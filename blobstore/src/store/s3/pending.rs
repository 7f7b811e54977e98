//! An upload in parts that is begun, and that it does not stay so.
//!
//! Whoever holds a [`Pending`] completes it or aborts it; where it is dropped without either, because its caller failed or
//! went away, it is aborted by a task of its own, which is [`Unfinished`] work: a process that ends before it is done leaves
//! parts, which are paid for and never seen.

use super::Inner;
use crate::store::Result;
use crate::store::client::STALL;
use crate::store::retry::tried;
use crate::store::unfinished::Unfinished;
use object_store::aws::AmazonS3;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Location;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// When a service has noticed that a connection is gone.
const SETTLED: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Pending {
    client: AmazonS3,
    pub(super) location: Location,
    pub(super) id: String,
    unfinished: Unfinished,
    armed: bool,
}

impl Pending {
    /// Begins one. A task does it: a caller who goes away before the answer is there would leave an upload whose id nobody
    /// knows.
    pub(super) async fn begin(inner: &Arc<Inner>, key: &str, location: Location) -> Result<Self> {
        let (own, owned, task) = (inner.clone(), key.to_owned(), inner.unfinished.begin());
        let begun = tokio::spawn(async move {
            let _task = task;
            let id = tried(|| own.asked(&owned, STALL, || own.plain.create_multipart(&location))).await?;
            Ok(Self { client: own.plain.clone(), location, id, unfinished: own.unfinished.clone(), armed: true })
        });
        begun.await.unwrap_or_else(|e| Err(inner.io(key, io::Error::other(e))))
    }

    pub(super) fn done(mut self) {
        self.armed = false;
    }

    /// Has the service forget the parts. Where it does not, they are waste and no harm.
    pub(super) async fn abort(mut self) {
        abort(&self.client, &self.location, &self.id).await;
        self.armed = false;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.armed {
            let (client, location, id) = (self.client.clone(), self.location.clone(), std::mem::take(&mut self.id));
            let task = self.unfinished.begin();
            runtime.spawn(async move {
                let _task = task;
                abort(&client, &location, &id).await;
                // The service may still have been taking in a part whose connection is gone by now.
                tokio::time::sleep(SETTLED).await;
                let _ = timeout(STALL, client.abort_multipart(&location, &id)).await;
            });
        }
    }
}

async fn abort(client: &AmazonS3, location: &Location, id: &String) {
    let answer = timeout(STALL, client.abort_multipart(location, id)).await;
    if !matches!(answer, Ok(Ok(()))) {
        tracing::warn!(%location, "an upload was not completed, and its parts could not be removed");
    }
}
