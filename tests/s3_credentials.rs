//! Whose requests those to a bucket are: credentials from files, the environment and services, and services that fail.

// Tests fail by panicking.
use blobstore::store::{Environment, S3Settings, S3Store, Settings, Store, StoreError, open_with};
use bytes::Bytes;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use tests::front::{Answer, Front, Request};
use tests::s3::{KEY, S3};
use tests::tls::{Certificates, before};

/// What AWS says with a status.
fn error(status: &'static str, code: &str) -> Answer {
    let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>because</Message></Error>");
    Answer::Reply(status, vec!["Content-Type: application/xml".to_owned()], body.into_bytes())
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::of(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

/// Settings without credentials of their own.
fn from_environment(address: SocketAddr, variables: &[(&str, &str)]) -> Settings {
    let s3 = S3Settings {
        endpoint: Some(format!("http://{address}")),
        allow_http: true,
        environment: environment(variables),
        ..S3Settings::default()
    };
    Settings { s3, ..Settings::default() }
}

/// What a cloud's service gives as credentials: [`KEY`], or a key that nobody knows.
fn given(key: &str, expiration: &str) -> Answer {
    let body = format!(
        "{{\"AccessKeyId\":\"{key}\",\"SecretAccessKey\":\"{}\",\"Token\":\"\",\"Code\":\"Success\",\"Expiration\":\"{expiration}\"}}",
        KEY.1
    );
    Answer::Reply("200 OK", vec!["Content-Type: application/json".to_owned()], body.into_bytes())
}

const FUTURE: &str = "2100-01-01T00:00:00Z";

#[tokio::test]
async fn credentials_that_the_store_calls_expired_are_asked_for_again() {
    let Some(s3) = S3::start("expired credentials") else { return };
    let cloud = Front::start(None, |request| given(if request.number == 0 { "OLD" } else { KEY.0 }, FUTURE));
    let front = Front::start(Some(s3.address), |request| {
        match request.header("authorization").is_some_and(|value| value.contains("Credential=OLD/")) {
            true => error("400 Bad Request", "ExpiredToken"),
            false => Answer::Pass,
        }
    });
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "token").unwrap();
    let uri = format!("http://{}/credentials", cloud.address);
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*uri),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().to_str().unwrap()),
    ];
    let store = S3Store::new("s3://bucket/a/prefix", &from_environment(front.address, &variables)).unwrap();
    // Many at once: all go on with the new ones.
    let create = |n: u8| store.create(if n == 0 { "a" } else { "b" }, Bytes::from_static(b"x"));
    let (a, b) = tokio::join!(create(0), create(1));
    a.unwrap();
    b.unwrap();
    assert_eq!(store.get("a").await.unwrap(), &b"x"[..]);
    assert_eq!(cloud.requests().len(), 2);
    assert_eq!(cloud.requests()[1].header("authorization").as_deref(), Some("token"));
}

#[tokio::test]
async fn credentials_are_asked_for_again_before_they_end() {
    let Some(s3) = S3::start("credentials that end") else { return };
    // In the past as soon as they are there: every request needs others.
    let cloud = Front::start(None, |request| match &*request.path {
        "/latest/api/token" => Answer::Reply("200 OK", vec![], b"token".to_vec()),
        "/latest/meta-data/iam/security-credentials/" => Answer::Reply("200 OK", vec![], b"role".to_vec()),
        "/latest/meta-data/iam/security-credentials/role" => given(KEY.0, "2020-01-01T00:00:00Z"),
        _ => error("404 Not Found", ""),
    });
    let url = format!("http://{}/", cloud.address);
    let settings = from_environment(s3.address, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]);
    let store = S3Store::new("s3://bucket/a/prefix", &settings).unwrap();
    store.create("x", Bytes::from_static(b"x")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(store.get("x").await.unwrap(), &b"x"[..]);
    let asked = cloud.requests().iter().filter(|request| request.path.ends_with("/role")).count();
    assert!(asked >= 2, "{asked}");
    let wanted =
        cloud.requests().iter().filter(|r| r.header("x-aws-ec2-metadata-token").as_deref() == Some("token")).count();
    assert!(wanted >= 4, "{wanted}");
}

/// Settings that ask the metadata service of an instance at an address.
fn of_instance(s3: SocketAddr, metadata: SocketAddr) -> Settings {
    from_environment(s3, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &format!("http://{metadata}"))])
}

#[tokio::test]
async fn a_service_that_cannot_give_credentials_just_now_is_asked_again_and_one_that_says_no_is_not() {
    let Some(s3) = S3::start("a service of credentials that fails") else { return };
    let role = |request: &Request| match &*request.path {
        "/latest/api/token" => Answer::Reply("200 OK", vec![], b"token".to_vec()),
        "/latest/meta-data/iam/security-credentials/" => Answer::Reply("200 OK", vec![], b"role".to_vec()),
        _ => given(KEY.0, FUTURE),
    };
    let cloud = Front::start(None, move |request| match request.number {
        0 => error("503 Service Unavailable", ""),
        2 => error("500 Internal Server Error", ""),
        _ => role(request),
    });
    let settings = of_instance(s3.address, cloud.address);
    let plain = S3Store::new("s3://bucket/a/prefix", &settings).unwrap();
    let answer = plain.get("x").await;
    assert!(
        matches!(&answer, Err(StoreError::Busy { what, .. }) if what.contains("no credentials") && what.contains("503")),
        "{answer:?}"
    );
    let again = open_with("s3://bucket/a/prefix", &settings).unwrap();
    assert!(matches!(again.get("x").await, Err(StoreError::NotFound { .. })), "{:?}", cloud.requests());
    let denies = Front::start(None, |_| error("403 Forbidden", "AccessDenied"));
    let answer = open_with("s3://bucket", &of_instance(s3.address, denies.address)).unwrap().get("x").await;
    assert!(matches!(&answer, Err(StoreError::Denied { what, .. }) if what.contains("403")), "{answer:?}");
    assert_eq!(denies.requests().len(), 1);
    let token = tempfile::NamedTempFile::new().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let uri = format!("http://{nobody}/credentials");
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*uri),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().to_str().unwrap()),
    ];
    let answer = S3Store::new("s3://bucket", &from_environment(s3.address, &variables)).unwrap().get("x").await;
    assert!(matches!(&answer, Err(StoreError::Io { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_credentials() {
    let Some(s3) = S3::start("a web identity") else { return };
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(dir.path());
    let sts = Front::start(None, |_| {
        let body = format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>t</SessionToken>\
             <SecretAccessKey>{}</SecretAccessKey><Expiration>{FUTURE}</Expiration><AccessKeyId>{}</AccessKeyId></Credentials>\
             </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
            KEY.1, KEY.0
        );
        Answer::Reply("200 OK", vec![], body.into_bytes())
    });
    let endpoint = format!("https://{}", before(sts.address, &certificates).await);
    let token = dir.path().join("token");
    fs::write(&token, "from the cluster").unwrap();
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/lamina"),
        ("AWS_ENDPOINT_URL_STS", &*endpoint),
    ];
    let mut settings = from_environment(s3.address, &variables);
    settings.ca_file = Some(certificates.authority);
    let store = S3Store::new("s3://bucket/a/prefix", &settings).unwrap();
    store.create("x", Bytes::from_static(b"x")).await.unwrap();
    let asked = sts.requests();
    assert!(asked[0].path.contains("WebIdentityToken=from") && asked[0].path.contains("role%2Flamina"), "{asked:?}");
}

#[tokio::test]
async fn a_profiles_keys_are_read_again_when_the_file_changes() {
    let Some(s3) = S3::start("a profile") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    let write = |key: &str| {
        let text = format!("[ci]\naws_access_key_id = {key}\naws_secret_access_key = {}\n", KEY.1);
        fs::write(dir.path().join("new"), text).unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
    };
    write("OLD");
    let mut settings = from_environment(s3.address, &[("AWS_PROFILE", "another")]);
    settings.s3.profile = Some("ci".to_owned());
    settings.s3.credentials_file = Some(file.clone());
    let store = S3Store::new("s3://bucket/a/prefix", &settings).unwrap();
    let denied = store.get("x").await;
    assert!(matches!(denied, Err(StoreError::Denied { .. })), "{denied:?}");
    write(KEY.0);
    // Looked at now and then.
    let read_again = async {
        while !matches!(store.get("x").await, Err(StoreError::NotFound { .. })) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read_again).await.unwrap();
    settings.s3.profile = Some("none".to_owned());
    let error = S3Store::new("s3://bucket", &settings).unwrap_err().to_string();
    assert!(error.contains("profile none") && error.contains(file.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn credentials_come_from_the_environment_and_their_lack_is_told() {
    let Some(s3) = S3::start("the environment") else { return };
    let variables = [("AWS_ACCESS_KEY_ID", KEY.0), ("AWS_SECRET_ACCESS_KEY", KEY.1)];
    let store = S3Store::new("s3://bucket/a/prefix", &from_environment(s3.address, &variables)).unwrap();
    store.create("x", Bytes::from_static(b"x")).await.unwrap();
    let none = from_environment(s3.address, &[("AWS_EC2_METADATA_DISABLED", "true")]);
    let error = S3Store::new("s3://bucket", &none).unwrap_err().to_string();
    assert!(error.contains("no credentials") && error.contains("anonymous"), "{error}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let metadata = format!("http://{nobody}");
    let settings = from_environment(s3.address, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata)]);
    let error = S3Store::new("s3://bucket", &settings).unwrap().get("x").await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }) && error.to_string().contains("metadata service"), "{error}");
}
