//! How single values are read: words of which each means something, secrets, and what may be given in two ways.

use blobstore::fetch::{Hedge, OnOutage};
use blobstore::store::{Secret, USRBIO_LIBRARY};
use fuse::{Face, Record};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// `true`, `false` or a path.
pub(super) fn library<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Whether(bool),
        Which(PathBuf),
    }
    match Raw::deserialize(deserializer) {
        Ok(Raw::Whether(used)) => Ok(used.then(|| USRBIO_LIBRARY.into())),
        Ok(Raw::Which(path)) if path.is_absolute() => Ok(Some(path)),
        _ => Err(serde::de::Error::custom("true, false or the library's absolute path")),
    }
}

pub(super) fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(Secret::from))
}

/// One of a few words, and what each means.
fn word<'de, D: Deserializer<'de>, T: Copy>(deserializer: D, words: &[(&str, T)]) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let meant = words.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant);
    meant.ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        serde::de::Error::custom(format!("'{text}' is not one of {}", words.join(", ")))
    })
}

pub(super) fn face<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Face, D::Error> {
    word(deserializer, &[("auto", Face::Auto), ("file", Face::File), ("loop", Face::Loop)])
}

pub(super) fn hedge<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Hedge, D::Error> {
    word(deserializer, &[("p95", Hedge::P95), ("off", Hedge::Off)])
}

pub(super) fn on_outage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OnOutage, D::Error> {
    word(deserializer, &[("fail", OnOutage::Fail), ("wait", OnOutage::Wait)])
}

pub(super) fn record<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Record, D::Error> {
    word(deserializer, &[("store", Record::Store), ("node", Record::Node), ("off", Record::Off)])
}
