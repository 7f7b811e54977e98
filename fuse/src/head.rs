//! Opening a layer: the head from the cache or the store, and the gate that its metadata passes on the way.

use crate::Error;
use blobstore::fetch::{Fetcher, OpenHead};
use blobstore::layer::Index;
use blobstore::refs::StackEntry;

/// The head of a layer. What lies in the cache passed [`prepare`] when it came.
pub(crate) async fn open(fetcher: &Fetcher, entry: &StackEntry) -> Result<OpenHead, Error> {
    let opened = fetcher.open_head(entry, prepare).await;
    opened.map_err(|source| Error::Head { layer: entry.layer, source: Box::new(source) })
}

/// The kernel is never given metadata that the checker has not accepted; then it is told of the device.
fn prepare(metadata: &mut [u8], index: &Index) -> Result<(), String> {
    let expect = erofs::Expect { image_blocks: index.image_blocks(), first_data_block: index.first_data_block() };
    erofs::check(metadata, &expect).map_err(|e| e.to_string())?;
    erofs::attach_device(metadata).map_err(|e| e.to_string())
}
