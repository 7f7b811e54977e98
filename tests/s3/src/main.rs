//! The S3 that the tests speak to: s3s-fs over a directory, whose subdirectories are the buckets.
//!
//!     lamina-test-s3 ROOT ACCESS_KEY SECRET_KEY [DOMAIN]
//!
//! Listens on the loopback, at a port of its own that it prints. With a DOMAIN, buckets may stand in the host's name. What
//! s3s-fs lacks is added: of several conditional writes of one object at once it lets more than one succeed, so they are
//! served one after the other; and where a key is the directory of others, or would lie below a file, there is no object.
//! It does not look at `If-Match` of a GET.

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::host::MultiDomain;
use s3s::service::S3ServiceBuilder;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Mutex;

/// What a bucket says of a key that it does not have.
const NO_SUCH_KEY: &str = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>no object</Message></Error>";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, access_key, secret_key, domain @ ..] = &arguments[..] else {
        return Err("lamina-test-s3 ROOT ACCESS_KEY SECRET_KEY [DOMAIN]".into());
    };
    let files = s3s_fs::FileSystem::new(root).map_err(|e| format!("{e:?}"))?;
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(access_key.clone(), secret_key.clone()));
    if !domain.is_empty() {
        builder.set_host(MultiDomain::new(domain)?);
    }
    let (service, turn) = (builder.build(), Arc::new(Mutex::new(())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        // An answer is written in pieces: the second does not wait until the first was acknowledged.
        stream.set_nodelay(true)?;
        let (service, turn, root, domain) = (service.clone(), turn.clone(), root.clone(), domain.first().cloned());
        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, turn, folder) = (service.clone(), turn.clone(), is_no_object(&root, &domain, &request));
            async move {
                if folder {
                    let status = if request.method() == "DELETE" { 204 } else { 404 };
                    let body = if status == 404 { NO_SUCH_KEY } else { "" };
                    let answer = hyper::Response::builder().status(status).body(s3s::Body::from(body.to_owned()));
                    return Ok(answer.expect("a good response"));
                }
                let conditional = request.headers().contains_key("if-none-match");
                let _held = if conditional { Some(turn.lock_owned().await) } else { None };
                hyper::service::Service::call(&service, request).await
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

/// Whether a request is about a key that is a directory's, or below a file.
fn is_no_object(root: &str, domain: &Option<String>, request: &hyper::Request<hyper::body::Incoming>) -> bool {
    let uri = request.uri();
    if !matches!(request.method().as_str(), "GET" | "HEAD" | "DELETE") || uri.query().is_some() {
        return false;
    }
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let bucket = domain.as_ref().and_then(|domain| host.strip_suffix(domain.as_str())?.strip_suffix('.'));
    let key = uri.path().trim_matches('/');
    let path = match bucket {
        Some(bucket) => Path::new(root).join(bucket).join(key),
        None if key.contains('/') => Path::new(root).join(key),
        None => return false,
    };
    path.is_dir() || path.ancestors().skip(1).any(Path::is_file)
}
