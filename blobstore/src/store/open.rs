//! From a URL to the store that it names.

use super::{FileStore, HttpStore, Result, Retry, S3Store, Settings, Store, StoreError, ThreeFsStore};
use std::sync::Arc;

/// The store at `url`, with nothing set; see [`open_with`].
pub fn open(url: &str) -> Result<Arc<dyn Store>> {
    open_with(url, &Settings::default())
}

/// The store at `url`. `file://` and `3fs://` have an absolute path, taken as it is (no percent-encoding); `s3://` a
/// bucket and a prefix; `http://` and `https://` are read-only. Those on the network try short troubles again. Nothing is
/// asked or created yet. [`StoreError::Unsupported`] for other URLs, and for settings that the store cannot use.
pub fn open_with(url: &str, settings: &Settings) -> Result<Arc<dyn Store>> {
    let refuse = |what: String| Err(StoreError::Unsupported { store: without_user(url), what });
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse(match url.starts_with('/') {
            true => format!("not a store's URL; a directory is written file://{url}"),
            false => "not a store's URL; file:///DIRECTORY is one".to_owned(),
        });
    };
    match scheme {
        "file" if rest.starts_with('/') => Ok(Arc::new(FileStore::new(rest))),
        "3fs" if rest.starts_with('/') => Ok(Arc::new(ThreeFsStore::new(rest, settings)?)),
        "file" | "3fs" => refuse(format!("{scheme}:// needs an absolute path: {scheme}:///DIRECTORY")),
        "s3" => Ok(Arc::new(Retry::new(Arc::new(S3Store::new(url, settings)?)))),
        "http" | "https" => Ok(Arc::new(Retry::new(Arc::new(HttpStore::new(url, settings)?)))),
        unknown => refuse(format!("no store has the scheme {unknown}://; there are file, s3, 3fs, https and http")),
    }
}

/// A URL for messages: without what stands before its host, which may be a secret. Such a one may have slashes in it, so all
/// before the last `@` goes; a path is no URL and stays.
pub(super) fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match rest.rsplit_once('@') {
        Some((_, host)) if !url.starts_with('/') && scheme.is_empty() => host.to_owned(),
        Some((_, host)) if !url.starts_with('/') => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_names_a_store() {
        let settings = Settings::default();
        for (url, shown) in [
            ("file:///var/lib/x/", "file:///var/lib/x"),
            ("3fs:///mnt/x/", "3fs:///mnt/x"),
            ("s3://bucket/a/prefix/", "s3://bucket/a/prefix"),
            ("https://host:1/x/", "https://host:1/x"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ] {
            assert_eq!(open_with(url, &settings).unwrap().url(), shown);
        }
    }

    #[test]
    fn other_urls_say_what_is_wrong() {
        for (url, says) in [
            ("file://x/y", "absolute"),
            ("3fs://x/y", "absolute"),
            ("/var/lib", "file:///var/lib"),
            ("store", "file:///DIRECTORY"),
            ("s3:///prefix", "BUCKET"),
            ("gopher://x", "no store has the scheme"),
        ] {
            let error = open(url).unwrap_err();
            assert!(matches!(error, StoreError::Unsupported { .. }));
            assert!(error.to_string().contains(says) && error.to_string().contains(url), "{error}");
        }
        for url in ["gopher://user:hush@x/y", "user:hush@x/y", "file://user:hush@x/y", "https://user:hush@x/y"] {
            let error = open(url).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
        assert!(open("/a@b").unwrap_err().to_string().contains("/a@b"));
        let settings = Settings { usrbio: Some("/not/there.so".into()), ..Settings::default() };
        assert!(open_with("3fs:///mnt/x", &settings).unwrap_err().to_string().contains("/not/there.so"));
    }
}
