//! References as people write them.
//!
//! `layer:ID`, `tag:KIND/NAME:VERSION`, `image:NAME`, `file:PATH`, `sha256:HEX`. Without a prefix: what starts with `/`
//! or `.` is a file, 12 to 64 hex digits are a layer (64: its id, fewer: the start of exactly one id), `base/…`,
//! `workspace/…` and `toolkit/…` are tags, anything else is an image name.

use super::{Digest, ImageName, TagKind, TagName};
use crate::layer::LayerId;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The fewest hex digits that may stand for a layer.
const SHORTEST: usize = 12;

/// A reference's text, parsed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    /// A layer by its id.
    Layer(LayerId),
    /// A layer by the first digits of its id: 12 to 63 lower-case hex digits.
    LayerPrefix(String),
    /// A base, workspace or toolkit.
    Tag(TagName),
    /// An image.
    Image(ImageName),
    /// A layer file on this machine.
    File(PathBuf),
    /// A chain id, a manifest's or layer's digest, or a diff id, tried in this order.
    Digest(Digest),
}

/// A text that is no reference, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a valid reference: {why}")]
pub struct NameError {
    text: String,
    why: String,
}

impl NameError {
    pub(super) fn new(text: &str, why: &str) -> Self {
        Self { text: text.to_owned(), why: why.to_owned() }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once(':') {
            Some(("layer", rest)) => layer(rest).ok_or_else(|| {
                NameError::new(text, "a layer has 64 lower-case hex digits, or the first 12 or more of them")
            }),
            Some(("tag", rest)) => rest.parse().map(Self::Tag),
            Some(("image", rest)) => rest.parse().map(Self::Image),
            Some(("file", "")) => Err(NameError::new(text, "it has no path")),
            Some(("file", rest)) => Ok(Self::File(rest.into())),
            Some(("sha256", _)) => match text.parse() {
                Ok(digest) => Ok(Self::Digest(digest)),
                Err(_) => Err(NameError::new(text, "64 lower-case hex digits must follow")),
            },
            _ => unprefixed(text),
        }
    }
}

fn unprefixed(text: &str) -> Result<Name, NameError> {
    if text.starts_with(['/', '.']) {
        return Ok(Name::File(text.into()));
    }
    if let Some(layer) = layer(text) {
        return Ok(layer);
    }
    let kind = text.split_once('/').and_then(|(kind, _)| TagKind::from_name(kind));
    match kind {
        Some(_) => text.parse().map(Name::Tag),
        None => text.parse().map(Name::Image),
    }
}

fn layer(text: &str) -> Option<Name> {
    let hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    match text.len() {
        64 => text.parse().ok().map(Name::Layer),
        SHORTEST..64 if hex => Some(Name::LayerPrefix(text.to_owned())),
        _ => None,
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(id) => write!(f, "layer:{id}"),
            Self::LayerPrefix(start) => write!(f, "layer:{start}"),
            Self::Tag(tag) => write!(f, "tag:{tag}"),
            Self::Image(image) => write!(f, "image:{image}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Digest(digest) => write!(f, "{digest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> String {
        text.parse::<Name>().unwrap().to_string()
    }

    #[test]
    fn every_form_is_understood() {
        let hex = "0123456789abcdef".repeat(4);
        let cases = [
            (format!("layer:{hex}"), format!("layer:{hex}")),
            (hex.clone(), format!("layer:{hex}")),
            (hex[..12].to_owned(), format!("layer:{}", &hex[..12])),
            (format!("layer:{}", &hex[..20]), format!("layer:{}", &hex[..20])),
            (format!("sha256:{hex}"), format!("sha256:{hex}")),
            ("tag:base/python:3.12".into(), "tag:base/python:3.12".into()),
            ("base/team/Python:3.12".into(), "tag:base/team/Python:3.12".into()),
            ("workspace/w:1".into(), "tag:workspace/w:1".into()),
            ("toolkit/gcc:14".into(), "tag:toolkit/gcc:14".into()),
            ("alpine".into(), "image:docker.io/library/alpine:latest".into()),
            ("image:alpine:3".into(), "image:docker.io/library/alpine:3".into()),
            ("image:base/python:3".into(), "image:docker.io/base/python:3".into()),
            ("ghcr.io/a/b:c".into(), "image:ghcr.io/a/b:c".into()),
            ("localhost:5000/a".into(), "image:localhost:5000/a:latest".into()),
            (hex[..11].to_owned(), format!("image:docker.io/library/{}:latest", &hex[..11])),
            ("/a/b".into(), "file:/a/b".into()),
            ("./x".into(), "file:./x".into()),
            ("file:x:y".into(), "file:x:y".into()),
        ];
        for (text, want) in cases {
            assert_eq!(parse(&text), want, "{text}");
        }
    }

    #[test]
    fn the_long_form_reads_as_itself() {
        for text in ["alpine", "base/a:1", "/x", "0123456789ab"] {
            let long = parse(text);
            assert_eq!(parse(&long), long);
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_with_a_reason() {
        let upper = "0123456789ABCDEF".repeat(4);
        let bad = [
            "",
            "layer:",
            "layer:xyz",
            "layer:0123",
            "sha256:0123",
            "sha256:latest",
            "tag:python:3",
            "base/python",
            "base/:3",
            "base/a/../b:3",
            "base/a:",
            "tag:base/_/x:1",
            "file:",
            "image:",
            "A",
            &upper,
        ];
        for text in bad {
            let error = text.parse::<Name>().unwrap_err();
            assert!(error.to_string().contains("not a valid reference"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_refused_or_has_a_long_form_that_means_the_same(
            text in "((layer|tag|image|file|sha256):)?[a-zA-Z0-9.:/_@\\[\\]-]{0,70}|(base|toolkit)/[a-z/.]{1,9}:[0-9.]{1,4}|.*"
        ) {
            if let Ok(name) = text.parse::<Name>() {
                proptest::prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name));
            }
        }
    }
}
