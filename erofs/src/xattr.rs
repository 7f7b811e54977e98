//! Names of extended attributes, and how one lies on disk. The rules of [`examine`] bind the writer and the checker alike.

use crate::FileType;
use crate::format::XattrEntry;

/// The kernel's longest name, prefix included (XATTR_NAME_MAX).
const MAX_NAME: usize = 255;
/// The most that `e_value_size` holds.
const MAX_VALUE: usize = u16::MAX as usize;
/// Entries and the ids of shared ones are aligned to this.
pub(crate) const ALIGN: usize = 4;

/// Names that EROFS can hold: the number on disk, the prefix, and whether it is the whole name.
const PREFIXES: [(u8, &[u8], bool); 5] = [
    (1, b"user.", false),
    (2, b"system.posix_acl_access", true),
    (3, b"system.posix_acl_default", true),
    (4, b"trusted.", false),
    (6, b"security.", false),
];

/// Why an extended attribute cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrProblem {
    /// Neither `user.`, `trusted.`, `security.` nor one of the two POSIX ACLs.
    #[error("EROFS has no room for a name with this prefix")]
    UnknownPrefix,
    /// Nothing behind the prefix, or a NUL in the name.
    #[error("not a valid name")]
    InvalidName,
    /// More than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// More than 65535 bytes.
    #[error("the value is longer than 65535 bytes")]
    ValueTooLong,
    /// All attributes of the inode together do not fit.
    #[error("the attributes of this file are together longer than an inode can hold (262148 bytes)")]
    TooMany,
    /// An attribute that overlayfs would obey; only `trusted.overlay.opaque` = `y` on a directory may be in a layer.
    #[error("overlayfs would act on this attribute, and only trusted.overlay.opaque=y on a directory is allowed")]
    Overlay,
}

/// Splits a full name into the number of its prefix and the rest.
pub(crate) fn split(name: &[u8]) -> Result<(u8, &[u8]), XattrProblem> {
    if name.len() > MAX_NAME {
        return Err(XattrProblem::NameTooLong);
    }
    for (index, prefix, whole) in PREFIXES {
        match name.strip_prefix(prefix) {
            Some(rest) if whole && rest.is_empty() => return Ok((index, rest)),
            Some(rest) if !whole && !rest.is_empty() && !rest.contains(&0) => return Ok((index, rest)),
            Some(_) if !whole => return Err(XattrProblem::InvalidName),
            _ => {}
        }
    }
    Err(XattrProblem::UnknownPrefix)
}

/// The full name of the rest of a name behind prefix number `index`.
pub(crate) fn join(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix, _) = PREFIXES.into_iter().find(|(number, ..)| *number == index)?;
    Some([prefix, rest].concat())
}

/// Splits the name of an attribute that may be in an image.
pub(crate) fn examine<'a>(file_type: FileType, name: &'a [u8], value: &[u8]) -> Result<(u8, &'a [u8]), XattrProblem> {
    let split = split(name)?;
    if value.len() > MAX_VALUE {
        return Err(XattrProblem::ValueTooLong);
    }
    let overlay = name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
    let opaque = file_type == FileType::Directory && name == b"trusted.overlay.opaque" && value == b"y";
    if overlay && !opaque {
        return Err(XattrProblem::Overlay);
    }
    Ok(split)
}

/// Bytes of an entry on disk, padding included.
pub(crate) fn entry_size(rest: &[u8], value: &[u8]) -> usize {
    (XattrEntry::SIZE + rest.len() + value.len()).next_multiple_of(ALIGN)
}

/// Writes an entry at the front of `out` and gives what lies behind it. Lengths were checked by [`examine`].
pub(crate) fn put<'o>(out: &'o mut [u8], index: u8, rest: &[u8], value: &[u8]) -> &'o mut [u8] {
    let (entry, behind) = out.split_at_mut(entry_size(rest, value));
    let header = XattrEntry { e_name_len: rest.len() as u8, e_name_index: index, e_value_size: value.len() as u16 };
    let (head, body) = entry.split_at_mut(XattrEntry::SIZE);
    head.copy_from_slice(&header.encode());
    body[..rest.len()].copy_from_slice(rest);
    body[rest.len()..][..value.len()].copy_from_slice(value);
    behind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_and_join() {
        for name in [&b"user.a"[..], b"trusted.b.c", b"security.capability", b"system.posix_acl_access"] {
            let (index, rest) = split(name).unwrap();
            assert_eq!(join(index, rest).unwrap(), name);
        }
        assert_eq!(split(b"system.posix_acl_accessory"), Err(XattrProblem::UnknownPrefix));
        assert_eq!(split(b"system.nfs4_acl"), Err(XattrProblem::UnknownPrefix));
        assert_eq!(split(b"user."), Err(XattrProblem::InvalidName));
        assert_eq!(split(b"user.a\0"), Err(XattrProblem::InvalidName));
        assert_eq!(split(&[b"user.", &[b'x'; 251][..]].concat()), Err(XattrProblem::NameTooLong));
    }

    #[test]
    fn overlayfs_is_told_nothing_but_opaque() {
        let dir = FileType::Directory;
        assert!(examine(dir, b"trusted.overlay.opaque", b"y").is_ok());
        assert!(examine(dir, b"trusted.overlayopaque", b"x").is_ok());
        for (file_type, name, value) in [
            (dir, &b"trusted.overlay.opaque"[..], &b"x"[..]),
            (dir, b"trusted.overlay.redirect", b"y"),
            (dir, b"user.overlay.opaque", b"y"),
            (FileType::File, b"trusted.overlay.opaque", b"y"),
        ] {
            assert_eq!(examine(file_type, name, value), Err(XattrProblem::Overlay));
        }
    }
}
