//! Where images and trees come from, as one form: layers that are tar streams, or a directory's path.
//!
//! * `open`: a source by its kind. * `layout`, `docker`, `remote`: from what a user names to an index or a manifest;
//!   `image`: from there to images, `platform`: to which of them; `document`: what indexes, manifests and configs say.
//! * `blobs`: where bytes are; `stream`: a layer's blob as its tar, by way of `gzip`, `hashing` and `ahead`; `in_place`: one
//!   that is a tar in a file, which nobody changes while there is a `lease`.
//!
//! Everything here is untrusted: digests and sizes are checked while bytes are read, documents are bounded, names of
//! blobs are digests and nothing else.

mod ahead;
mod blobs;
mod docker;
mod document;
mod gzip;
mod hashing;
mod image;
mod in_place;
mod layout;
mod lease;
mod open;
mod platform;
mod remote;
mod stream;

pub use blobs::{Blobs, OpenBlob, Place};
pub use docker::open as open_docker;
pub use document::LayerBlob;
pub(crate) use document::{Descriptor, MOUNTABLE, WirePlatform, parse};
pub use image::{Image, Images};
pub(crate) use in_place::{Headers, InPlace, Reading};
pub use layout::open as open_layout;
pub use open::{Opened, open};
pub use platform::Platforms;
pub use stream::{LayerStream, ReadSums};

use crate::error::{Error, Result};
use blobstore::refs::ImageName;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What is to be converted, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `oci:DIR[:REF]`: an OCI image layout.
    Oci {
        /// The layout's directory.
        directory: PathBuf,
        /// Which of its images: a reference name or a digest.
        reference: Option<String>,
    },
    /// `oci-archive:FILE[:REF]`: the same as a tar file.
    OciArchive {
        /// The tar file.
        file: PathBuf,
        /// Which of its images.
        reference: Option<String>,
    },
    /// `docker-archive:FILE[:REF]`: what `docker save` writes.
    DockerArchive {
        /// The tar file.
        file: PathBuf,
        /// Which of its images: one of its names.
        reference: Option<String>,
    },
    /// `docker://IMAGE`: an image of a registry.
    Registry(ImageName),
    /// `tar:FILE`: one layer, perhaps compressed; `None` is the standard input (`tar:-`).
    Tar(Option<PathBuf>),
    /// `dir:PATH`: one layer of what the directory holds.
    Directory(PathBuf),
}

/// What a source begins with, up to the colon; no reference to a store does.
const KINDS: [&str; 6] = ["oci", "oci-archive", "docker-archive", "docker", "tar", "dir"];

impl Source {
    /// Whether this text is meant to name a source, in a form that is right or not.
    pub fn is_one(text: &str) -> bool {
        text.split_once(':').is_some_and(|(kind, _)| KINDS.contains(&kind))
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| Error::refused(forms(text)))?;
        if rest.is_empty() {
            return Err(Error::refused(forms(text)));
        }
        match kind {
            "oci" => {
                let (directory, reference) = split_reference(rest);
                Ok(Self::Oci { directory, reference })
            }
            "oci-archive" => {
                let (file, reference) = split_reference(rest);
                Ok(Self::OciArchive { file, reference })
            }
            "tar" => Ok(Self::Tar((rest != "-").then(|| rest.into()))),
            "dir" => Ok(Self::Directory(rest.into())),
            "docker-archive" => {
                let (file, reference) = split_reference(rest);
                Ok(Self::DockerArchive { file, reference })
            }
            "docker" => {
                let name = rest.strip_prefix("//").ok_or_else(|| Error::refused(forms(text)))?;
                name.parse().map(Self::Registry).map_err(|e| Error::refused(format!("source '{text}': {e}")))
            }
            _ => Err(Error::refused(forms(text))),
        }
    }
}

fn forms(text: &str) -> String {
    format!(
        "'{text}' is no source: oci:DIR[:REF], oci-archive:FILE[:REF], docker-archive:FILE[:REF], docker://IMAGE, tar:FILE (- is \
         the standard input) and dir:PATH are"
    )
}

/// The path and the reference behind it. Both may have colons: the path is the longest that exists, else what is before the
/// first.
fn split_reference(rest: &str) -> (PathBuf, Option<String>) {
    let colons = || rest.match_indices(':').map(|(at, _)| at).filter(|&at| at > 0);
    let longest = colons().rev().find(|&at| Path::new(&rest[..at]).exists());
    match longest.or_else(|| colons().next()) {
        Some(at) if !Path::new(rest).exists() => {
            let reference = &rest[at + 1..];
            (rest[..at].into(), (!reference.is_empty()).then(|| reference.to_owned()))
        }
        _ => (rest.into(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_a_source() {
        let oci = |directory: &str, reference: Option<&str>| Source::Oci {
            directory: directory.into(),
            reference: reference.map(str::to_owned),
        };
        assert_eq!("oci:/a".parse::<Source>().unwrap(), oci("/a", None));
        assert_eq!("oci:/a:docker.io/x:1".parse::<Source>().unwrap(), oci("/a", Some("docker.io/x:1")));
        assert_eq!("tar:-".parse::<Source>().unwrap(), Source::Tar(None));
        assert_eq!("dir:/x:y".parse::<Source>().unwrap(), Source::Directory("/x:y".into()));
        let name = |text: &str| Source::Registry(text.parse().unwrap());
        assert_eq!("docker://x".parse::<Source>().unwrap(), name("docker.io/library/x:latest"));
        assert_eq!("docker://localhost:5000/a/b:1".parse::<Source>().unwrap(), name("localhost:5000/a/b:1"));
        for bad in ["", "x", "oci:", "zip:x", "docker:x", "docker://", "docker://a/../b", "docker://A"] {
            assert!(bad.parse::<Source>().unwrap_err().is_refusal(), "{bad}");
        }
    }

    #[test]
    fn every_kind_of_source_is_told_from_a_reference() {
        for kind in KINDS {
            let text = if kind == "docker" { "docker://nowhere".to_owned() } else { format!("{kind}:/nowhere") };
            assert!(Source::is_one(&text) && text.parse::<Source>().is_ok(), "{kind}");
        }
        for reference in ["image:a", "tag:base/a:1", "sha256:00", "quay.io/a/b:1", "/a/file"] {
            assert!(!Source::is_one(reference) && reference.parse::<Source>().is_err(), "{reference}");
        }
    }
}
