//! Image names, in the forms that people and containerd use.
//!
//! The rules are those of github.com/distribution/reference: `alpine` is `docker.io/library/alpine:latest`; the first
//! part is a host if it has a dot, a colon or an upper-case letter, or is `localhost`.

use super::{Digest, NameError};
use std::fmt;
use std::str::FromStr;

/// A normalised image name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageName {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl ImageName {
    /// Host of the registry, with its port if any: `docker.io`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Path in the registry: `library/alpine`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `latest` where the name had neither tag nor digest, `None` where it had only a digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, which stands above the tag.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Prefix of the keys of `tag`'s series. No part of a repository can be `_`, so that nothing is ambiguous.
    pub(super) fn series(&self, tag: &str) -> String {
        format!("images/{}/{}/_/{tag}/", self.host, self.repository)
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ImageName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let bad = |why: &str| NameError::new(text, why);
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|e| bad(&format!("{e}")))?)),
            None => (text, None),
        };
        let (rest, tag) = match rest.rsplit_once(':') {
            // A colon before a slash is a port's.
            Some((rest, tag)) if !tag.contains('/') => (rest, Some(tag)),
            _ => (rest, None),
        };
        let (host, repository) = split_host(rest);
        check_host(host).map_err(bad)?;
        check_repository(&repository).map_err(bad)?;
        if let Some(tag) = tag {
            check_tag(tag).map_err(bad)?;
        }
        let tag = match (tag, &digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self { host: host.to_owned(), repository, tag, digest })
    }
}

fn split_host(name: &str) -> (&str, String) {
    let is_host =
        |part: &str| part.contains(['.', ':']) || part == "localhost" || part.bytes().any(|b| b.is_ascii_uppercase());
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if is_host(host) => (host, path),
        _ => ("docker.io", name),
    };
    match host {
        "docker.io" | "index.docker.io" if !path.contains('/') => ("docker.io", format!("library/{path}")),
        "index.docker.io" => ("docker.io", path.to_owned()),
        _ => (host, path.to_owned()),
    }
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let bracketed = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let name_ok = match bracketed {
        Some(v6) => !v6.is_empty() && v6.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => name.split('.').all(|label| {
            let bytes = label.as_bytes();
            !label.is_empty()
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
                && bytes[0] != b'-'
                && bytes[bytes.len() - 1] != b'-'
        }),
    };
    let port_ok = port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    match name_ok && port_ok {
        true => Ok(()),
        false => Err("its first part is not a registry's host"),
    }
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    if repository.len() > 255 {
        return Err("its path is longer than 255 bytes");
    }
    match repository.split('/').all(is_component) {
        true => Ok(()),
        false => Err("its path has a part that is not lower-case letters and digits, joined by '.', '_', '__' or '-'"),
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = bytes.first().copied().is_some_and(word) && bytes.last().copied().is_some_and(word);
    ends && bytes
        .split(|b| word(*b))
        .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|b| *b == b'-'))
}

/// `[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}`
pub(super) fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = tag.as_bytes();
    let ok = bytes.first().copied().is_some_and(word)
        && bytes.len() <= 128
        && bytes.iter().all(|b| word(*b) || matches!(b, b'.' | b'-'));
    match ok {
        true => Ok(()),
        false => Err("its tag is not 1 to 128 letters, digits, '_', '.' and '-', the first none of the last two"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms_are_one_name() {
        let digest = Digest::of(b"");
        let cases = [
            ("alpine", "docker.io/library/alpine:latest".to_owned()),
            ("alpine:3.20", "docker.io/library/alpine:3.20".to_owned()),
            ("docker.io/alpine", "docker.io/library/alpine:latest".to_owned()),
            ("index.docker.io/library/alpine", "docker.io/library/alpine:latest".to_owned()),
            ("index.docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("user/app:v1", "docker.io/user/app:v1".to_owned()),
            ("localhost/app", "localhost/app:latest".to_owned()),
            ("localhost:5000/app", "localhost:5000/app:latest".to_owned()),
            ("localhost:5000/a/b:t", "localhost:5000/a/b:t".to_owned()),
            ("[::1]:5000/a:t", "[::1]:5000/a:t".to_owned()),
            ("ghcr.io/o/r-x__y/z.a:t", "ghcr.io/o/r-x__y/z.a:t".to_owned()),
            (&format!("alpine@{digest}"), format!("docker.io/library/alpine@{digest}")),
            (&format!("alpine:3@{digest}"), format!("docker.io/library/alpine:3@{digest}")),
        ];
        for (short, long) in cases {
            let name: ImageName = short.parse().unwrap();
            assert_eq!(name.to_string(), long);
            assert_eq!(long.parse::<ImageName>().unwrap(), name);
        }
    }

    #[test]
    fn what_is_no_image_name_is_refused() {
        let long = "a/".repeat(200);
        let bad = [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "A",
            "a/B",
            "a..b",
            "a/../b",
            "a/./b",
            "-a",
            "a-",
            "_",
            "a/_/b",
            "a___b",
            "a:",
            "a:-x",
            "a:.x",
            "a b",
            "a\nb",
            "a@sha256:00",
            "a@",
            "h.o:port/a",
            "h..o/a",
            "ä",
            "a:b:c",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<ImageName>().is_err(), "{text:?}");
        }
    }
}
