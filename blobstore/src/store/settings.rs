//! What stores need to know besides their URL. Read at the edge (the configuration, the environment) and handed in: nothing
//! here looks at either.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Settings of all backends; each takes what is its own.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// PEM file of certificate authorities that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// URL of the proxy for every request. `None`: what the environment says; empty: none at all.
    pub proxy: Option<Secret>,
    /// For `s3://`.
    pub s3: S3Settings,
    /// For `3fs://`: read through 3FS's user-space library, which is this file, or has this name where the system's loader
    /// looks ([`USRBIO_LIBRARY`](super::USRBIO_LIBRARY)).
    pub usrbio: Option<PathBuf>,
}

/// Settings of `s3://` stores. What is unset is looked for in `environment`, as AWS's own tools do.
#[derive(Debug, Clone, Default)]
pub struct S3Settings {
    /// Base URL of the service, without the bucket; `None` = AWS of the region.
    pub endpoint: Option<String>,
    /// Region that requests are signed for; `None` = the environment's, the profile's, or `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket stands in the path and not in the host's name; `None` = with an endpoint of its own, and for
    /// names with dots, which certificates for `*.HOST` do not fit.
    pub path_style: Option<bool>,
    /// Whether an endpoint without TLS may be spoken to.
    pub allow_http: bool,
    /// Profile of AWS's files to take credentials from, before all other sources.
    pub profile: Option<String>,
    /// The file with profiles' credentials; `None` = the environment's, or `~/.aws/credentials`.
    pub credentials_file: Option<PathBuf>,
    /// Credentials given here come before all others.
    pub access_key_id: Option<String>,
    /// Belongs to `access_key_id`.
    pub secret_access_key: Option<Secret>,
    /// Of temporary credentials.
    pub session_token: Option<Secret>,
    /// Whether requests are sent unsigned: for public buckets.
    pub anonymous: bool,
    /// The process's environment, as far as it is about AWS.
    pub environment: Environment,
}

/// A text that logs and messages do not show.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Variables `AWS_*` and `HOME`, by name. Values are not shown: some are secrets.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables that S3 stores look at, of all of them.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().filter(|(name, _)| name.starts_with("AWS_") || name == "HOME").collect())
    }

    /// A variable that is set, and not to nothing.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let settings = Settings {
            proxy: Some("http://user:hush@proxy".into()),
            s3: S3Settings {
                secret_access_key: Some("hush".into()),
                session_token: Some("hush".into()),
                environment: Environment::of([("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned())]),
                ..S3Settings::default()
            },
            ..Settings::default()
        };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hush") && shown.contains("AWS_SECRET_ACCESS_KEY"), "{shown}");
    }
}
