//! A document that goes to a registry: an index, a manifest or a config, as bytes.

use crate::error::{Error, Result};
use crate::registry::BlobToPush;
use blobstore::refs::Digest;
use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Document {
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) bytes: Vec<u8>,
}

impl Document {
    /// A value, written.
    pub(super) fn new(media_type: &str, value: &Value) -> Result<Self> {
        let bytes = serde_json::to_vec(value).map_err(|e| Error::failed("writing a document", e))?;
        Ok(Self { media_type: media_type.to_owned(), digest: Digest::of(&bytes), bytes })
    }

    /// A config is pushed as a blob.
    pub(super) fn blob(&self) -> BlobToPush {
        let bytes = Bytes::from(self.bytes.clone());
        BlobToPush { digest: self.digest, size: bytes.len() as u64, content: Arc::new(bytes) }
    }
}
