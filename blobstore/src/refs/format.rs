//! The store's `format` object: which layout of keys and objects the store has.
//!
//! `{"version": 1, "requires": []}`, plain JSON. A writer creates it before anything else; an unknown version or
//! feature refuses the whole store, to readers and writers. A store without it is an empty one.

use super::Refs;
use super::envelope::check_versions;
use super::error::{Error, Result};
use crate::store::StoreError;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Key of the object.
pub const KEY: &str = "format";

/// The version that this build writes.
pub const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Format {
    version: u32,
    #[serde(default)]
    requires: Vec<String>,
}

impl Refs {
    /// Makes sure that the store's layout is one this build understands. Asks the store once per process.
    pub async fn check_format(&self) -> Result<()> {
        if !self.format_checked.initialized() && self.is_there().await? {
            let _ = self.format_checked.set(());
        }
        Ok(())
    }

    /// Whether a store of ours is there now, of a layout that this build understands. Asks the store every time; an
    /// empty one is no error.
    pub async fn is_there(&self) -> Result<bool> {
        match self.store.get(KEY).await {
            Ok(body) => check(&body).map(|()| true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// That there is a store, for who looks at all of it: where there is none, everything looks as if nothing had been
    /// converted yet. `false`: there is a place for one, a directory or a bucket, and nothing in it yet.
    ///
    /// # Errors
    /// [`Error::NoStore`] where there is no such place.
    pub async fn check_there(&self) -> Result<bool> {
        match self.is_there().await? {
            true => Ok(true),
            false if self.store.is_placed().await? => Ok(false),
            false => Err(Error::NoStore { store: self.store.url().to_owned() }),
        }
    }

    /// Where nothing was found, for messages: a directory that is not mounted looks like an empty store.
    pub(super) async fn place(&self) -> Result<String> {
        self.check_format().await?;
        let url = self.store.url();
        Ok(match self.format_checked.initialized() {
            true => url.to_owned(),
            false => format!("{url}, where there is no store yet (lamina convert makes one)"),
        })
    }

    /// Makes the store one of ours, if it is empty, and checks it: before the first write.
    pub async fn init(&self) -> Result<()> {
        self.format_checked
            .get_or_try_init(|| async {
                let format = Format { version: VERSION, requires: Vec::new() };
                let body = serde_json::to_vec(&format).map_err(|e| Error::malformed(KEY, e))?;
                match self.store.create(KEY, Bytes::from(body)).await {
                    Ok(()) => Ok(()),
                    Err(StoreError::AlreadyExists { .. }) => check(&self.store.get(KEY).await?),
                    Err(e) => Err(e.into()),
                }
            })
            .await
            .copied()
    }
}

fn check(body: &[u8]) -> Result<()> {
    let format: Format = serde_json::from_slice(body).map_err(|e| Error::malformed(KEY, e))?;
    check_versions(KEY, "store", format.version, VERSION, &format.requires)
}
