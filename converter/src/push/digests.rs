//! What registries call a layer file: the SHA-256 of it, and of the EROFS image that it decompresses to.
//!
//! One pass over the stored file, in which every byte is verified as a node would: a damaged layer is not pushed.

use blobstore::layer::{Index, LayerError, decode, read_head};
use blobstore::refs::{Digest, StackEntry, layer_key};
use blobstore::store::Store;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// Stored bytes asked for in one request.
const BATCH: u64 = 8 << 20;

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

/// Reads a layer of the store. Memory: its head, and some 16 MiB.
pub(super) async fn of(store: &dyn Store, entry: &StackEntry) -> Result<Digests> {
    let key = layer_key(&entry.layer);
    let failed = |e: LayerError| Error::failed(format!("verifying {key}"), e);
    let index = read_head(store, &key, Some(&entry.layer), Some(entry.head)).await.map_err(failed)?.index;
    let mut hashers = Hashers::default();
    hashers.file.update(index.frame());
    let frames = frames(&index);
    let mut rest = &frames[..];
    while let Some((first, _)) = rest.first() {
        let count = rest.iter().take_while(|(at, _)| at - first < BATCH).count();
        let (batch, after) = rest.split_at(count);
        rest = after;
        let end = batch.last().map_or(*first, |(at, entry)| at + u64::from(entry.stored_len));
        let bytes = store.get_range(&key, *first..end).await.map_err(|e| Error::failed(key.clone(), e))?;
        let batch = batch.to_vec();
        let hash = move || hashers.take(&bytes, &batch).map(|()| hashers);
        let hashed = tokio::task::spawn_blocking(hash).await.map_err(|e| Error::failed("hashing", e))?;
        hashers = hashed.map_err(failed)?;
    }
    let done = |hasher: Sha256| Digest::from_bytes(hasher.finalize().into());
    Ok(Digests { file: done(hashers.file), size: index.file_len(), image: done(hashers.image) })
}

type Frame = (u64, blobstore::layer::ChunkEntry);

/// Where the frames behind the index lie.
fn frames(index: &Index) -> Vec<Frame> {
    index.metadata_frames().chain(index.chunks().map(|chunk| (chunk.file_offset, chunk.entry))).collect()
}

#[derive(Default)]
struct Hashers {
    file: Sha256,
    image: Sha256,
}

impl Hashers {
    /// Takes frames that lie side by side in `bytes`.
    fn take(&mut self, bytes: &Bytes, batch: &[Frame]) -> std::result::Result<(), LayerError> {
        let mut rest = &bytes[..];
        for (_, entry) in batch {
            let (stored, after) = rest.split_at_checked(entry.stored_len as usize).unwrap_or((rest, &[]));
            rest = after;
            self.image.update(decode(stored, entry)?);
            self.file.update(stored);
        }
        Ok(())
    }
}
