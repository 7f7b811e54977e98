//! Whose requests these are: where credentials come from, in AWS's own order, and that they are fresh.
//!
//! 1. the settings' own (`access_key_id`)
//! 2. the profile that the settings name
//! 3. `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`
//! 4. a web identity: `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`
//! 5. the profile that `AWS_PROFILE` names, or `default`, where the files have it
//! 6. a container's: `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`, or `…_FULL_URI` with `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`
//! 7. the instance's metadata service, unless `AWS_EC2_METADATA_DISABLED`
//!
//! A service that cannot give them just now is one of the store that passes; one that says no, or a metadata service that
//! is not there, denies access.
//!
//! Temporary ones are asked for anew five minutes before they end, files are read again when they change, and when the
//! store denies access all of it is done again at once: clocks differ, and keys are revoked.

use super::answer;
use super::connector::{Connector, builder};
use super::profile::{Kind, ProfileProvider, Profiles};
use crate::causes;
use crate::store::settings::{S3Settings, Secret, Settings};
use crate::store::{Result, StoreError};
use async_trait::async_trait;
use object_store::aws::{AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, StaticCredentialProvider};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often credentials are renewed because the store denied access: it may mean it.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Longest file of a token, bytes.
const TOKEN_MAX: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Credentials {
    store: String,
    source: Source,
    /// Where they come from, for messages.
    told: String,
    region: Option<String>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    provider: AwsCredentialProvider,
    renewed: Option<Instant>,
}

#[derive(Debug)]
enum Source {
    Fixed {
        key_id: String,
        secret_key: Secret,
        token: Option<Secret>,
    },
    Profile(Profiles),
    /// Some service of the cloud's; the S3 client knows how to ask it.
    Service {
        connector: Box<Connector>,
        values: Vec<(AmazonS3ConfigKey, String)>,
    },
}

impl Credentials {
    /// Finds out where credentials are to be had; asks for none yet.
    pub(super) fn new(store: &str, settings: &Settings) -> Result<Self> {
        let connector = Box::new(Connector::new(store, settings, None));
        let refuse = |what: String| StoreError::Unsupported { store: store.to_owned(), what };
        let (profiles, explicit) = Profiles::of(&settings.s3);
        let profile = profiles.read();
        let region = profile.iter().flatten().find_map(|found| found.get("region")).map(str::to_owned);
        // What is wrong with a profile matters where it is needed.
        let kind = || match &profile {
            Ok(found) => found.as_ref().map(|found| found.kind()).transpose(),
            Err(error) => Err(error.clone()),
        };
        let (source, told) = if settings.s3.access_key_id.is_some() || settings.s3.secret_access_key.is_some() {
            (own(&settings.s3).map_err(refuse)?, "[store.s3]".to_owned())
        } else if explicit {
            let kind = kind().map_err(&refuse)?.ok_or_else(|| refuse(profiles.missing()))?;
            of_profile(profiles, kind, connector)
        } else if let Some(found) = from_environment(&settings.s3, &connector) {
            found
        } else {
            match kind().map_err(&refuse)? {
                Some(kind) if kind != Kind::Nothing => of_profile(profiles, kind, connector),
                _ => from_cloud(&settings.s3, connector).map_err(&refuse)?,
            }
        };
        let current = Mutex::new(Current { provider: source.provider().map_err(refuse)?, renewed: None });
        Ok(Self { store: store.to_owned(), source, told, region, current })
    }

    /// The region that the profile names.
    pub(super) fn region(&self) -> Option<String> {
        self.region.clone()
    }

    /// Asks for new credentials because a request that began at `since` was denied. Whether it makes sense to try again.
    pub(super) fn renew(&self, since: Instant) -> bool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match current.renewed {
            _ if matches!(self.source, Source::Fixed { .. }) => return false,
            // Another request has done so meanwhile.
            Some(at) if at > since => return true,
            Some(at) if at.elapsed() < RENEW_EVERY => return false,
            _ => {}
        }
        let Ok(provider) = self.source.provider() else { return false };
        tracing::info!(store = self.store, from = self.told, "access was denied: credentials are renewed");
        *current = Current { provider, renewed: Some(Instant::now()) };
        true
    }

    /// Why there are none, as the kind that callers act on: what passes where they come from passes.
    fn none(&self, error: &object_store::Error) -> StoreError {
        let what = format!("no credentials from {}: {}", self.told, causes(error));
        let (store, key) = (self.store.clone(), String::new());
        match answer::store_error(&store, &key, error) {
            StoreError::Busy { after, .. } => StoreError::Busy { store, key, what, after },
            StoreError::Io { source, .. } if !self.source.is_nowhere(source.kind()) => {
                StoreError::Io { store, key, source: io::Error::new(source.kind(), what) }
            }
            _ => StoreError::Denied { store, key, what },
        }
    }
}

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let provider = self.current.lock().unwrap_or_else(PoisonError::into_inner).provider.clone();
        let told = |e: StoreError| object_store::Error::Generic { store: "S3", source: Box::new(e) };
        self.source.check_token_file().map_err(|what| {
            let what = format!("no credentials from {}: {what}", self.told);
            told(StoreError::Denied { store: self.store.clone(), key: String::new(), what })
        })?;
        provider.get_credential().await.map_err(|e| told(self.none(&e)))
    }
}

impl Source {
    /// Whether a failure means that nothing is there to give any: nobody has said that this is a cloud's machine.
    fn is_nowhere(&self, kind: io::ErrorKind) -> bool {
        let guessed = |values: &[(AmazonS3ConfigKey, String)]| {
            values.iter().all(|(key, _)| *key == AmazonS3ConfigKey::MetadataEndpoint)
        };
        kind == io::ErrorKind::NotConnected && matches!(self, Self::Service { values, .. } if guessed(values))
    }

    /// A token's file is read by the S3 client, and to its end: one that has none is found here.
    fn check_token_file(&self) -> std::result::Result<(), String> {
        use AmazonS3ConfigKey::{ContainerAuthorizationTokenFile, WebIdentityTokenFile};
        let Self::Service { values, .. } = self else { return Ok(()) };
        let is_file = |key: &AmazonS3ConfigKey| matches!(key, WebIdentityTokenFile | ContainerAuthorizationTokenFile);
        for (_, path) in values.iter().filter(|(key, _)| is_file(key)) {
            match std::fs::metadata(path) {
                Ok(found) if !found.is_file() => return Err(format!("{path}: it is not a regular file")),
                Ok(found) if found.len() > TOKEN_MAX => return Err(format!("{path}: longer than {TOKEN_MAX} bytes")),
                // What else is wrong is told by who reads it.
                _ => {}
            }
        }
        Ok(())
    }

    /// Something that has not asked yet.
    fn provider(&self) -> std::result::Result<AwsCredentialProvider, String> {
        Ok(match self {
            Self::Fixed { key_id, secret_key, token } => Arc::new(StaticCredentialProvider::new(AwsCredential {
                key_id: key_id.clone(),
                secret_key: secret_key.expose().to_owned(),
                token: token.as_ref().map(|token| token.expose().to_owned()),
            })),
            Self::Profile(profiles) => Arc::new(ProfileProvider::new(profiles.clone())),
            Self::Service { connector, values } => {
                let mut builder = builder(Connector::clone(connector), false).with_bucket_name("none");
                for (key, value) in values {
                    builder = builder.with_config(*key, value);
                }
                builder.build().map_err(|e| answer::told(&e))?.credentials().clone()
            }
        })
    }
}

fn own(s3: &S3Settings) -> std::result::Result<Source, String> {
    match (&s3.access_key_id, &s3.secret_access_key) {
        (Some(key_id), Some(secret)) => {
            Ok(Source::Fixed { key_id: key_id.clone(), secret_key: secret.clone(), token: s3.session_token.clone() })
        }
        _ => Err("[store.s3] access_key_id and secret_access_key belong together".to_owned()),
    }
}

fn of_profile(profiles: Profiles, kind: Kind, connector: Box<Connector>) -> (Source, String) {
    let told = format!("profile {}", profiles.name());
    match kind {
        Kind::WebIdentity { role, token_file, session } => {
            let values = web_identity(role, token_file, session, &connector.settings.s3);
            (Source::Service { connector, values }, format!("{told} (web identity)"))
        }
        Kind::Keys | Kind::Nothing => (Source::Profile(profiles), told),
    }
}

fn from_environment(s3: &S3Settings, connector: &Connector) -> Option<(Source, String)> {
    let get = |name: &str| s3.environment.get(name).map(str::to_owned);
    if let (Some(key_id), Some(secret_key)) = (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
        let (secret_key, token) = (secret_key.into(), get("AWS_SESSION_TOKEN").map(Secret::from));
        return Some((Source::Fixed { key_id, secret_key, token }, "AWS_ACCESS_KEY_ID".to_owned()));
    }
    let (token_file, role) = (get("AWS_WEB_IDENTITY_TOKEN_FILE")?, get("AWS_ROLE_ARN")?);
    let values = web_identity(role, token_file, get("AWS_ROLE_SESSION_NAME"), s3);
    let told = "AWS_WEB_IDENTITY_TOKEN_FILE".to_owned();
    Some((Source::Service { connector: Box::new(connector.clone()), values }, told))
}

fn web_identity(
    role: String,
    token_file: String,
    session: Option<String>,
    s3: &S3Settings,
) -> Vec<(AmazonS3ConfigKey, String)> {
    use AmazonS3ConfigKey::{Region, RoleArn, RoleSessionName, StsEndpoint, WebIdentityTokenFile};
    let get = |name: &str| s3.environment.get(name).map(str::to_owned);
    let region = s3.region.clone().or_else(|| get("AWS_REGION")).or_else(|| get("AWS_DEFAULT_REGION"));
    let values = [
        (WebIdentityTokenFile, Some(token_file)),
        (RoleArn, Some(role)),
        (RoleSessionName, session),
        (StsEndpoint, get("AWS_ENDPOINT_URL_STS")),
        (Region, region),
    ];
    values.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

fn from_cloud(s3: &S3Settings, connector: Box<Connector>) -> std::result::Result<(Source, String), String> {
    use AmazonS3ConfigKey::{ContainerAuthorizationTokenFile, ContainerCredentialsFullUri};
    use AmazonS3ConfigKey::{ContainerCredentialsRelativeUri, MetadataEndpoint};
    let get = |name: &str| s3.environment.get(name).map(str::to_owned);
    let service = |values, told: &str| Ok((Source::Service { connector, values }, told.to_owned()));
    if let Some(uri) = get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        return service(vec![(ContainerCredentialsRelativeUri, uri)], "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    }
    if let Some(uri) = get("AWS_CONTAINER_CREDENTIALS_FULL_URI") {
        let Some(file) = get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") else {
            return Err("AWS_CONTAINER_CREDENTIALS_FULL_URI needs AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE".to_owned());
        };
        let values = vec![(ContainerCredentialsFullUri, uri), (ContainerAuthorizationTokenFile, file)];
        return service(values, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
    }
    if get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(
            "no credentials: none in [store.s3], the environment or AWS's files; anonymous = true asks without"
                .to_owned(),
        );
    }
    let endpoint = get("AWS_EC2_METADATA_SERVICE_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned());
    let values = endpoint.map(|endpoint| (MetadataEndpoint, endpoint)).into_iter().collect();
    service(values, "the instance's metadata service (none in [store.s3], the environment or AWS's files)")
}
