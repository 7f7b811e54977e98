//! What registries call a layer file: the SHA-256 of it, and of the EROFS image that it decompresses to.
//!
//! One pass over the stored file, in which every byte is verified as a node would: a damaged layer is not pushed.

use blobstore::layer::{LayerError, read_index, walk};
use blobstore::refs::{Digest, StackEntry, layer_key};
use blobstore::store::Store;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// A layer file as registries see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digests {
    /// Of the file.
    pub(super) file: Digest,
    /// Bytes of the file.
    pub(super) size: u64,
    /// Of the decompressed file: its diff id.
    pub(super) image: Digest,
}

/// Reads a layer of the store. Memory: its index, and some 16 MiB.
pub(super) async fn of(store: &dyn Store, entry: &StackEntry) -> Result<Digests> {
    let key = layer_key(&entry.layer);
    let failed = |e: LayerError| Error::failed(format!("verifying {key}"), e);
    let index = read_index(store, &key, Some(&entry.layer)).await.map_err(failed)?;
    let mut hashers = Hashers::default();
    hashers.file.update(index.frame());
    let hashers = walk(store, &key, &index, hashers, Hashers::take).await.map_err(failed)?;
    let done = |hasher: Sha256| Digest::from_bytes(hasher.finalize().into());
    Ok(Digests { file: done(hashers.file), size: index.file_len(), image: done(hashers.image) })
}

#[derive(Default)]
struct Hashers {
    file: Sha256,
    image: Sha256,
}

impl Hashers {
    fn take(&mut self, stored: &[u8], content: &[u8]) {
        self.file.update(stored);
        self.image.update(content);
    }
}
