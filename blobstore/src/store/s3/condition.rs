//! Whether an endpoint keeps the condition that nothing is replaced.
//!
//! Some services that speak S3 pass over `If-None-Match`, and say that all is well. Asked twice to create one object,
//! such a service says yes twice. The object is empty, lies beside the store's own under a name that no key can have, and stays:
//! from then on one request tells.

use super::{Inner, WRITE, answer, status};
use crate::store::{Result, StoreError, TEMPORARY};
use bytes::Bytes;
use object_store::{ObjectStore, PutMode, PutOptions};
use tokio::sync::OnceCell;

/// Done once in a process, before its first write.
pub(super) type Condition = OnceCell<()>;

impl Inner {
    /// An error unless the endpoint is known to keep the condition.
    pub(super) async fn check_condition(&self) -> Result<()> {
        self.condition.get_or_try_init(|| self.test_condition()).await.copied()
    }

    async fn test_condition(&self) -> Result<()> {
        let name = format!("{TEMPORARY}conditional-writes");
        let location = self.place(&name)?;
        for _ in 0..2 {
            let mode = PutOptions::from(PutMode::Create);
            let put = || self.plain.put_opts(&location, Bytes::new().into(), mode.clone());
            match self.raw(&name, WRITE, put).await? {
                Ok(_) => {}
                Err(error) if matches!(status(&error), Some(409 | 412)) => return Ok(()),
                Err(error) if status(&error) == Some(501) => return Err(self.unconditional()),
                Err(error) => return Err(answer::store_error(&self.url, &name, &error)),
            }
        }
        Err(self.unconditional())
    }

    fn unconditional(&self) -> StoreError {
        let what = "the endpoint does not keep the condition If-None-Match: * of a write (S3's conditional writes): two \
                    writers would replace each other's objects, so it is not written to; reading works";
        StoreError::Unsupported { store: self.url.clone(), what: what.to_owned() }
    }
}
