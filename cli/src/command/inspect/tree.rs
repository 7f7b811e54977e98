//! The entries of a layer, as text or as JSON.

use crate::failure::Failure;
use blobstore::layer::Head;
use chrono::{DateTime, Datelike, SecondsFormat};
use erofs::{FileType, Image, Inode, ReadError};
use serde_json::{Map, Value, json};

/// As [`erofs::dump`] lists them.
pub(super) fn text(head: &Head) -> Result<String, Failure> {
    within(head, |image| {
        let mut text = String::new();
        match erofs::dump(image, &mut text) {
            Ok(Ok(())) => Ok(text),
            Ok(Err(error)) => Err(error),
            // Writing to a string does not fail.
            Err(_) => Err(ReadError::Corrupt("a listing that cannot be written")),
        }
    })
}

/// One object an entry, a directory before what is in it, siblings in byte order.
pub(super) fn json(head: &Head) -> Result<Vec<Value>, Failure> {
    within(head, |image| {
        let (mut listed, mut waiting) = (Vec::new(), vec![(image.root()?, Vec::new())]);
        while let Some((inode, path)) = waiting.pop() {
            listed.push(entry(image, &inode, &path)?);
            if inode.file_type != FileType::Directory {
                continue;
            }
            let first = waiting.len();
            for entry in image.entries(&inode)? {
                let entry = entry?;
                if entry.name != b"." && entry.name != b".." {
                    waiting.push((image.inode(entry.nid)?, [&path, &b"/"[..], entry.name].concat()));
                }
            }
            waiting[first..].reverse();
        }
        Ok(listed)
    })
}

/// Works on a layer's metadata once they are checked: a tree, then, that has an end.
fn within<T>(head: &Head, work: impl FnOnce(&Image<'_>) -> Result<T, ReadError>) -> Result<T, Failure> {
    let (image_blocks, first_data_block) = (head.index.image_blocks(), head.index.first_data_block());
    let refused = |error: &dyn std::fmt::Display| Failure::refused(format!("layer {}: {error}", head.index.id()));
    let checked = erofs::check(&head.metadata, &erofs::Expect { image_blocks, first_data_block });
    let checked = checked.map_err(|error| refused(&error))?;
    work(checked.image()).map_err(|error| refused(&error))
}

fn entry(image: &Image<'_>, inode: &Inode, path: &[u8]) -> Result<Value, ReadError> {
    let path = if path.is_empty() { b"/" } else { path };
    let mut value = json!({
        "path": text_of(path), "type": kind(inode.file_type), "mode": format!("{:04o}", inode.mode & 0o7777),
        "uid": inode.uid, "gid": inode.gid, "links": inode.nlink, "mtime": time(inode.mtime, inode.mtime_nsec),
    });
    match inode.file_type {
        FileType::File => value["size"] = inode.size.into(),
        FileType::Symlink => value["target"] = text_of(image.readlink(inode)?).into(),
        FileType::Char | FileType::Block => {
            let (major, minor) = inode.device();
            value["device"] = json!({"major": major, "minor": minor});
        }
        _ => {}
    }
    let xattrs: Map<String, Value> =
        image.xattrs(inode)?.into_iter().map(|(name, value)| (text_of(&name), text_of(value).into())).collect();
    if !xattrs.is_empty() {
        value["xattrs"] = xattrs.into();
    }
    Ok(value)
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Char => "char",
        FileType::Block => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Names are bytes: those that are no text are escaped as in Rust.
fn text_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// A time as RFC 3339 has it, in UTC; of years that it cannot say, the seconds since 1970.
fn time(seconds: i64, nanoseconds: u32) -> String {
    let format = if nanoseconds == 0 { SecondsFormat::Secs } else { SecondsFormat::Nanos };
    match DateTime::from_timestamp(seconds, nanoseconds).filter(|time| (0..=9999).contains(&time.year())) {
        Some(time) => time.to_rfc3339_opts(format, true),
        None => format!("{seconds}.{nanoseconds:09}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_others_say_them() {
        for (seconds, nanoseconds, said) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_827_696, 500_000_000, "2000-02-29T12:34:56.500000000Z"),
            (1_709_251_199, 0, "2024-02-29T23:59:59Z"),
            (1_709_251_200, 0, "2024-03-01T00:00:00Z"),
            (4_107_542_399, 0, "2100-02-28T23:59:59Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00Z"),
            (-1, 0, "1969-12-31T23:59:59Z"),
            (-62_167_219_200, 0, "0000-01-01T00:00:00Z"),
            (253_402_300_799, 0, "9999-12-31T23:59:59Z"),
            (253_402_300_800, 1, "253402300800.000000001"),
            (i64::MAX, 0, "9223372036854775807.000000000"),
            (i64::MIN, 0, "-9223372036854775808.000000000"),
        ] {
            assert_eq!(time(seconds, nanoseconds), said, "{seconds}");
        }
    }

    #[test]
    fn names_that_are_no_text_are_escaped() {
        assert_eq!(text_of("äb".as_bytes()), "äb");
        assert_eq!(text_of(b"a\xff"), "a\\xff");
    }
}
