//! From a URL to the store that it names.

use super::{FileStore, Result, Store, StoreError};
use std::sync::Arc;

/// Schemes that Lamina's configuration knows and this build has no backend for.
const NOT_BUILT: [&str; 5] = ["s3", "3fs", "http", "https", "oci"];

/// The store at `url`: `file://` and an absolute path, taken as it is (no percent-encoding). Nothing is read or
/// created yet. [`StoreError::Unsupported`] for other schemes.
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    let refuse = |what: String| Err(StoreError::Unsupported { store: url.to_owned(), what });
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse(match url.starts_with('/') {
            true => format!("not a store's URL; a directory is written file://{url}"),
            false => "not a store's URL; file:///DIRECTORY is one".to_owned(),
        });
    };
    match scheme {
        "file" if rest.starts_with('/') => Ok(Arc::new(FileStore::new(rest))),
        "file" => refuse("file:// needs an absolute path: file:///DIRECTORY".to_owned()),
        known if NOT_BUILT.contains(&known) => refuse(format!("stores of {known}:// are not built yet; file:// is")),
        unknown => refuse(format!("no store has the scheme {unknown}://; file:// is one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_url_with_an_absolute_path_is_a_store() {
        assert_eq!(open("file:///var/lib/x/").unwrap().url(), "file:///var/lib/x");
    }

    #[test]
    fn other_urls_say_what_is_wrong() {
        for (url, says) in [
            ("file://x/y", "absolute"),
            ("/var/lib", "file:///var/lib"),
            ("store", "file:///DIRECTORY"),
            ("s3://bucket/prefix", "not built yet"),
            ("https://host/x", "not built yet"),
            ("gopher://x", "no store has the scheme"),
        ] {
            let error = open(url).unwrap_err();
            assert!(matches!(error, StoreError::Unsupported { .. }));
            assert!(error.to_string().contains(says) && error.to_string().contains(url), "{error}");
        }
    }
}
