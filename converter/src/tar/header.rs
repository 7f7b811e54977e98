//! One header block, and the attributes that it and the PAX records give.

use crate::error::{Error, Result, short, show};
use crate::tar::number;
use crate::tar::pax::Records;
use erofs::{Attributes, RareMap};
use std::ops::Deref;

/// What the kernel takes as the target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// More than EROFS holds of one file, which is found when it is written.
const XATTRS_MAX: usize = 256 << 10;

/// A header whose checksum is right.
pub(super) struct Header(tar::Header);

impl Deref for Header {
    type Target = tar::Header;

    fn deref(&self) -> &tar::Header {
        &self.0
    }
}

impl Header {
    /// Takes a block whose checksum is right: the sum of all bytes, those of the checksum counted as spaces; as signed
    /// bytes it is accepted too, since old writers summed so.
    pub(super) fn new(block: &[u8; 512]) -> Result<Self> {
        let header = Self(tar::Header::from_byte_slice(block).clone());
        let field = 148..156;
        let byte = |(i, &b): (usize, &u8)| if field.contains(&i) { b' ' } else { b };
        let unsigned: i64 = block.iter().enumerate().map(byte).map(i64::from).sum();
        let signed: i64 = block.iter().enumerate().map(byte).map(|b| i64::from(b as i8)).sum();
        match number::parse(&header.as_old().cksum) {
            Some(sum) if sum == unsigned || sum == signed => Ok(header),
            _ => Err(Error::refused("invalid tar header: wrong checksum").at(&header.name())),
        }
    }

    /// The type byte.
    pub(super) fn kind(&self) -> u8 {
        self.as_old().linkflag[0]
    }

    /// The size field.
    pub(super) fn size(&self) -> Result<u64> {
        number::parse(&self.as_old().size)
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| Error::refused("invalid tar header: its size").at(&self.name()))
    }

    /// The name, with the prefix field where the format has one.
    pub(super) fn name(&self) -> Vec<u8> {
        let bytes = self.as_bytes();
        let name = text(&self.as_old().name);
        if bytes[257..263] != *b"ustar\0" {
            return name.to_vec();
        }
        // Star's own format keeps two times behind a shorter prefix.
        let star = bytes[508..512] == *b"tar\0";
        match text(&bytes[345..if star { 476 } else { 500 }]) {
            b"" => name.to_vec(),
            prefix => [prefix, b"/", name].concat(),
        }
    }

    /// The link name field.
    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.as_old().linkname).to_vec()
    }

    /// Device numbers; 0:0 in old headers that have none.
    pub(super) fn device(&self) -> Result<(u32, u32)> {
        let bytes = self.as_bytes();
        if bytes[257..262] != *b"ustar" {
            return Ok((0, 0));
        }
        let number = |field: &[u8]| number::parse(field).and_then(|n| u32::try_from(n).ok());
        match (number(&bytes[329..337]), number(&bytes[337..345])) {
            (Some(major), Some(minor)) if major < 1 << 12 && minor < 1 << 20 => Ok((major, minor)),
            _ => Err(Error::refused("invalid device number: out of range")),
        }
    }
}

/// Mode, owner, time and extended attributes of an entry.
pub(super) fn attributes(header: &Header, records: &Records) -> Result<Attributes> {
    let old = header.as_old();
    let mode = number::parse(&old.mode).ok_or_else(|| Error::refused("invalid tar header: its mode"))?;
    let (mtime, mtime_nsec) = match records.get("mtime") {
        Some(text) => number::parse_time(text),
        None => number::parse(&old.mtime).map(|seconds| (seconds, 0)),
    }
    .ok_or_else(|| Error::refused("invalid time: not a number or out of range"))?;
    Ok(Attributes {
        mode: (mode & 0o7777) as u16,
        uid: owner("uid", records, &old.uid)?,
        gid: owner("gid", records, &old.gid)?,
        mtime,
        mtime_nsec,
        xattrs: xattrs(records)?,
    })
}

fn owner(key: &str, records: &Records, field: &[u8]) -> Result<u32> {
    let value = match records.number(key)? {
        Some(value) => Some(value),
        None => number::parse(field).and_then(|n| u64::try_from(n).ok()),
    };
    // The largest 32-bit number is no owner: to the kernel it means "leave it".
    match value {
        Some(value) if value < u64::from(u32::MAX) => Ok(value as u32),
        Some(value) => Err(Error::refused(format!("{key} {value} is out of range: owners have 32 bits"))),
        None => Err(Error::refused(format!("invalid {key}: not a number or out of range"))),
    }
}

fn xattrs(records: &Records) -> Result<RareMap<Vec<u8>, Vec<u8>>> {
    let (mut all, mut sum) = (RareMap::new(), 0);
    for (name, value) in records.under("SCHILY.xattr.") {
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return Err(Error::refused(format!("invalid extended attribute name '{}'", short(name))));
        }
        if value.len() > usize::from(u16::MAX) {
            let (name, size) = (show(name), value.len());
            return Err(Error::refused(format!(
                "extended attribute {name} is too large: {size} bytes, 65535 are possible"
            )));
        }
        sum += name.len() + value.len();
        if sum > XATTRS_MAX {
            return Err(Error::refused(format!("its extended attributes have more than {XATTRS_MAX} bytes together")));
        }
        all.insert(name.to_vec(), value.to_vec());
    }
    Ok(all)
}

/// Keys of records that say something of the entry which no unpacker of images follows: ACLs and SELinux's label in the words
/// of `tar --acls` and `--selinux`, and attributes that only libarchive's own records have.
pub(super) fn passed_over(records: &Records) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for prefix in ["SCHILY.acl.", "RHT.security.selinux", "LIBARCHIVE.xattr."] {
        for (rest, _) in records.under(prefix) {
            if prefix != "LIBARCHIVE.xattr." || !records.under("SCHILY.xattr.").any(|(name, _)| name == rest) {
                found.push([prefix.as_bytes(), rest].concat());
            }
        }
    }
    found
}

/// A target that a file system can hold.
pub(super) fn symlink_target(target: Vec<u8>) -> Result<Vec<u8>> {
    match target.len() {
        0 => Err(Error::refused("invalid symlink: it has no target")),
        _ if target.contains(&0) => Err(Error::refused("invalid symlink: its target holds a NUL byte")),
        n if n > TARGET_MAX => Err(Error::refused(format!("the symlink's target is too long: {n} bytes"))),
        _ => Ok(target),
    }
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|&b| b == 0).next().unwrap_or_default()
}
