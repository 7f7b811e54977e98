//! Image references: which manifest or index an image name stands for.

use super::error::{Error, Result};
use super::{Digest, ImageName, Refs};
use serde::{Deserialize, Serialize};

/// Body of `images/<host>/<repo…>/_/<tag>/<sequence>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The name in its long form, with the tag.
    pub name: String,
    /// Digest of the index or manifest.
    pub digest: Digest,
}

impl Refs {
    /// The digest that an image name stands for: its own, if it has one, else what its tag's series says.
    pub async fn image(&self, name: &ImageName) -> Result<Option<Digest>> {
        let Some(tag) = name.tag().filter(|_| name.digest().is_none()) else {
            return Ok(name.digest().copied());
        };
        let newest = self.newest::<Image>(&name.series(tag)).await?;
        Ok(newest.map(|d| d.body.digest))
    }

    /// Lets an image name stand for `digest`; gives the sequence. A name that already does is left as it is.
    pub async fn put_image(&self, name: &ImageName, digest: Digest) -> Result<u64> {
        let tag = tag_of(name)?;
        let body = Image { name: format!("{}/{}:{tag}", name.host(), name.repository()), digest };
        self.append(&name.series(tag), &body).await
    }

    /// Forgets an image name; what it stood for stays.
    pub async fn remove_image(&self, name: &ImageName) -> Result<()> {
        self.remove_series(&name.series(tag_of(name)?)).await
    }

    /// The names of all images with a tag, in byte order; needs a store that can list.
    pub async fn images(&self) -> Result<Vec<ImageName>> {
        self.check_format().await?;
        let mut names = Vec::new();
        for key in self.store.list("images/").await? {
            names.extend(from_key(&key));
        }
        names.dedup();
        Ok(names)
    }
}

fn tag_of(name: &ImageName) -> Result<&str> {
    name.tag().ok_or_else(|| Error::Refused {
        key: format!("images/{}/{}", name.host(), name.repository()),
        what: "a name with a digest and no tag cannot stand for anything else".to_owned(),
    })
}

/// The name in the key of a series' object; `None` for `latest` and for what is not ours.
fn from_key(key: &str) -> Option<ImageName> {
    let (name, rest) = key.strip_prefix("images/")?.split_once("/_/")?;
    let (tag, sequence) = rest.split_once('/')?;
    sequence.parse::<u64>().ok()?;
    format!("{name}:{tag}").parse().ok()
}
