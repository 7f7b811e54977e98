//! A gzip stream of any number of members, with NUL bytes behind the last, as tapes and block devices add them.
//!
//! Anything else behind a member is an error, as is a wrong checksum or a stream that ends early.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// Decompresses all members.
pub(super) struct Gzip<R: BufRead> {
    /// `None` only while members change, and after an error there.
    decoder: Option<GzDecoder<R>>,
    ended: bool,
}

impl<R: BufRead> Gzip<R> {
    pub(super) fn new(input: R) -> Self {
        Self { decoder: Some(GzDecoder::new(input)), ended: false }
    }

    /// The stream behind what was read.
    pub(super) fn into_inner(self) -> Option<R> {
        self.decoder.map(GzDecoder::into_inner)
    }

    /// The stream, if it was not lost in an error.
    pub(super) fn get_ref(&self) -> Option<&R> {
        self.decoder.as_ref().map(GzDecoder::get_ref)
    }

    fn next_member(&mut self) -> io::Result<()> {
        let Some(decoder) = self.decoder.take() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut input = decoder.into_inner();
        let padded = skip_zeros(&mut input);
        let more = padded.and_then(|padded| match (input.fill_buf()?, padded) {
            ([], _) => Ok(false),
            ([0x1f, ..], false) => Ok(true),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "data behind the end of the gzip stream")),
        });
        self.decoder = Some(GzDecoder::new(input));
        self.ended = !more?;
        Ok(())
    }
}

/// Passes over NUL bytes; whether there were any.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    let mut any = false;
    loop {
        let buffer = input.fill_buf()?;
        let zeros = buffer.iter().take_while(|&&b| b == 0).count();
        if zeros == 0 {
            return Ok(any);
        }
        any = true;
        input.consume(zeros);
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended && !buffer.is_empty() {
            let Some(decoder) = &mut self.decoder else { break };
            match decoder.read(buffer)? {
                0 => self.next_member()?,
                count => return Ok(count),
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::bufread::GzEncoder;

    fn member(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        GzEncoder::new(bytes, Compression::fast()).read_to_end(&mut out).unwrap();
        out
    }

    fn decode(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Gzip::new(io::BufReader::with_capacity(7, bytes)).read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn all_members_and_trailing_nuls_are_read() {
        let two = [member(b"one"), member(b""), member(b"two")].concat();
        assert_eq!(decode(&two).unwrap(), b"onetwo");
        assert_eq!(decode(&[two, vec![0; 100]].concat()).unwrap(), b"onetwo");
    }

    #[test]
    fn damage_is_an_error() {
        let whole = member(&[b'x'; 1000]);
        let mut crc = whole.clone();
        *crc.iter_mut().rev().nth(7).unwrap() ^= 1;
        assert!(decode(&crc).is_err());
        for cut in [1, 9, whole.len() / 2, whole.len() - 1] {
            assert!(decode(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(decode(&[&whole[..], b"junk"].concat()).is_err());
        assert!(decode(&[&whole[..], b"\0\0", &whole[..]].concat()).is_err());
    }
}
