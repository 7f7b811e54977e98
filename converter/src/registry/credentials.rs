//! Credentials as `docker login` and `podman login` leave them: files in the form of Docker's `config.json`.
//!
//! A file has them itself (`auths`), or names a helper program that has (`credHelpers`, `credsStore`). Entries are for a
//! host, or for a path below one; the longest that fits is taken, from the first file that has one.

use super::helper;
use super::secret::Secret;
use base64::Engine;
use blobstore::small_file;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest file of credentials, bytes: Docker keeps other settings in it, too.
const FILE_MAX: u64 = 4 << 20;

/// What the search for credentials came to.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The credentials, if there are any.
    pub(super) secret: Option<Secret>,
    /// Where they are from, or where none were found: for messages.
    pub(super) told: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: BTreeMap<String, Auth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Not for logs.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(…)")
    }
}

/// Looks for the credentials for a repository of a host. A file or helper that does not work is told of, and passed over:
/// the image may be for everybody.
pub(super) async fn find(host: &str, repository: &str, files: &[PathBuf]) -> Found {
    let mut told = Vec::new();
    for path in files {
        let file = match read(path) {
            Ok(Some(file)) => file,
            Ok(None) => continue,
            Err(why) => {
                told.push(format!("{}: {why}", path.display()));
                continue;
            }
        };
        let from = path.display();
        if let Some(name) = file.helper(host) {
            match helper::get(name, server(host)).await {
                Ok(Some(secret)) => return found(secret, format!("docker-credential-{name}, named by {from}")),
                Ok(None) => told.push(format!("docker-credential-{name} ({from}) has none")),
                Err(why) => told.push(format!("docker-credential-{name} ({from}): {why}")),
            }
        }
        match file.auth(host, repository).map(Auth::secret) {
            Some(Ok(Some(secret))) => return found(secret, from.to_string()),
            Some(Err(why)) => told.push(format!("{from}: {why}")),
            Some(Ok(None)) | None => told.push(format!("{from} has none")),
        }
    }
    if told.is_empty() {
        let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
        told.push(format!("there is none of {}", names.join(", ")));
    }
    Found { secret: None, told: format!("no credentials for {host} were found: {}", told.join("; ")) }
}

fn found(secret: Secret, from: String) -> Found {
    let what = match &secret {
        Secret::Basic(user, _) => format!("user '{}'", crate::error::show(user.as_bytes())),
        Secret::Identity(_) => "an identity token".to_owned(),
        Secret::Bearer(_) => "a registry token".to_owned(),
    };
    Found { secret: Some(secret), told: format!("the credentials tried were {what} from {from}") }
}

fn read(path: &Path) -> Result<Option<File>, String> {
    match small_file::read(path, FILE_MAX) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| e.to_string()),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// Under which name helpers know a host.
fn server(host: &str) -> &str {
    match host {
        "docker.io" => "https://index.docker.io/v1/",
        host => host,
    }
}

/// A key of a file as host and path: keys have been URLs, and Docker's own registry has had several names.
fn normal(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    };
    match path.trim_end_matches('/') {
        "" | "v1" | "v2" => host.to_owned(),
        path => format!("{host}/{path}"),
    }
}

impl File {
    fn helper(&self, host: &str) -> Option<&str> {
        let own = self.cred_helpers.iter().find(|(key, _)| normal(key) == host).map(|(_, name)| name);
        own.or(self.creds_store.as_ref()).map(String::as_str).filter(|name| !name.is_empty())
    }

    fn auth(&self, host: &str, repository: &str) -> Option<&Auth> {
        let whole = format!("{host}/{repository}");
        let fits = |key: &str| whole.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fitting = self.auths.iter().map(|(key, auth)| (normal(key), auth)).filter(|(key, _)| fits(key));
        fitting.max_by_key(|(key, _)| key.len()).map(|(_, auth)| auth)
    }
}

impl Auth {
    fn secret(&self) -> Result<Option<Secret>, String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = given(&self.identitytoken) {
            return Ok(Some(Secret::Identity(token)));
        }
        if let Some(token) = given(&self.registrytoken) {
            return Ok(Some(Secret::Bearer(token)));
        }
        if let Some(auth) = given(&self.auth) {
            let engine = base64::engine::general_purpose::STANDARD;
            let bytes = engine.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = bytes
                .as_deref()
                .and_then(|text| text.split_once(':'))
                .ok_or("an 'auth' is no base64 of USER:PASSWORD")?;
            return Ok(Some(Secret::Basic(pair.0.to_owned(), pair.1.trim_end_matches('\0').to_owned())));
        }
        Ok(given(&self.username).zip(self.password.clone()).map(|(user, password)| Secret::Basic(user, password)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn find_in(json: &str, host: &str, repository: &str) -> Found {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json).unwrap();
        find(host, repository, &["/nowhere/config.json".into(), file.path().to_owned()]).await
    }

    fn basic(user: &str, password: &str) -> Option<Secret> {
        Some(Secret::Basic(user.to_owned(), password.to_owned()))
    }

    #[tokio::test]
    async fn dockers_own_registry_has_many_names() {
        for key in ["https://index.docker.io/v1/", "docker.io", "registry-1.docker.io", "index.docker.io/v1"] {
            // "dTpwOnE=" is u:p:q
            let json = format!(r#"{{"auths": {{"{key}": {{"auth": "dTpwOnE="}}}}}}"#);
            assert_eq!(find_in(&json, "docker.io", "library/x").await.secret, basic("u", "p:q"), "{key}");
        }
    }

    #[tokio::test]
    async fn the_longest_path_that_fits_is_taken() {
        let json = r#"{"auths": {
            "h:5000": {"username": "a", "password": "1"},
            "h:5000/team": {"username": "b", "password": "2"},
            "h:5000/team/app": {"identitytoken": "t"},
            "h:5000/other": {"registrytoken": "r"}}}"#;
        assert_eq!(find_in(json, "h:5000", "x").await.secret, basic("a", "1"));
        assert_eq!(find_in(json, "h:5000", "team/x").await.secret, basic("b", "2"));
        assert_eq!(find_in(json, "h:5000", "teams").await.secret, basic("a", "1"));
        assert_eq!(find_in(json, "h:5000", "team/app").await.secret, Some(Secret::Identity("t".to_owned())));
        assert_eq!(find_in(json, "h:5000", "other/y").await.secret, Some(Secret::Bearer("r".to_owned())));
        assert_eq!(find_in(json, "h", "x").await.secret, None);
    }

    #[tokio::test]
    async fn what_was_looked_at_is_told_and_no_secret_is() {
        let found = find_in(r#"{"auths": {"h": {"auth": "%%%"}}}"#, "h", "x").await;
        assert!(found.secret.is_none() && found.told.contains("base64"), "{found:?}");
        let found = find_in("{", "h", "x").await;
        assert!(found.told.contains("EOF"), "{found:?}");
        let found = find_in(r#"{"auths": {"h": {"username": "u", "password": "hidden"}}}"#, "h", "x").await;
        assert!(found.told.contains("'u'") && !format!("{found:?}").contains("hidden"), "{found:?}");
        let found = find("h", "x", &["/nowhere/a".into()]).await;
        assert!(found.told.contains("/nowhere/a"), "{found:?}");
    }

    #[tokio::test]
    async fn a_file_without_an_end_is_told_and_not_read() {
        let found = find("h", "r", &["/dev/zero".into()]).await;
        assert!(found.secret.is_none() && found.told.contains("/dev/zero: longer than"), "{}", found.told);
    }

    #[tokio::test]
    async fn a_helper_whose_name_is_a_path_is_not_run() {
        let json = r#"{"credsStore": "../../bin/sh", "auths": {"h": {"auth": "dTpwOnE="}}}"#;
        assert_eq!(find_in(json, "h", "x").await.secret, basic("u", "p:q"));
        let json = r#"{"credHelpers": {"h": "a b"}}"#;
        assert!(find_in(json, "h", "x").await.told.contains("name"));
    }
}
