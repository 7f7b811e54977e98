//! Tags: bases, workspaces and toolkits by name and version.

use super::error::{Error, Result};
use super::image_name::check_tag;
use super::{NameError, Refs, Stack};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a tag is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TagKind {
    /// A whole file system to start from.
    Base,
    /// What somebody's work added to a base.
    Workspace,
    /// Tools put on top.
    Toolkit,
}

impl TagKind {
    /// `base`, `workspace` or `toolkit`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Workspace => "workspace",
            Self::Toolkit => "toolkit",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Base, Self::Workspace, Self::Toolkit].into_iter().find(|k| k.as_str() == name)
    }
}

/// `KIND/NAME:VERSION`. Names have parts of letters, digits, `.`, `_` and `-`, joined by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TagName {
    /// Kind.
    pub kind: TagKind,
    /// Name: `python`, `team/python`.
    pub name: String,
    /// Version: `3.12`.
    pub version: String,
}

/// Body of `tags/<kind>/<name…>/_/<version>/<sequence>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Kind.
    pub kind: TagKind,
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Its layers, bottom to top. A base's are a whole file system; a workspace's or toolkit's lie on a base.
    pub stack: Stack,
    /// Another stack that shows the same with fewer layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<Stack>,
    /// What the layers were made over, where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_over: Option<MadeOver>,
    /// Environment for processes, `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
}

/// What a workspace was made over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeOver {
    /// The name it had then: a reference's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The stack it was.
    pub stack: Stack,
}

impl TagName {
    fn series(&self) -> String {
        format!("tags/{}/{}/_/{}/", self.kind.as_str(), self.name, self.version)
    }
}

impl Tag {
    /// Its name.
    pub fn tag_name(&self) -> TagName {
        TagName { kind: self.kind, name: self.name.clone(), version: self.version.clone() }
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.kind.as_str(), self.name, self.version)
    }
}

impl FromStr for TagName {
    type Err = NameError;

    fn from_str(text: &str) -> std::result::Result<Self, NameError> {
        let bad = |why: &str| NameError::new(text, why);
        let shape = "a tag is KIND/NAME:VERSION, KIND being base, workspace or toolkit";
        let (kind, rest) = text.split_once('/').ok_or_else(|| bad(shape))?;
        let kind = TagKind::from_name(kind).ok_or_else(|| bad(shape))?;
        let (name, version) = rest.rsplit_once(':').ok_or_else(|| bad(shape))?;
        if name.len() > 255 || !name.split('/').all(is_part) {
            return Err(bad(
                "its name must be parts of letters, digits, '.', '_' and '-', each starting with a letter or digit, \
                 255 bytes at most",
            ));
        }
        check_tag(version).map_err(bad)?;
        Ok(Self { kind, name: name.to_owned(), version: version.to_owned() })
    }
}

fn is_part(part: &str) -> bool {
    let bytes = part.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

impl Refs {
    /// What a tag stands for.
    pub async fn tag(&self, name: &TagName) -> Result<Option<Tag>> {
        let Some(document) = self.newest::<Tag>(&name.series()).await? else {
            return Ok(None);
        };
        match document.body.tag_name() == *name {
            true => Ok(Some(document.body)),
            false => {
                let found = document.body.tag_name();
                Err(Error::malformed(&document.header.key, format!("it is about {found}")))
            }
        }
    }

    /// Lets a tag stand for something; gives the sequence. A tag that already does is left as it is.
    pub async fn put_tag(&self, tag: &Tag) -> Result<u64> {
        let name = tag.tag_name();
        let name: TagName = name.to_string().parse()?;
        let series = name.series();
        if tag.stack.is_empty() {
            let what = "its stack is empty".to_owned();
            return Err(Error::Refused { key: series, what });
        }
        self.append(&series, tag).await
    }

    /// Forgets a tag; its layers stay.
    pub async fn remove_tag(&self, name: &TagName) -> Result<()> {
        self.remove_series(&name.series()).await
    }

    /// The names of all tags, in byte order of their keys; needs a store that can list.
    pub async fn tags(&self) -> Result<Vec<TagName>> {
        self.check_format().await?;
        let mut names = Vec::new();
        for key in self.store.list("tags/").await? {
            names.extend(from_key(&key));
        }
        names.dedup();
        Ok(names)
    }
}

fn from_key(key: &str) -> Option<TagName> {
    let (name, rest) = key.strip_prefix("tags/")?.split_once("/_/")?;
    let (version, sequence) = rest.split_once('/')?;
    sequence.parse::<u64>().ok()?;
    format!("{name}:{version}").parse().ok()
}
