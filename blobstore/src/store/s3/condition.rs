//! Whether an endpoint keeps the condition that nothing is replaced.
//!
//! Some services that speak S3 pass over `If-None-Match`, and say that all is well: of all writes, or of those that complete
//! an upload in parts. Asked twice to create one object, such a service says yes twice; asked to complete an upload of it
//! then, yes again. The object lies beside the store's own under a name that no key can have, and stays: from then on one
//! request tells of writes. Uploads in parts are put to the test before a process's first one.

use super::pending::Pending;
use super::{Inner, WRITE, answer, status};
use crate::store::client::STALL;
use crate::store::retry::tried;
use crate::store::{Result, StoreError};
use bytes::Bytes;
use object_store::multipart::MultipartStore;
use object_store::{Error, ObjectStore, PutMode, PutOptions};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The object that is asked for: no key begins so ([`check_key`](crate::store::check_key)).
const PROBE: &str = ".tmp-conditional-writes";

/// What is known so far; what a service answered it will answer again in this process.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// Whether writes keep the condition.
    writes: OnceCell<bool>,
    /// Whether completed uploads do.
    uploads: OnceCell<bool>,
}

impl Inner {
    /// An error unless the endpoint is known to keep the condition of a write, or known not to keep that of an upload.
    pub(super) async fn check_condition(&self) -> Result<()> {
        let kept = *self.condition.writes.get_or_try_init(|| self.test_writes()).await?;
        match kept && self.condition.uploads.get() != Some(&false) {
            true => Ok(()),
            false => Err(self.unconditional()),
        }
    }

    /// An error unless the endpoint is known to keep the condition of both.
    pub(super) async fn check_upload_condition(self: &Arc<Self>) -> Result<()> {
        tried(|| self.check_condition()).await?;
        match self.condition.uploads.get_or_try_init(|| self.test_uploads()).await? {
            true => Ok(()),
            false => Err(self.unconditional()),
        }
    }

    async fn test_writes(&self) -> Result<bool> {
        let location = self.place(PROBE)?;
        for _ in 0..2 {
            let mode = PutOptions::from(PutMode::Create);
            let put = || self.plain.put_opts(&location, Bytes::new().into(), mode.clone());
            match self.raw(PROBE, WRITE, put).await? {
                Ok(_) => {}
                Err(error) => return self.kept(&error),
            }
        }
        Ok(false)
    }

    /// Of the object that is there by now.
    async fn test_uploads(self: &Arc<Self>) -> Result<bool> {
        let pending = Pending::begin(self, PROBE, self.place(PROBE)?).await?;
        let (location, id) = (&pending.location, &pending.id);
        let byte = || self.plain.put_part(location, id, 0, Bytes::from_static(b"x").into());
        let part = tried(|| self.asked(PROBE, WRITE, byte)).await?;
        let complete = || self.creating.complete_multipart(location, id, vec![part.clone()]);
        let completed = tried(|| async {
            match self.raw(PROBE, STALL, complete).await? {
                Ok(_) => Ok(None),
                Err(error) => self.kept(&error).map(Some),
            }
        });
        let refusal = completed.await;
        match refusal {
            Ok(None) => pending.done(),
            _ => pending.abort().await,
        }
        Ok(refusal?.unwrap_or(false))
    }

    /// What a refusal says of the condition.
    fn kept(&self, error: &Error) -> Result<bool> {
        match status(error) {
            Some(409 | 412) => Ok(true),
            Some(501) => Ok(false),
            _ => Err(answer::store_error(&self.url, PROBE, error)),
        }
    }

    fn unconditional(&self) -> StoreError {
        let what = "the endpoint does not keep the condition If-None-Match: * of a write (S3's conditional writes): two \
                    writers would replace each other's objects, so it is not written to; reading works";
        StoreError::Unsupported { store: self.url.clone(), what: what.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_the_test_can_be_no_key() {
        assert!(PROBE.starts_with(crate::store::TEMPORARY));
    }
}
