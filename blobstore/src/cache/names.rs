//! The references under which layers were pinned: `pins.json`, replaced whole.
//!
//! A pin is a layer's (`pins.rs`); several references can stand for the same layer, and it stays pinned until the last of
//! them is unpinned. This file says which there are. It is written after the pins it speaks of, so that a name in it stands
//! for layers that are pinned; a layer that is pinned without a name here is what a crash left.

use super::{Result, io_error, replace_file};
use crate::layer::LayerId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// References and the layers that they stood for when they were pinned.
#[derive(Debug)]
pub struct PinNames {
    path: PathBuf,
    domain: String,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    pins: Vec<Named>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Named {
    domain: String,
    reference: String,
    layers: BTreeSet<LayerId>,
}

impl PinNames {
    /// Those of the cache in `dir` that belong to a domain.
    pub fn new(dir: &Path, domain: &str) -> Self {
        Self { path: dir.join("pins.json"), domain: domain.to_owned() }
    }

    /// All of them.
    ///
    /// # Errors
    /// When the file cannot be read, or is not one of this version's: it may be removed, the layers stay pinned.
    pub fn all(&self) -> Result<BTreeMap<String, BTreeSet<LayerId>>> {
        let ours = self.read()?.into_iter().filter(|named| named.domain == self.domain);
        Ok(ours.map(|named| (named.reference, named.layers)).collect())
    }

    /// Says, durably, what a reference stands for from now on; `None`: it is not pinned.
    ///
    /// # Errors
    /// As of [`PinNames::all`], and when it cannot be written.
    pub fn set(&self, reference: &str, layers: Option<BTreeSet<LayerId>>) -> Result<()> {
        let mut pins = self.read()?;
        pins.retain(|named| (named.domain.as_str(), named.reference.as_str()) != (self.domain.as_str(), reference));
        pins.extend(layers.map(|layers| Named {
            domain: self.domain.clone(),
            reference: reference.to_owned(),
            layers,
        }));
        let text = serde_json::to_vec_pretty(&Stored { version: VERSION, pins });
        let text = text.map_err(|e| io_error(&self.path, "writing")(e.into()))?;
        replace_file(&self.path, &[&text]).map_err(io_error(&self.path, "writing"))
    }

    fn read(&self) -> Result<Vec<Named>> {
        let text = match fs::read(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.map_err(io_error(&self.path, "reading"))?,
        };
        let strange = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        match serde_json::from_slice(&text) {
            Ok(Stored { version: VERSION, pins }) => Ok(pins),
            Ok(other) => Err(io_error(&self.path, "reading")(strange(format!("unknown version {}", other.version)))),
            Err(e) => {
                let what = format!("{e}; remove it to forget the names: what is pinned stays so");
                Err(io_error(&self.path, "reading")(strange(what)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(numbers: &[u8]) -> BTreeSet<LayerId> {
        numbers.iter().map(|n| LayerId::from_bytes([*n; 32])).collect()
    }

    #[test]
    fn each_domain_has_its_own_names() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (PinNames::new(dir.path(), ""), PinNames::new(dir.path(), "other"));
        ours.set("tag:base/a:1", Some(layers(&[1, 2]))).unwrap();
        theirs.set("tag:base/a:1", Some(layers(&[3]))).unwrap();
        ours.set("tag:base/a:1", Some(layers(&[2]))).unwrap();
        assert_eq!(ours.all().unwrap(), [("tag:base/a:1".to_owned(), layers(&[2]))].into());
        ours.set("tag:base/a:1", None).unwrap();
        assert_eq!((ours.all().unwrap().len(), theirs.all().unwrap().len()), (0, 1));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "{\"version\": 2, \"pins\": []}"] {
            fs::write(dir.path().join("pins.json"), text).unwrap();
            let error = crate::causes(&PinNames::new(dir.path(), "").all().unwrap_err());
            assert!(error.contains("pins.json"), "{error}");
        }
    }
}
