//! A store with layers of small chunks, and a node that fetches them.

use super::Input;
use blobstore::cache::{Cache, Options as CacheOptions, Reserve};
use blobstore::fetch::{Fetcher, Layer, Options};
use blobstore::layer::Index;
use blobstore::meter::Meter;
use blobstore::refs::{StackEntry, layer_key};
use blobstore::store::{Store, open};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a chunk.
pub const CHUNK: usize = 16 << 10;
pub const MS: Duration = Duration::from_millis(1);

/// A chunk that no other seed has. Half of it is noise, so that it is stored as about 8 KiB.
pub fn content(seed: u32) -> Vec<u8> {
    let mut half = vec![0; CHUNK / 2];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut half);
    half.resize(CHUNK, seed as u8);
    half
}

/// The store of the tests in `dir`.
pub fn store(dir: &Path) -> Arc<dyn Store> {
    open(&format!("file://{}", dir.join("store").display())).unwrap()
}

/// Writes a layer into the store in `dir`.
pub async fn add(dir: &Path, contents: &[Vec<u8>], metadata: &[u8]) -> (Layer, StackEntry) {
    let input = Input { metadata: metadata.to_vec(), chunks: contents.to_vec(), ..Input::new(1, &[]) };
    let (summary, bytes) = input.write(2);
    store(dir).create(&layer_key(&summary.id), bytes.clone().into()).await.unwrap();
    let layer = Layer::new(Arc::new(Index::parse(bytes.into()).unwrap()));
    let entry = StackEntry { head: summary.head_len, size: summary.file_len, ..StackEntry::bare(summary.id) };
    (layer, entry)
}

/// The node in `dir`: it fetches from `store`.
pub fn fetcher(dir: &Path, store: Arc<dyn Store>, options: Options) -> Fetcher {
    let meter = Meter::default();
    Fetcher::new(store, cache(dir, &meter), options, meter)
}

/// As [`fetcher`], without a cache of chunks.
pub fn uncached(dir: &Path, store: Arc<dyn Store>, options: Options) -> Fetcher {
    let meter = Meter::default();
    Fetcher::new(store, Cache { chunks: None, ..cache(dir, &meter) }, options, meter)
}

fn cache(dir: &Path, meter: &Meter) -> Cache {
    let options = CacheOptions { reserve: Reserve::Bytes(0), ..CacheOptions::new(1 << 20) };
    Cache::open(&dir.join("cache"), &options, meter).unwrap()
}
