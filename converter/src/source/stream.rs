//! A layer blob as the tar stream in it: decompressed, with both its digests taken on the way.
//!
//! Threads in a row: one reads and decompresses the blob, one hashes the tar, and who uses the stream parses it.

use super::ahead::Ahead;
use super::gzip::Gzip;
use super::hashing::{Hashing, Limited};
use crate::error::{Error, Result};
use crate::limits::check_ratio;
use blobstore::refs::Digest;
use std::io::{self, BufReader, Cursor, Read as _};

/// The compressions that are supported.
const GZIP: &str = "gzip";
const ZSTD: &str = "zstd";

type RawBlob = Limited<io::Chain<Cursor<Vec<u8>>, Box<dyn io::Read + Send>>>;
type Input = BufReader<Hashing<RawBlob>>;

/// A layer's tar stream. Read it as far as needed, then [`LayerStream::finish`] reads the rest.
pub struct LayerStream {
    tar: Ahead<Bounded>,
    plain: bool,
}

/// A tar that must not be too large for its blob.
struct Bounded {
    decoder: Decoder,
    tar: u64,
}

enum Decoder {
    Gzip(Box<Gzip<Input>>),
    Zstd(zstd::stream::read::Decoder<'static, Input>),
    /// The blob is the tar: it is hashed as that.
    Plain(RawBlob),
}

/// What was read, all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadSums {
    /// Digest of the blob.
    pub blob: Digest,
    /// Bytes of the blob.
    pub blob_size: u64,
    /// Digest of the decompressed tar.
    pub diff_id: Digest,
    /// Bytes of the decompressed tar.
    pub tar_size: u64,
}

impl LayerStream {
    /// Starts to read a blob of at most `limit` bytes; its first bytes tell how it is compressed.
    pub fn new(mut blob: Box<dyn io::Read + Send>, limit: u64) -> Result<Self> {
        let reading = |e| Error::stream("reading the layer", e);
        let mut start = Vec::new();
        (&mut blob).take(512).read_to_end(&mut start).map_err(reading)?;
        let magic = start.clone();
        let blob = Limited::new(Cursor::new(start).chain(blob), limit);
        let input = |blob| BufReader::with_capacity(256 << 10, Hashing::new(blob));
        let decoder = match compression(&magic) {
            Some(GZIP) => Decoder::Gzip(Box::new(Gzip::new(input(blob)))),
            Some(ZSTD) => {
                let decoder = zstd::stream::read::Decoder::with_buffer(input(blob));
                Decoder::Zstd(decoder.map_err(|e| Error::failed("starting zstd", e))?)
            }
            Some(name) => {
                return Err(Error::refused(format!("it is compressed by {name}: {GZIP} and {ZSTD} are supported")));
            }
            None => Decoder::Plain(blob),
        };
        let plain = matches!(decoder, Decoder::Plain(_));
        let tar =
            Ahead::new(Bounded { decoder, tar: 0 }).map_err(|e| Error::failed("starting to read the layer", e))?;
        Ok(Self { tar, plain })
    }

    /// Whether the blob is the tar itself, not compressed.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Reads what is left of the tar and of the blob.
    pub fn finish(mut self) -> Result<ReadSums> {
        if let Err(error) = io::copy(&mut self, &mut io::sink()) {
            return Err(Error::stream("decompressing the layer", error));
        }
        let reading = |e| Error::stream("reading the layer", e);
        let (tar, diff_id, tar_size) = self.tar.into_parts().map_err(reading)?;
        let (blob, blob_size) = tar.decoder.rest().map_err(reading)?.unwrap_or((diff_id, tar_size));
        Ok(ReadSums { blob, blob_size, diff_id, tar_size })
    }

    /// Reads what is left of the blob, without decompressing it: its digest and size.
    pub fn abandon(mut self) -> io::Result<(Digest, u64)> {
        if self.plain {
            io::copy(&mut self.tar, &mut io::sink())?;
        }
        let (tar, digest, count) = self.tar.into_parts()?;
        Ok(tar.decoder.rest()?.unwrap_or((digest, count)))
    }
}

impl Decoder {
    /// Bytes of the blob that were read, some ahead of what was decompressed; `None` where it is not compressed.
    fn consumed(&self) -> Option<u64> {
        let input = match self {
            Self::Gzip(gzip) => gzip.get_ref(),
            Self::Zstd(zstd) => Some(zstd.get_ref()),
            Self::Plain(_) => None,
        };
        input.map(|input| input.get_ref().count())
    }

    /// Digest and size of the blob, where they are not those of the tar.
    fn rest(self) -> io::Result<Option<(Digest, u64)>> {
        let input = match self {
            Self::Gzip(gzip) => gzip.into_inner().ok_or(io::ErrorKind::InvalidInput)?,
            Self::Zstd(zstd) => zstd.finish(),
            Self::Plain(_) => return Ok(None),
        };
        input.into_inner().finish().map(Some)
    }
}

impl io::Read for Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(gzip) => gzip.read(buffer),
            Self::Zstd(zstd) => zstd.read(buffer).map_err(damaged),
            Self::Plain(input) => input.read(buffer),
        }
    }
}

/// What zstd's own words ("Unsupported frame parameter") are about. Errors of what it reads are told as they are.
fn damaged(error: io::Error) -> io::Error {
    let inner = error.get_ref().is_some_and(|inner| inner.is::<Error>());
    match inner || error.kind() != io::ErrorKind::Other {
        true => error,
        false => io::Error::new(io::ErrorKind::InvalidData, format!("the zstd stream is damaged: {error}")),
    }
}

impl io::Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        self.tar += count as u64;
        if let Some(blob) = self.decoder.consumed() {
            check_ratio(self.tar, blob).map_err(io::Error::other)?;
        }
        Ok(count)
    }
}

impl io::Read for LayerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tar.read(buffer)
    }
}

/// By what a stream is compressed, by its first bytes; `None`: it is plain, for all that can be told.
pub(super) fn compression(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some(GZIP),
        // A frame, or a skippable frame in front of one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(ZSTD),
        _ => foreign(start),
    }
}

/// The name of a compression that is not supported, by a stream's first bytes.
fn foreign(start: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 6] = [
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"LZIP", "lzip"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"\x1f\x9d", "compress"),
        (b"\x89LZO\0", "lzop"),
    ];
    // A tar can begin with a name like these.
    let tar = start.len() >= 512 && start[257..262] == *b"ustar";
    MAGIC.iter().find(|(magic, _)| !tar && start.starts_with(magic)).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(blob: Vec<u8>) -> Result<ReadSums> {
        LayerStream::new(Box::new(io::Cursor::new(blob)), 1 << 20)?.finish()
    }

    #[test]
    fn plain_gzip_and_zstd_streams_give_one_diff_id() {
        let tar = b"not really a tar".repeat(1000);
        let mut gzip = Vec::new();
        let encoder = &mut flate2::bufread::GzEncoder::new(&tar[..], flate2::Compression::fast());
        io::Read::read_to_end(encoder, &mut gzip).unwrap();
        let frame = zstd::bulk::compress(&tar[5000..], 3).unwrap();
        let skippable = b"\x5d\x2a\x4d\x18\x03\0\0\0abc";
        let frames =
            [skippable, &zstd::bulk::compress(&tar[..5000], 3).unwrap()[..], skippable, &frame, skippable].concat();
        for blob in [tar.clone(), gzip, frames.clone()] {
            let sums = read(blob.clone()).unwrap();
            assert_eq!((sums.diff_id, sums.tar_size), (Digest::of(&tar), tar.len() as u64));
            assert_eq!((sums.blob, sums.blob_size), (Digest::of(&blob), blob.len() as u64));
        }
        assert!(read(frames[..frames.len() - 20].to_vec()).unwrap_err().is_refusal());
        let garbage = [b"\x28\xb5\x2f\xfd", &tar[..]].concat();
        let error = read(garbage).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("the zstd stream is damaged"), "{error}");
    }

    #[test]
    fn other_compressions_are_refused_by_name() {
        for (start, name) in [(&b"BZh91AY&SY"[..], "bzip2"), (b"\xfd7zXZ\0\0\x04", "xz"), (b"\x04\x22\x4d\x18d", "lz4")]
        {
            let error = read(start.to_vec()).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(name), "{error}");
        }
        let mut tar = vec![0; 1024];
        tar[..3].copy_from_slice(b"BZh");
        tar[257..262].copy_from_slice(b"ustar");
        assert!(read(tar).is_ok());
    }

    #[test]
    fn a_blob_past_its_size_is_refused() {
        let read = |limit| LayerStream::new(Box::new(Cursor::new(vec![1; 100])), limit).and_then(LayerStream::finish);
        assert!(read(99).unwrap_err().is_refusal());
        assert_eq!(read(100).unwrap().blob_size, 100);
    }

    #[test]
    fn the_digest_of_an_abandoned_blob_is_that_of_all_of_it() {
        let tar = b"not really a tar".repeat(100_000);
        for blob in [tar.clone(), zstd::bulk::compress(&tar, 3).unwrap()] {
            let mut stream = LayerStream::new(Box::new(Cursor::new(blob.clone())), u64::MAX).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
            assert_eq!(stream.is_plain(), blob == tar);
            assert_eq!(stream.abandon().unwrap(), (Digest::of(&blob), blob.len() as u64));
        }
    }
}
