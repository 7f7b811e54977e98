//! A local file to a bucket: in one request when it is small, else in parts, some of them under way at once.
//!
//! An object is there when its last request is answered, and before it is not. What does not come to that is aborted:
//! also when the caller goes away ([`pending`](super::pending)). A process that is killed leaves its parts, which are paid for and never seen: a
//! lifecycle rule of the bucket is for those.

use super::pending::Pending;
use super::{CONFLICTS, Inner, answer, status};
use crate::store::client::STALL;
use crate::store::retry::{tried, waited};
use crate::store::{Result, StoreError};
use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Location;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

/// A part's length; what is not longer goes in one request. S3's least is 5 MiB.
const PART: u64 = 8 << 20;

/// Parts at most, S3's limit: of a file with more, they are longer.
const PARTS: u64 = 10_000;

/// Parts under way at once, all of them in memory.
const IN_FLIGHT: usize = 4;

/// How long one part may take.
const PART_TIME: Duration = Duration::from_secs(300);

/// How long the service may take to put the parts together.
const COMPLETION: Duration = Duration::from_secs(600);

pub(super) async fn upload(inner: &Arc<Inner>, key: &str, file: &Path) -> Result<()> {
    let location = inner.location(key)?;
    let file = Arc::new(Local::open(file).await?);
    let length = file.length;
    if length <= PART {
        let body = file.read(0, length).await?;
        return tried(|| inner.create(key, body.clone())).await;
    }
    inner.check_upload_condition().await?;
    tried(|| inner.check_absent(key)).await?;
    // Where another writer was at it at the end, what was sent cannot be used: once more, if nothing came of the other.
    for tries in 1..=2 {
        match send_all(inner, key, &location, &file).await? {
            Completion::Done => return Ok(()),
            Completion::Conflict => waited(&inner.contended(key), tries).await,
        };
        tried(|| inner.check_absent(key)).await?;
    }
    Err(inner.contended(key))
}

/// How an upload ended that did not fail.
#[derive(Debug, PartialEq, Eq)]
enum Completion {
    Done,
    /// Another write of this object was under way: this upload cannot be completed.
    Conflict,
}

/// One upload, from its beginning to its end.
async fn send_all(inner: &Arc<Inner>, key: &str, location: &Location, file: &Arc<Local>) -> Result<Completion> {
    let pending = Pending::begin(inner, key, location.clone()).await?;
    let ended = match send(inner, key, &pending, file).await {
        Ok(parts) => complete(inner, key, &pending, &parts, file.length).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(Completion::Done) => pending.done(),
        _ => pending.abort().await,
    }
    ended
}

/// Sends all parts; gives what the service calls them, in order.
async fn send(inner: &Arc<Inner>, key: &str, pending: &Pending, file: &Arc<Local>) -> Result<Vec<PartId>> {
    let length = file.length;
    let part = part_length(length);
    let count = length.div_ceil(part);
    let mut sent: Vec<Option<PartId>> = vec![None; count as usize];
    let (location, id) = (pending.location.clone(), pending.id.clone());
    let sending = Sending { inner: inner.clone(), key: key.to_owned(), location, id, file: file.clone() };
    let sending = Arc::new(sending);
    // Dropped, and with it what is under way, when the caller goes away.
    let mut tasks = JoinSet::new();
    let mut next = 0;
    loop {
        while next < count && tasks.len() < IN_FLIGHT {
            let (at, end) = (next * part, length.min((next + 1) * part));
            let (sending, number) = (sending.clone(), next as usize);
            tasks.spawn(async move { sending.part(number, at..end).await });
            next += 1;
        }
        let Some(ended) = tasks.join_next().await else { break };
        match ended.map_err(|e| inner.io(key, io::Error::other(e))) {
            Ok(Ok((number, id))) => sent[number] = Some(id),
            Ok(Err(error)) | Err(error) => {
                // A part that arrives after the upload was aborted would stay: what is under way comes to its end first.
                let _ = timeout(STALL, async { while tasks.join_next().await.is_some() {} }).await;
                return Err(error);
            }
        }
    }
    Ok(sent.into_iter().flatten().collect())
}

/// An upload whose parts are sent.
struct Sending {
    inner: Arc<Inner>,
    key: String,
    location: Location,
    id: String,
    file: Arc<Local>,
}

impl Sending {
    /// Sends a part; gives its number too.
    async fn part(&self, number: usize, range: Range<u64>) -> Result<(usize, PartId)> {
        let Self { inner, key, location, id, file } = self;
        let body = file.read(range.start, range.end - range.start).await?;
        let put = || inner.asked(key, PART_TIME, || inner.plain.put_part(location, id, number, body.clone().into()));
        Ok((number, tried(put).await?))
    }
}

/// Makes the parts an object, unless there is one.
async fn complete(inner: &Inner, key: &str, pending: &Pending, parts: &[PartId], length: u64) -> Result<Completion> {
    // Whether an answer that was not heard may have been yes.
    let mut lost = false;
    for tries in 1..=CONFLICTS {
        let request = || inner.creating.complete_multipart(&pending.location, &pending.id, parts.to_vec());
        let error = match inner.raw(key, COMPLETION, request).await {
            Ok(Ok(_)) => return Ok(Completion::Done),
            Ok(Err(error)) => {
                let told = answer::store_error(&inner.url, key, &error);
                match status(&error) {
                    Some(412) => return Err(inner.exists(key)),
                    Some(404) if lost => return Err(inner.made_perhaps(key, length, told).await),
                    // The service's own word for it is ConditionalRequestConflict; that id cannot be completed any more.
                    Some(409) if !matches!(told, StoreError::Busy { .. }) => return Ok(Completion::Conflict),
                    refused => lost |= refused.is_none_or(|status| status >= 500),
                }
                told
            }
            Err(error) => {
                lost = true;
                error
            }
        };
        if tries == CONFLICTS || !waited(&error, tries).await {
            return Err(error);
        }
    }
    Err(inner.contended(key))
}

impl Inner {
    /// The error of a completion of which an earlier answer was lost, and that now finds no upload: where there is an object
    /// of this length, it was probably made by this upload. Callers look at what exists; a yes would be a guess.
    async fn made_perhaps(&self, key: &str, length: u64, error: StoreError) -> StoreError {
        match tried(|| self.stat(key)).await {
            Ok(found) if found.size == length => self.exists(key),
            _ => error,
        }
    }
}

/// The length of all parts but the last.
fn part_length(length: u64) -> u64 {
    PART.max(length.div_ceil(PARTS).next_multiple_of(1 << 20))
}

/// The file that is sent.
struct Local {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Local {
    async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        blocking(path.clone(), move || {
            let file = File::open(&path)?;
            Ok(Self { length: file.metadata()?.len(), file, path })
        })
        .await
    }

    async fn read(self: &Arc<Self>, at: u64, length: u64) -> Result<Bytes> {
        let own = self.clone();
        blocking(self.path.clone(), move || {
            // Fits: a part is some megabytes.
            let mut body = vec![0; length as usize];
            own.file.read_exact_at(&mut body, at)?;
            Ok(body.into())
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)));
    done.map_err(|source| StoreError::Local { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_never_too_many() {
        for length in [PART + 1, 100 << 20, 80 << 30, 5 << 40] {
            let part = part_length(length);
            assert!(part >= PART && part.is_multiple_of(1 << 20) && length.div_ceil(part) <= PARTS, "{length}: {part}");
        }
        assert_eq!(part_length(1 << 30), PART);
    }
}
