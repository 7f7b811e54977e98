//! The keys below a directory.

use crate::store::{TEMPORARY, check_key};
use std::io;
use std::path::Path;

/// Keys of the files below `prefix` (empty or ending in `/`), in byte order; none where there is no such directory.
/// Names that no key can have are left out: they are not ours.
pub(super) fn keys(root: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut keys = Vec::new();
    let mut folders = vec![prefix.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(root.join(&folder)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with(TEMPORARY)) else { continue };
            let kind = entry.file_type()?;
            let key = format!("{folder}{name}");
            match () {
                () if kind.is_dir() => folders.push(key + "/"),
                () if kind.is_file() && check_key("", &key).is_ok() => keys.push(key),
                () => {}
            }
        }
    }
    // Not the order of a walk: "a-b" stands before "a/b".
    keys.sort_unstable();
    Ok(keys)
}
