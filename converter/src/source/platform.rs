//! Which platforms of an image are wanted, and how well what an index offers fits.

use super::document::{Descriptor, WirePlatform};
use crate::error::{Error, Result};
use blobstore::refs::Platform;
use std::fmt;
use std::str::FromStr;

/// Which platforms of an image are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platforms {
    /// All of them.
    All,
    /// The one that fits this.
    One(Platform),
}

impl Default for Platforms {
    /// This machine's.
    fn default() -> Self {
        Self::One(Platform::host())
    }
}

impl FromStr for Platforms {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            ["all"] => return Ok(Self::All),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(Error::refused(format!("'{text}' is no platform: OS/ARCH, OS/ARCH/VARIANT or 'all'"))),
        };
        Ok(Self::One(Platform { os: os.to_owned(), architecture: architecture.to_owned(), variant }))
    }
}

impl Platforms {
    /// Whether an image for this platform is one of them.
    pub(super) fn take(&self, platform: &Platform) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => platform.fits(one),
        }
    }
}

/// For messages.
impl fmt::Display for Platforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("any platform"),
            Self::One(one) => one.fmt(f),
        }
    }
}

/// How well a descriptor's platform fits what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It does; 0 is the best.
    Said(u32),
    /// It does not say: the config knows.
    Unsaid,
    /// It does not.
    Not,
}

/// How well a descriptor fits, by what it says itself.
pub(super) fn fit(descriptor: &Descriptor, platforms: &Platforms) -> Fit {
    let Some(platform) = descriptor.platform.as_ref().and_then(WirePlatform::platform) else { return Fit::Unsaid };
    if descriptor.platform.as_ref().is_some_and(WirePlatform::is_mountable) {
        return Fit::Not;
    }
    match platforms {
        Platforms::All => Fit::Said(0),
        Platforms::One(one) => platform.distance(one).map_or(Fit::Not, Fit::Said),
    }
}
