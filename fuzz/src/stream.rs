//! A layer's blob to the tar in it.
//!
//! A blob with checksums of its own is of no use to a fuzzer, so most inputs are recipes: pieces of text, each in a gzip
//! member or zstd frame of its own, with what may stand between, and perhaps some damage.

use blobstore::refs::Digest;
use converter::source::LayerStream;
use std::io::{Cursor, Read};

/// More than a recipe makes.
const LIMIT: u64 = 256 << 20;

/// Reads a blob to its end; one that was made whole must give what was put in.
pub fn stream(data: &[u8]) {
    let Some((&form, rest)) = data.split_first() else { return };
    match form {
        b'r' => drop(read(rest)),
        b'g' => recipe(rest, gzip, &[]),
        b'z' => recipe(rest, frame, &[]),
        _ => recipe(rest, if form & 1 == 0 { gzip } else { frame }, &rest[..rest.len().min(4)]),
    }
}

fn recipe(text: &[u8], pack: fn(&[u8]) -> Vec<u8>, damage: &[u8]) {
    let pieces = text.split(|&byte| byte == b'|');
    let mut blob: Vec<u8> = pieces.clone().flat_map(pack).collect();
    if let [high, low, bit, cut] = *damage {
        let at = usize::from(u16::from_be_bytes([high, low])) % blob.len();
        blob[at] ^= bit;
        blob.truncate(blob.len() - usize::from(cut) % 16);
        return drop(read(&blob));
    }
    let text: Vec<u8> = pieces.flatten().copied().collect();
    let sums = read(&blob).expect("a whole stream");
    assert_eq!((sums.diff_id, sums.tar_size), (Digest::of(&text), text.len() as u64));
    assert_eq!((sums.blob, sums.blob_size), (Digest::of(&blob), blob.len() as u64));
}

fn read(blob: &[u8]) -> converter::Result<converter::source::ReadSums> {
    let mut stream = LayerStream::new(Box::new(Cursor::new(blob.to_vec())), blob.len() as u64)?;
    let mut first = [0; 7];
    let _ = stream.read(&mut first);
    match stream.read(&mut first) {
        Ok(_) => stream.finish(),
        Err(_) => {
            let (digest, size) = stream.abandon().expect("the blob itself can be read");
            assert!(size <= blob.len() as u64 && (size < blob.len() as u64 || digest == Digest::of(blob)));
            Err(converter::Error::refused("damaged"))
        }
    }
    .inspect(|sums| assert!(sums.tar_size < LIMIT))
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = flate2::bufread::GzEncoder::new(text, flate2::Compression::fast());
    encoder.read_to_end(&mut out).expect("memory");
    out
}

/// A frame with a skippable one in front.
fn frame(text: &[u8]) -> Vec<u8> {
    let skippable = [&b"\x5d\x2a\x4d\x18\x03\0\0\0abc"[..], &zstd::bulk::compress(text, 1).expect("memory")].concat();
    skippable
}
