//! One repository: its documents and blobs, from the first of its mirrors that has them, or from the registry itself.

use super::access::Scopes;
use super::client::Registry;
use super::download::{self, Download};
use super::retry::retrying;
use super::trouble::{self, Trouble};
use super::{HostSettings, Settings};
use crate::error::{Error, Result};
use crate::limits::DOCUMENT as DOCUMENT_MAX;
use crate::media_type::INDEX_OR_MANIFEST;
use blobstore::refs::{Digest, ImageName};
use reqwest::{Response, StatusCode, header};
use std::sync::Arc;
use tokio::runtime::Handle;

/// A repository of a registry. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Repository(Arc<Places>);

/// Where a repository is read from.
#[derive(Debug)]
struct Places {
    /// Asked first, in this order. What goes wrong there is told of in the log only.
    mirrors: Vec<Registry>,
    /// The registry itself.
    upstream: Registry,
}

/// What a registry has under a name.
#[derive(Debug)]
pub(crate) struct Root {
    /// Index or manifest, byte for byte.
    pub(crate) bytes: Vec<u8>,
    /// Which of the two, as the registry says; empty if it does not.
    pub(crate) media_type: String,
}

impl Repository {
    /// The repository of an image. Nothing is asked yet.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn new(name: &ImageName, settings: &Settings) -> Result<Self> {
        let own = settings.hosts.get(name.host()).cloned().unwrap_or_default();
        let mirrors = own.mirrors.iter().map(|mirror| place(mirror, name, settings)).collect::<Result<_>>()?;
        let files = settings.credential_files.clone();
        let upstream = Registry::new(name.host(), name.repository(), own, files)
            .map_err(|trouble| trouble.into_error(&format!("registry {}", name.host())))?;
        Ok(Self(Arc::new(Places { mirrors, upstream })))
    }

    /// The registry itself, where things are pushed to.
    pub(super) fn upstream(&self) -> &Registry {
        &self.0.upstream
    }

    /// The repository's path, if it is one of this other's registry: then blobs can be mounted from it.
    pub(crate) fn beside(&self, other: &Self) -> Option<&str> {
        let (own, other) = (&self.0.upstream, &other.0.upstream);
        (own.host() == other.host()).then(|| own.repository())
    }

    /// For messages.
    pub(crate) fn place(&self) -> String {
        self.0.upstream.place()
    }

    /// What the registry has for a digest or, if the name has none, its tag.
    pub(crate) async fn root(&self, name: &ImageName) -> Result<Root> {
        let reference = match name.digest() {
            Some(digest) => digest.to_string(),
            None => name.tag().unwrap_or("latest").to_owned(),
        };
        self.whole(&format!("manifests/{reference}"), name.digest()).await
    }

    /// A document, verified.
    pub(crate) async fn document(&self, digest: &Digest, media_type: &str) -> Result<Vec<u8>> {
        Ok(self.whole(&path(digest, media_type), Some(digest)).await?.bytes)
    }

    /// The same of one that the image can do without: none where the registry does not have it or does not give it. That
    /// the registry cannot be asked is an error.
    pub(crate) async fn document_if_there(&self, digest: &Digest, media_type: &str) -> Result<Option<Vec<u8>>> {
        match self.fetched(&path(digest, media_type), Some(digest)).await {
            Ok(root) => Ok(Some(root.bytes)),
            Err(trouble @ (Trouble::Missing(_) | Trouble::Denied(_))) => {
                tracing::warn!(registry = self.place(), %digest, %trouble, "left out: an attestation or a signature");
                Ok(None)
            }
            Err(trouble) => Err(trouble.into_error(&self.place())),
        }
    }

    async fn whole(&self, what: &str, digest: Option<&Digest>) -> Result<Root> {
        self.fetched(what, digest).await.map_err(|trouble| trouble.into_error(&self.place()))
    }

    async fn fetched(&self, what: &str, digest: Option<&Digest>) -> std::result::Result<Root, Trouble> {
        retrying(async || {
            for mirror in &self.0.mirrors {
                match whole(mirror, what, digest).await {
                    Ok(root) => return Ok(root),
                    Err(error) => pass_over(mirror, &error),
                }
            }
            whole(&self.0.upstream, what, digest).await
        })
        .await
    }

    /// A blob from the byte `from` on, not verified; fetched once it is read, by tasks of `runtime`.
    pub(crate) fn blob(&self, digest: &Digest, size: u64, from: u64, runtime: Handle) -> Download {
        download::start(self.clone(), *digest, size, from, runtime)
    }

    /// The answer to a request for a blob from the byte `from` on, and how many bytes of it are before that.
    pub(super) async fn blob_from(&self, digest: &Digest, from: u64) -> std::result::Result<(Response, u64), Trouble> {
        let what = format!("blobs/{digest}");
        for mirror in &self.0.mirrors {
            match part(mirror, &what, from).await {
                Ok(found) => return Ok(found),
                Err(error) => pass_over(mirror, &error),
            }
        }
        part(&self.0.upstream, &what, from).await
    }
}

/// Where a document is: an index or a manifest by its media type, any other is a blob.
fn path(digest: &Digest, media_type: &str) -> String {
    let room = if INDEX_OR_MANIFEST.contains(&media_type) || media_type.is_empty() { "manifests" } else { "blobs" };
    format!("{room}/{digest}")
}

fn pass_over(mirror: &Registry, error: &Trouble) {
    tracing::warn!(mirror = mirror.place(), %error, "a mirror is passed over");
}

/// A mirror, with its own settings.
fn place(mirror: &str, name: &ImageName, settings: &Settings) -> Result<Registry> {
    let (plain, rest) = match (mirror.strip_prefix("http://"), mirror.strip_prefix("https://")) {
        (Some(rest), _) => (Some(true), rest),
        (_, Some(rest)) => (Some(false), rest),
        _ => (None, mirror),
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = format!("{path}/{}", name.repository());
    // Checked by the rules of names, since it becomes part of URLs.
    let checked: ImageName = format!("{host}/{}", path.trim_matches('/'))
        .parse()
        .map_err(|e| Error::refused(format!("the mirror '{mirror}' of {}: {e}", name.host())))?;
    let mut own = settings.hosts.get(host).cloned().unwrap_or_default();
    own = HostSettings { mirrors: Vec::new(), plain_http: plain.unwrap_or(own.plain_http), ..own };
    Registry::new(host, checked.repository(), own, settings.credential_files.clone())
        .map_err(|trouble| trouble.into_error(&format!("the mirror {mirror}")))
}

async fn fetch(registry: &Registry, what: &str, from: Option<u64>) -> std::result::Result<Response, Trouble> {
    let url = registry.url(what).await?;
    let response = registry
        .get(&Scopes::pulling(registry.repository()), |client| {
            let request = client.get(url.clone()).header(header::ACCEPT, INDEX_OR_MANIFEST.join(", ") + ", */*;q=0.1");
            match from {
                Some(from) => request.header(header::RANGE, format!("bytes={from}-")),
                None => request,
            }
        })
        .await?;
    match response.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
        _ => Err(registry.denied(trouble::of(response, what).await).await),
    }
}

fn media_type(response: &Response) -> String {
    let value = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    // Any other is a server's guess, and the document itself says what it is.
    if INDEX_OR_MANIFEST.contains(&essence) { essence.to_owned() } else { String::new() }
}

/// Where the bytes of a part begin: `Content-Range: bytes FROM-TO/SIZE`.
fn starts_at(response: &Response) -> Option<u64> {
    let value = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    value.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// A document's bytes, verified where its digest is known.
async fn whole(registry: &Registry, what: &str, digest: Option<&Digest>) -> std::result::Result<Root, Trouble> {
    let mut response = fetch(registry, what, None).await?;
    let media_type = media_type(&response);
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > DOCUMENT_MAX {
            return Err(Trouble::Refused(format!("{what} is a document of more than {DOCUMENT_MAX} bytes")));
        }
    }
    let found = Digest::of(&bytes);
    match digest {
        Some(digest) if *digest != found => {
            let length = bytes.len();
            Err(Trouble::Refused(format!("digest mismatch: {what} came as {length} bytes with the digest {found}")))
        }
        _ => Ok(Root { bytes, media_type }),
    }
}

/// The answer to a request for a blob from a byte on, and how many bytes of it are before that.
async fn part(registry: &Registry, what: &str, from: u64) -> std::result::Result<(Response, u64), Trouble> {
    let response = fetch(registry, what, (from > 0).then_some(from)).await?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT if starts_at(&response) == Some(from) => Ok((response, 0)),
        StatusCode::PARTIAL_CONTENT => {
            Err(Trouble::passing(format!("{what}: not the range from byte {from} was sent")))
        }
        _ => Ok((response, from)),
    }
}
