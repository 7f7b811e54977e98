//! Headers of a PAX tar: a ustar block, and before it records for what the block cannot hold.
//!
//! POSIX.1-2017, pax: `mtime`, `uid`, `gid`, `size`, `path`, `linkpath`, `hdrcharset`; star's `SCHILY.xattr.`; GNU tar's
//! sparse format 1.0 (`GNU.sparse.major`, `.minor`, `.name`, `.realsize`). Records stand in byte order of their keys, and
//! only those that are needed: equal entries give equal bytes.

use crate::error::{Error, Result, show};
use erofs::Attributes;
use std::collections::BTreeMap;
use tar::{EntryType, Header};

/// What the name and link fields hold.
const FIELD: usize = 100;
/// What 7 octal digits hold.
const ID_MAX: u32 = 0o7_777_777;
/// What 11 octal digits hold.
const NUMBER_MAX: u64 = 0o77_777_777_777;

/// An entry as it is to stand in the tar.
#[derive(Debug)]
pub(super) struct Described<'a> {
    pub(super) kind: EntryType,
    /// The path; that of a directory with a slash at its end.
    pub(super) path: &'a [u8],
    /// Target of a symlink or hard link.
    pub(super) link: &'a [u8],
    pub(super) attributes: &'a Attributes,
    /// Bytes that follow the header.
    pub(super) stored: u64,
    /// Size of a sparse file; its map stands in front of the stored bytes.
    pub(super) sparse: Option<u64>,
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
}

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The header blocks of an entry.
///
/// # Errors
/// An attribute whose name PAX cannot hold.
pub(super) fn encode(entry: &Described<'_>) -> Result<Vec<u8>> {
    let records = records(entry)?;
    let mut out = Vec::new();
    if !records.is_empty() {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        set_name(&mut header, b"PaxHeaders");
        header.set_mode(0o644);
        number(&mut header, body.len() as u64, 0);
        push(&mut out, header);
        out.extend_from_slice(&body);
        pad(&mut out);
    }
    push(&mut out, block(entry));
    Ok(out)
}

/// Fills the last block with zeros.
pub(super) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(512), 0);
}

fn records(entry: &Described<'_>) -> Result<Records> {
    let mut records = Records::new();
    let mut set = |key: &str, value: &[u8]| drop(records.insert(key.into(), value.into()));
    let Attributes { uid, gid, mtime, mtime_nsec, xattrs, .. } = entry.attributes;
    if let Some(size) = entry.sparse {
        set("GNU.sparse.major", b"1");
        set("GNU.sparse.minor", b"0");
        set("GNU.sparse.name", entry.path);
        set("GNU.sparse.realsize", size.to_string().as_bytes());
    } else if !fits(entry.path) {
        set("path", entry.path);
    }
    if !fits(entry.link) {
        set("linkpath", entry.link);
    }
    if [entry.path, entry.link].iter().any(|text| std::str::from_utf8(text).is_err()) {
        set("hdrcharset", b"BINARY");
    }
    for (key, id) in [("uid", *uid), ("gid", *gid)].into_iter().filter(|(_, id)| *id > ID_MAX) {
        set(key, id.to_string().as_bytes());
    }
    if entry.stored > NUMBER_MAX {
        set("size", entry.stored.to_string().as_bytes());
    }
    if *mtime_nsec != 0 || !u64::try_from(*mtime).is_ok_and(|seconds| seconds <= NUMBER_MAX) {
        set("mtime", time(*mtime, *mtime_nsec).as_bytes());
    }
    for (name, value) in xattrs {
        if name.contains(&b'=') {
            let what = format!("the name of the attribute '{}' holds a '=', which no tar can hold", show(name));
            return Err(Error::refused(what));
        }
        records.insert([b"SCHILY.xattr.", &name[..]].concat(), value.clone());
    }
    Ok(records)
}

/// Whether a name or link can stand in the block, for every reader.
fn fits(text: &[u8]) -> bool {
    text.len() <= FIELD && text.is_ascii()
}

/// `<length> <key>=<value>\n`, the length counting itself.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Decimal seconds: those before 1970 count from zero downwards, the fraction too.
fn time(seconds: i64, nanos: u32) -> String {
    let text = match (seconds < 0, nanos) {
        (_, 0) => return seconds.to_string(),
        (false, _) => format!("{seconds}.{nanos:09}"),
        (true, _) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
    };
    text.trim_end_matches('0').to_owned()
}

/// The ustar block. What does not fit stands in a record, and here cut off or as 0.
fn block(entry: &Described<'_>) -> Header {
    let mut header = Header::new_ustar();
    let Attributes { mode, uid, gid, mtime, .. } = *entry.attributes;
    header.set_entry_type(entry.kind);
    match (entry.sparse, fits(entry.path)) {
        (Some(_), _) => set_name(&mut header, b"GNUSparseFile.0/file"),
        (None, true) => set_name(&mut header, entry.path),
        (None, false) => set_name(&mut header, b"PaxHeaders/long"),
    }
    let link: &[u8] = if fits(entry.link) { entry.link } else { b"PaxHeaders/long" };
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_mode(u32::from(mode));
    header.set_uid(u64::from(if uid > ID_MAX { 0 } else { uid }));
    header.set_gid(u64::from(if gid > ID_MAX { 0 } else { gid }));
    let seconds = u64::try_from(mtime).ok().filter(|seconds| *seconds <= NUMBER_MAX).unwrap_or(0);
    number(&mut header, if entry.stored > NUMBER_MAX { 0 } else { entry.stored }, seconds);
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.set_device_major(entry.device.0);
        ustar.set_device_minor(entry.device.1);
    }
    header
}

fn set_name(header: &mut Header, name: &[u8]) {
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
}

fn number(header: &mut Header, size: u64, mtime: u64) {
    header.set_size(size);
    header.set_mtime(mtime);
}

fn push(out: &mut Vec<u8>, mut header: Header) {
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_on_both_sides_of_the_epoch() {
        assert_eq!(time(1, 500_000_000), "1.5");
        assert_eq!(time(-2, 500_000_000), "-1.5");
        assert_eq!(time(-1, 999_999_999), "-0.000000001");
        assert_eq!(time(i64::MIN, 1), "-9223372036854775807.999999999");
        assert_eq!(time(10, 0), "10");
    }

    #[test]
    fn a_record_counts_its_own_length() {
        assert_eq!(record(b"a", b"1"), b"6 a=1\n");
        assert_eq!(record(b"key", &[b'v'; 92])[..4], *b"101 ");
        assert_eq!(record(b"key", &[b'v'; 91])[..3], *b"99 ");
        assert_eq!(record(b"key", b"").len(), 7);
        for length in 0..2000 {
            let record = record(b"k", &vec![b'v'; length]);
            assert!(record.starts_with(record.len().to_string().as_bytes()));
        }
    }
}
