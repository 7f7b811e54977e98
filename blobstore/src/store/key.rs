//! What a key is, for every backend alike: what one store takes, all take.

use super::{Result, StoreError};

/// Parts of keys may not start with this: backends name what they are still writing so.
pub const TEMPORARY: &str = ".tmp-";

/// Longest key, in bytes (S3's limit).
const MAX_KEY: usize = 1024;
/// Longest part of a key, in bytes (a file name's limit).
const MAX_PART: usize = 255;

/// Refuses what is not a key: at most 1024 bytes of `/`-separated parts, each of 1 to 255 bytes, none of them `.` or
/// `..` or starting with [`TEMPORARY`], without control characters. `store` is the URL for the message.
pub fn check_key(store: &str, key: &str) -> Result<()> {
    let bad_part = |part: &str| part.len() > MAX_PART || matches!(part, "" | "." | "..") || part.starts_with(TEMPORARY);
    if key.len() > MAX_KEY || key.chars().any(char::is_control) || key.split('/').any(bad_part) {
        return Err(StoreError::Unsupported { store: store.to_owned(), what: format!("{key:?} is no key") });
    }
    Ok(())
}

/// Refuses what is not a prefix to list by: nothing, or a key and a `/`.
pub fn check_prefix(store: &str, prefix: &str) -> Result<()> {
    match prefix.strip_suffix('/') {
        Some(key) => check_key(store, key),
        None if prefix.is_empty() => Ok(()),
        None => {
            let what = format!("{prefix:?} is no prefix to list: it does not end in '/'");
            Err(StoreError::Unsupported { store: store.to_owned(), what })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_relative_paths_that_stay_below_the_root() {
        for key in ["format", "layers/ab/abcd", "a/.hidden", "images/host:5000/x_y/_/v1.0/7", "a b", "ä"] {
            assert!(check_key("s", key).is_ok(), "{key}");
        }
        let long = "x".repeat(256);
        for key in
            ["", "/", "/a", "a/", "a//b", ".", "a/..", "../a", "a/./b", "a\0b", "a\nb", ".tmp-x", "a/.tmp-1/b", &long]
        {
            assert!(matches!(check_key("s", key), Err(StoreError::Unsupported { .. })), "{key:?}");
        }
        assert!(check_key("s", &"x/".repeat(600)).is_err());
    }

    #[test]
    fn prefixes_are_empty_or_end_in_a_slash() {
        assert!(check_prefix("s", "").is_ok());
        assert!(check_prefix("s", "a/b/").is_ok());
        for prefix in ["a", "/", "../", "a//"] {
            assert!(check_prefix("s", prefix).is_err(), "{prefix:?}");
        }
    }
}
