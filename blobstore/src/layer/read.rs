//! From stored bytes to content: verified first, then decompressed.

use super::error::{LayerError, Result, malformed};
use super::format::{self, ChunkEntry};
use super::id::LayerId;
use super::index::Index;
use crate::store::{Store, StoreError};
use bytes::Bytes;
use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zstd::bulk::Decompressor;
use zstd::zstd_safe;

/// What a node keeps of a layer.
#[derive(Debug)]
pub struct Head {
    /// The validated index.
    pub index: Index,
    /// The metadata, decompressed and verified: [`Index::metadata_len`] bytes.
    pub metadata: Vec<u8>,
}

/// The content of a frame: `stored` must be the bytes that `entry` names (else [`LayerError::Corrupt`]) and hold
/// exactly its data length (else [`LayerError::Malformed`]). Memory: the data length, at most 8 MiB.
pub fn decode(stored: &[u8], entry: &ChunkEntry) -> Result<Vec<u8>> {
    check_stored(stored, entry)?;
    check_frame(stored, entry)?;
    decompress(stored, entry.data_len as usize)
}

/// The head in `bytes`, which begin with it; of the layer `expect` only, where given.
pub fn parse_head(bytes: &[u8], expect: Option<&LayerId>) -> Result<Head> {
    let index = parse_index(bytes, expect)?;
    let metadata = decode_metadata(&index, bytes)?;
    Ok(Head { index, metadata })
}

/// Opens a layer file. A pipe would be waited for.
pub(super) fn open_file(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let reading = || LayerError::io(format!("reading {}", path.display()));
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_wait).open(path).map_err(reading())?;
    match file.metadata().map_err(reading())?.is_file() {
        true => Ok(file),
        false => Err(reading()(std::io::Error::other("it is not a regular file"))),
    }
}

/// The head of the layer file at `path`; its data is not read. Blocks.
pub fn read_head_file(path: &Path) -> Result<Head> {
    let reading = || LayerError::io(format!("reading {}", path.display()));
    let file = open_file(path)?;
    let length = Index::of_file(&file)?.head_len();
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).map_err(reading())?;
    parse_head(&bytes, None)
}

/// Fetches the head of the layer at `key`: one request where `head_len` (as references tell it) is right, one or two
/// more for the rest where it is too small, three where it is not known. Of the layer `expect` only, where given; then
/// nothing but the index itself (1 GiB at most) is fetched on the word of bytes that are not verified.
pub async fn read_head(store: &dyn Store, key: &str, expect: Option<&LayerId>, head_len: Option<u64>) -> Result<Head> {
    let (index, mut bytes) = index_and_more(store, key, expect, head_len.unwrap_or(0)).await?;
    bytes = extend(store, key, bytes, index.head_len()).await?;
    off_the_runtime(move || {
        let metadata = decode_metadata(&index, &bytes)?;
        Ok(Head { index, metadata })
    })
    .await
}

/// The index of the layer at `key`, without the metadata: as [`read_head`] otherwise.
pub async fn read_index(store: &dyn Store, key: &str, expect: Option<&LayerId>) -> Result<Index> {
    index_and_more(store, key, expect, 0).await.map(|(index, _)| index)
}

/// The index, and the first bytes of the object, `first` of them or what the index needs.
async fn index_and_more(store: &dyn Store, key: &str, expect: Option<&LayerId>, first: u64) -> Result<(Index, Bytes)> {
    let mut bytes = extend(store, key, Bytes::new(), first.max(format::PROBE as u64)).await?;
    bytes = extend(store, key, bytes.clone(), frame_len(&bytes, expect)?).await?;
    let index = parse_index(&bytes, expect)?;
    Ok((index, bytes))
}

/// `bytes`, which are the object's first, made `length` long with one more request where they are shorter.
async fn extend(store: &dyn Store, key: &str, bytes: Bytes, length: u64) -> Result<Bytes> {
    let have = bytes.len() as u64;
    if have >= length {
        return Ok(bytes);
    }
    let rest = match store.get_range(key, have..length).await {
        Ok(rest) => rest,
        Err(error @ StoreError::Answer { .. }) => return Err(unanswered(store, key, length, error).await),
        Err(error) => return Err(error.into()),
    };
    match bytes.is_empty() {
        true => Ok(rest),
        false => Ok(Bytes::from([&bytes[..], &rest[..]].concat())),
    }
}

/// What a wrong answer means: the object is shorter than the reference, or what has been read of it, says; or the store is at
/// fault, and the object says nothing.
async fn unanswered(store: &dyn Store, key: &str, length: u64, error: StoreError) -> LayerError {
    match store.stat(key).await {
        Ok(stat) if stat.size < length => LayerError::corrupt(format!("cut short: {error}")),
        _ => error.into(),
    }
}

/// Runs what takes a processor for milliseconds (hashing and decompressing many frames) on a blocking thread.
pub(super) async fn off_the_runtime<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(LayerError::io("decoding a layer")(std::io::Error::other(error))))
}

/// Bytes of the index frame; where the layer is known by its id, bytes that are no index are not that layer's.
fn frame_len(bytes: &[u8], expect: Option<&LayerId>) -> Result<u64> {
    format::index_frame_len(bytes).map_err(|error| match expect {
        Some(id) => LayerError::corrupt(format!("index of {id}: {error}")),
        None => error,
    })
}

/// The index in a copy of its own, so that it does not keep the rest of `bytes` in memory.
fn parse_index(bytes: &[u8], expect: Option<&LayerId>) -> Result<Index> {
    let length = frame_len(bytes, expect)?.min(bytes.len() as u64) as usize;
    let frame = Bytes::copy_from_slice(&bytes[..length]);
    match expect {
        Some(id) => Index::parse_as(frame, id),
        None => Index::parse(frame),
    }
}

fn decode_metadata(index: &Index, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut metadata = Vec::with_capacity(index.metadata_len() as usize);
    for (number, (offset, entry)) in index.metadata_frames().enumerate() {
        let place = || format!("metadata frame {number} at byte {offset}");
        let end = offset.saturating_add(u64::from(entry.stored_len));
        let stored = usize::try_from(end).ok().and_then(|end| bytes.get(offset as usize..end));
        let stored = stored.ok_or_else(|| LayerError::corrupt("cut short").within(&place()))?;
        metadata.extend(decode(stored, &entry).map_err(|error| error.within(&place()))?);
    }
    Ok(metadata)
}

/// Nothing else looks at `stored` before this has passed.
pub(crate) fn check_stored(stored: &[u8], entry: &ChunkEntry) -> Result<()> {
    if stored.len() as u64 != u64::from(entry.stored_len) {
        return Err(LayerError::corrupt(format!("{} stored bytes, not {}", stored.len(), entry.stored_len)));
    }
    match blake3::hash(stored) == blake3::Hash::from_bytes(entry.hash) {
        true => Ok(()),
        false => Err(LayerError::corrupt("the stored bytes do not match their BLAKE3")),
    }
}

/// One frame that states the size that the table states, before anything is allocated for it.
fn check_frame(stored: &[u8], entry: &ChunkEntry) -> Result<()> {
    if entry.data_len == 0 || entry.data_len > format::MAX_FRAME {
        return Err(malformed!("a frame of {} bytes", entry.data_len));
    }
    match zstd_safe::get_frame_content_size(stored) {
        Ok(Some(size)) if size == u64::from(entry.data_len) => {}
        Ok(Some(size)) => return Err(malformed!("the frame holds {size} bytes, its entry says {}", entry.data_len)),
        Ok(None) => return Err(malformed!("the frame does not state its size")),
        Err(_) => return Err(malformed!("not a zstd frame")),
    }
    if zstd_safe::find_frame_compressed_size(stored).ok() != Some(stored.len()) {
        return Err(malformed!("not one whole zstd frame"));
    }
    match zstd_safe::get_dict_id_from_frame(stored) {
        Some(dictionary) => Err(malformed!("the frame wants dictionary {dictionary}")),
        None => Ok(()),
    }
}

thread_local! {
    /// A context for each thread that decodes: making one costs more than decoding a small chunk.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn decompress(stored: &[u8], data_len: usize) -> Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(Decompressor::new().map_err(LayerError::io("making a zstd context"))?),
        };
        let mut content = Vec::with_capacity(data_len);
        decompressor
            .decompress_to_buffer(stored, &mut content)
            .map_err(|error| malformed!("the frame does not decompress: {error}"))?;
        match content.len() == data_len {
            true => Ok(content),
            false => Err(malformed!("{} bytes decompressed, not {data_len}", content.len())),
        }
    })
}
