//! From URL and settings to clients that speak to a bucket.

use super::connector::{Connector, builder, options};
use super::credentials::Credentials;
use crate::store::open::without_user;
use crate::store::settings::Settings;
use crate::store::{Result, StoreError, check_key};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::{HeaderMap, HeaderValue};
use reqwest::Url;
use std::sync::Arc;

/// A bucket and how to reach it.
pub(super) struct Connected {
    /// For everything that has no condition, or names its own.
    pub(super) plain: AmazonS3,
    /// Sends `If-None-Match: *` with everything: the completion of an upload that must not replace anything.
    pub(super) creating: AmazonS3,
    pub(super) credentials: Option<Arc<Credentials>>,
    /// Empty, or ends in `/`.
    pub(super) prefix: String,
}

/// Bucket and prefix of `s3://BUCKET/PREFIX`.
fn parts(url: &str) -> Result<(&str, String)> {
    // What stands before a host may be a secret.
    let refuse = |what: &str| Err(StoreError::Unsupported { store: without_user(url), what: what.to_owned() });
    let rest = url.strip_prefix("s3://").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if bucket.is_empty() || !bucket.chars().all(fits) {
        return refuse("not s3://BUCKET/PREFIX; an endpoint is set by endpoint under [store.s3]");
    }
    let prefix = prefix.trim_end_matches('/');
    if prefix.is_empty() {
        return Ok((bucket, String::new()));
    }
    check_key(url, prefix)?;
    Ok((bucket, format!("{prefix}/")))
}

/// Prepares to speak to the bucket; asks nothing yet.
pub(super) fn connect(url: &str, settings: &Settings) -> Result<Connected> {
    let (bucket, prefix) = parts(url)?;
    let s3 = &settings.s3;
    let refuse = |what: String| StoreError::Unsupported { store: url.to_owned(), what };
    let environment = |names: &[&str]| names.iter().find_map(|name| s3.environment.get(name)).map(str::to_owned);
    let endpoint = s3.endpoint.clone().or_else(|| environment(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]));
    let allow_http = s3.allow_http || environment(&["AWS_ALLOW_HTTP"]).is_some_and(|value| value == "true");
    let target = endpoint.as_deref().map(|text| parse_endpoint(text, allow_http)).transpose().map_err(refuse)?;
    let credentials = match s3.anonymous {
        true => None,
        false => Some(Arc::new(Credentials::new(url, settings)?)),
    };
    let region = s3.region.clone().or_else(|| environment(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let region = region.or_else(|| credentials.as_ref().and_then(|found| found.region()));
    let connector = Connector::new(url, settings, target.clone());
    let mut builder = builder(connector, allow_http)
        .with_bucket_name(bucket)
        .with_region(region.unwrap_or_else(|| "us-east-1".to_owned()))
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_disable_bulk_delete(true);
    builder = match &credentials {
        Some(credentials) => builder.with_credentials(credentials.clone()),
        None => builder.with_skip_signature(true),
    };
    let path_style = s3.path_style.unwrap_or(target.is_some() || bucket.contains('.') || !can_be_in_host(bucket));
    if !path_style && !can_be_in_host(bucket) {
        return Err(refuse(format!("bucket {bucket} cannot stand in a host's name: path_style = false does not work")));
    }
    builder = builder.with_virtual_hosted_style_request(!path_style);
    if let Some(target) = &target {
        builder = builder.with_endpoint(endpoint_of(target, bucket, path_style).map_err(refuse)?);
    }
    let creating = builder.clone().with_client_options(options(allow_http).with_default_headers(if_none_match()));
    let build = |builder: AmazonS3Builder| builder.build().map_err(|e| refuse(super::answer::told(&e)));
    Ok(Connected { plain: build(builder)?, creating: build(creating)?, credentials, prefix })
}

fn if_none_match() -> HeaderMap {
    [(http::header::IF_NONE_MATCH, HeaderValue::from_static("*"))].into_iter().collect()
}

fn parse_endpoint(text: &str, allow_http: bool) -> std::result::Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| url.has_host());
    let url = url.filter(|url| url.username().is_empty() && url.password().is_none() && url.query().is_none());
    match url.as_ref().map(Url::scheme) {
        Some("https") => {}
        Some("http") if allow_http => {}
        Some("http") => {
            return Err(format!(
                "endpoint {text} is without TLS: set allow_http = true under [store.s3] if that is meant"
            ));
        }
        _ => return Err("endpoint under [store.s3] is no URL such as https://HOST".to_owned()),
    }
    url.ok_or_else(String::new)
}

/// Hosts' names have no capitals: another bucket would be meant.
fn can_be_in_host(bucket: &str) -> bool {
    bucket.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
}

/// Where the bucket is: with its name in the host, or (added by the client) in the path.
fn endpoint_of(target: &Url, bucket: &str, path_style: bool) -> std::result::Result<String, String> {
    let mut url = target.clone();
    if !path_style {
        // A literal address has no names below it: without the bucket, the first part of a key would be taken for one.
        let host = target.domain().map(|domain| format!("{bucket}.{domain}"));
        let set = host.as_ref().is_some_and(|host| url.set_host(Some(host)).is_ok() && url.domain() == Some(host));
        if !set {
            return Err(format!(
                "endpoint {target} cannot have the bucket before its host: path_style = false under \
                                [store.s3] needs one with a name, not an address"
            ));
        }
    }
    Ok(url.to_string().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::S3Store;
    use crate::store::settings::{Environment, S3Settings};

    #[test]
    fn a_url_is_a_bucket_and_a_prefix() {
        assert_eq!(parts("s3://b").unwrap(), ("b", String::new()));
        assert_eq!(parts("s3://b/").unwrap(), ("b", String::new()));
        assert_eq!(parts("s3://b.c-d/e/f/").unwrap(), ("b.c-d", "e/f/".to_owned()));
        for bad in ["s3://", "s3:///x", "s3://KEY:SECRET@b/x", "s3://b/../x", "s3://b//x"] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_in_a_url_are_not_repeated_and_those_of_a_store_not_shown() {
        // Such keys may have slashes.
        for bad in ["s3://KEY:SECRET@bucket/x", "s3://KEY:SEC/SECRET@bucket/x"] {
            let error = connect(bad, &Settings::default()).map(drop).unwrap_err().to_string();
            assert!(error.contains("s3://bucket/x") && !error.contains("SEC"), "{error}");
        }
        let environment =
            [("AWS_ACCESS_KEY_ID", "K"), ("AWS_SECRET_ACCESS_KEY", "hush"), ("AWS_SESSION_TOKEN", "hush")];
        let environment = Environment::of(environment.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let given = S3Settings {
            access_key_id: Some("K".to_owned()),
            secret_access_key: Some("hush".into()),
            session_token: Some("hush".into()),
            ..S3Settings::default()
        };
        for s3 in [given, S3Settings { environment, ..S3Settings::default() }] {
            let store = S3Store::new("s3://b", &Settings { s3, ..Settings::default() }).unwrap();
            let shown = format!("{store:?}");
            assert!(shown.contains("s3://b") && !shown.contains("hush"), "{shown}");
        }
    }

    #[test]
    fn the_bucket_stands_in_the_path_or_in_the_host() {
        let target: Url = "https://s3.example.com:9000/".parse().unwrap();
        assert_eq!(endpoint_of(&target, "b", true).unwrap(), "https://s3.example.com:9000");
        assert_eq!(endpoint_of(&target, "b", false).unwrap(), "https://b.s3.example.com:9000");
    }

    #[test]
    fn a_bucket_that_cannot_stand_in_the_host_is_refused_and_not_left_out() {
        let with = |url: &str, endpoint: Option<&str>, path_style| {
            let s3 = S3Settings {
                endpoint: endpoint.map(str::to_owned),
                path_style,
                anonymous: true,
                ..S3Settings::default()
            };
            connect(url, &Settings { s3, ..Settings::default() }).map(drop)
        };
        for address in ["https://127.0.0.1:9000", "https://[::1]", "https://2130706433"] {
            let error = with("s3://b/x", Some(address), Some(false)).unwrap_err().to_string();
            assert!(error.contains("path_style = false"), "{error}");
            with("s3://b/x", Some(address), None).unwrap();
        }
        for endpoint in [None, Some("https://s3.example.com")] {
            let error = with("s3://My_Bucket", endpoint, Some(false)).unwrap_err().to_string();
            assert!(error.contains("My_Bucket"), "{error}");
            with("s3://My_Bucket", endpoint, None).unwrap();
        }
    }

    #[test]
    fn an_endpoint_without_tls_must_be_allowed() {
        let with = |endpoint: &str, allow_http| {
            let s3 = S3Settings { endpoint: Some(endpoint.to_owned()), allow_http, ..S3Settings::default() };
            connect("s3://b", &Settings { s3, ..Settings::default() }).map(drop)
        };
        assert!(with("http://127.0.0.1:1", false).unwrap_err().to_string().contains("allow_http"));
        with("http://127.0.0.1:1", true).unwrap();
        for bad in ["127.0.0.1:1", "ftp://x", "https://user:hush@x", ""] {
            let error = with(bad, true).unwrap_err().to_string();
            assert!(error.contains("endpoint") && !error.contains("hush"), "{error}");
        }
    }
}
