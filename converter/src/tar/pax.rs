//! PAX extended headers: records `<length> <key>=<value>\n`, where the length counts the whole record.
//!
//! Values are taken by length, so that newlines, `=` and NULs in them are data. A later record of a key wins.

use crate::error::{Error, Result, show};
use crate::tar::number;
use std::collections::BTreeMap;

/// The records of one extended header.
#[derive(Debug, Default)]
pub(super) struct Records {
    last: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `GNU.sparse.offset` and `.numbytes` of the oldest sparse form, which repeats them, in order.
    pub(super) sparse_pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Records {
    /// Adds the records of a header's body.
    pub(super) fn read(&mut self, mut body: &[u8]) -> Result<()> {
        while !body.iter().all(|&b| b == 0) {
            let (record, rest) = split_record(body).ok_or_else(|| Error::refused("invalid PAX record"))?;
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(|| Error::refused("invalid PAX record"))?;
            let (key, value) = (record[..equals].to_vec(), record[equals + 1..].to_vec());
            if key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes" {
                self.sparse_pairs.push((key.clone(), value.clone()));
            }
            self.last.insert(key, value);
            body = rest;
        }
        Ok(())
    }

    /// Refuses a global header that says something of the entries behind it; a comment or an archiver's own key does not.
    pub(super) fn check_global(&self) -> Result<()> {
        const SHOWN: [&[u8]; 6] = [b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"];
        let shown =
            |key: &[u8]| SHOWN.contains(&key) || key.starts_with(b"SCHILY.xattr.") || key.starts_with(b"GNU.sparse.");
        match self.last.keys().find(|key| shown(key)) {
            Some(key) => Err(Error::refused(format!(
                "a PAX global header sets '{}' for all entries, which unpackers of images do not follow",
                show(key)
            ))),
            None => Ok(()),
        }
    }

    /// The value of a key; an empty one means that the key is not set, as POSIX has it.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.last.get(key.as_bytes()).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// A decimal value.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        match number::decimal(text) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::refused(format!("invalid PAX {key}: not a number or out of range"))),
        }
    }

    /// The records whose key starts with `prefix`, without it. Empty values are kept.
    pub(super) fn under<'a>(&'a self, prefix: &'static str) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let prefix = prefix.as_bytes();
        self.last.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?, value.as_slice())))
    }
}

fn split_record(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = body.iter().take(20).position(|&b| b == b' ')?;
    let length = usize::try_from(number::decimal(&body[..space])?).ok()?;
    let record = body.get(space + 1..length)?.strip_suffix(b"\n")?;
    Some((record, &body[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_by_length_and_the_last_wins() {
        let mut records = Records::default();
        records.read(b"6 a=1\n9 a=2\n=\0\n8 empty=\n").unwrap_err();
        let mut records = Records::default();
        records.read(b"6 a=1\n9 a=2\n=\0\n9 empty=\n").unwrap();
        assert_eq!(records.get("a"), Some(&b"2\n=\0"[..]));
        assert_eq!(records.get("empty"), None);
        assert_eq!(records.under("emp").next(), Some((&b"ty"[..], &b""[..])));
    }

    #[test]
    fn a_record_that_lies_about_its_length_is_refused() {
        for body in [&b"99 a=1\n"[..], b"3 a=1\n", b"x a=1\n", b"5 ab1\n", b"0 a=1\n", b"2 a=1\n"] {
            assert!(Records::default().read(body).is_err(), "{body:?}");
        }
    }
}
