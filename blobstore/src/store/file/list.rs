//! The keys below a directory.

use crate::store::{Listed, Stat, TEMPORARY, check_key};
use std::fs::DirEntry;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// Keys of the files below `prefix` (empty or ending in `/`), in byte order; none where there is no such directory.
/// Names that no key can have are left out: they are not ours.
pub(super) fn keys(root: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut keys = Vec::new();
    walk(root, prefix, |key, _| {
        keys.push(key);
        Ok(())
    })?;
    // Not the order of a walk: "a-b" stands before "a/b".
    keys.sort_unstable();
    Ok(keys)
}

/// The same with sizes and times.
pub(super) fn objects(root: &Path, prefix: &str) -> io::Result<Vec<Listed>> {
    let mut objects = Vec::new();
    walk(root, prefix, |key, entry| {
        match entry.metadata() {
            Ok(found) => {
                let stat = Stat { size: found.len(), modified: found.modified()? };
                objects.push(Listed { key, stat });
            }
            // Deleted since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(objects)
}

/// Files of writers that were killed, last written before a moment: by their names.
pub(super) fn leftovers(root: &Path, before: SystemTime, remove: bool) -> io::Result<Vec<Listed>> {
    let (mut found, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(root.join(&folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let key = format!("{folder}{name}");
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(key + "/");
            } else if name.starts_with(TEMPORARY) && metadata.modified()? < before {
                if remove {
                    std::fs::remove_file(entry.path())?;
                }
                found.push(Listed { key, stat: Stat { size: metadata.len(), modified: metadata.modified()? } });
            }
        }
    }
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

fn walk(root: &Path, prefix: &str, mut found: impl FnMut(String, &DirEntry) -> io::Result<()>) -> io::Result<()> {
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
                () if kind.is_file() && check_key("", &key).is_ok() => found(key, &entry)?,
                () => {}
            }
        }
    }
    Ok(())
}
