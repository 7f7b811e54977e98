//! Documents and names, which are text.
//!
//! The documents of an image name one another by digest. In the fuzzer's bytes they stand one behind the other, with a
//! 0xff byte between, and a document names a later one by its number: `@2` becomes its digest, `#2` its size.

use crate::scratch;
use blobstore::refs::envelope::{Header, open, payload, seal};
use blobstore::refs::{
    Chain, Diff, Digest, Image, ImageName, LayerDigest, ManifestDoc, Name, Revocation, Tag, TagName,
};
use converter::source::{Blobs, open_docker, open_layout};
use converter::{Platforms, Source};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::{Debug, Display};
use std::io::{Seek, Write};
use std::path::Path;
use std::str::FromStr;

/// Reads the documents of a layout, or of an archive by `docker save`.
pub fn documents(data: &[u8], docker: bool) {
    let documents = resolve(data);
    let Some((first, blobs)) = documents.split_first() else { return };
    let mut archive = Vec::new();
    member(&mut archive, if docker { "manifest.json" } else { "index.json" }, first);
    for (number, blob) in (1..).zip(blobs) {
        member(&mut archive, &format!("blobs/sha256/{}", Digest::of(blob).hex()), blob);
        member(&mut archive, &number.to_string(), blob);
    }
    archive.resize(archive.len() + 1024, 0);
    let mut file = tempfile::NamedTempFile::new_in(scratch()).expect("a file");
    file.write_all(&archive).and_then(|()| file.rewind()).expect("a file");
    let platforms = [Platforms::All, "linux/amd64".parse().expect("a platform")];
    for (platforms, reference) in platforms.iter().zip([None, Some("a:1")]) {
        look(file.path(), reference, platforms, docker);
        look(file.path(), None, platforms, docker);
    }
}

fn look(archive: &Path, reference: Option<&str>, platforms: &Platforms, docker: bool) {
    let blobs = Blobs::archive(archive).expect("a tar that was just written");
    let images = match docker {
        true => open_docker(blobs, reference, platforms),
        false => open_layout(blobs, reference, platforms),
    };
    match images {
        Ok(images) => {
            assert!(!images.images.is_empty());
            for layer in images.images.iter().flat_map(|image| &image.layers) {
                let _ = images.blobs.blob(layer);
            }
        }
        Err(error) => assert!(error.is_refusal(), "not a refusal: {error}"),
    }
}

/// The documents, with digests and sizes in the place of numbers: later ones first.
fn resolve(data: &[u8]) -> Vec<Vec<u8>> {
    let texts: Vec<&[u8]> = data.split(|&byte| byte == 0xff).take(10).collect();
    let mut done: Vec<Vec<u8>> = vec![Vec::new(); texts.len()];
    for number in (0..texts.len()).rev() {
        let mut out = Vec::new();
        let mut rest = texts[number];
        while let Some((&byte, behind)) = rest.split_first() {
            let named = behind.first().map(|digit| usize::from(digit.wrapping_sub(b'0')));
            let later = named.filter(|&named| named > number && named < done.len()).map(|named| &done[named]);
            match (byte, later) {
                (b'@', Some(later)) => out.extend_from_slice(Digest::of(later).to_string().as_bytes()),
                (b'#', Some(later)) => out.extend_from_slice(later.len().to_string().as_bytes()),
                _ => {
                    out.push(byte);
                    rest = behind;
                    continue;
                }
            }
            rest = &behind[1..];
        }
        done[number] = out;
    }
    done
}

fn member(archive: &mut Vec<u8>, name: &str, body: &[u8]) {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(body);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

const KEY: &str = "refs/x";

/// Opens an envelope, or a payload that is put into one; what opens can be sealed and opens as the same again.
pub fn envelope(data: &[u8]) {
    let _ = payload(KEY, data);
    each_kind(data);
    let payload: Result<serde_json::Value, _> = serde_json::from_slice(data);
    if let Ok(body) = payload {
        let header = Header::new(KEY, 1, 2);
        if let Ok(sealed) = seal(&header, &body) {
            each_kind(&sealed);
        }
    }
}

fn each_kind(stored: &[u8]) {
    kind::<Chain>(stored);
    kind::<Diff>(stored);
    kind::<LayerDigest>(stored);
    kind::<Image>(stored);
    kind::<ManifestDoc>(stored);
    kind::<Tag>(stored);
    kind::<Revocation>(stored);
}

fn kind<T: DeserializeOwned + Serialize + PartialEq + Debug>(stored: &[u8]) {
    let Ok(document) = open::<T>(KEY, stored) else { return };
    let again = seal(&document.header, &document.body).expect("what was read can be written");
    let again = open::<T>(KEY, &again).expect("and read");
    assert_eq!(again.body, document.body);
}

/// Parses a text as each kind of name; what is one has a form that means the same.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    name::<Name>(text);
    name::<ImageName>(text);
    name::<TagName>(text);
    name::<Digest>(text);
    name::<blobstore::layer::LayerId>(text);
    let _ = text.parse::<Source>();
    let _ = text.parse::<Platforms>();
}

fn name<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(name) = text.parse::<T>() {
        assert_eq!(name.to_string().parse::<T>().ok(), Some(name));
    }
}
