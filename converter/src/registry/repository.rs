//! One repository: its documents and blobs, from the first of its mirrors that has them, or from the registry itself.

use super::access::Scopes;
use super::client::Registry;
use super::ledger::Ledger;
use super::retry::retrying;
use super::trouble::{self, Trouble};
use super::{HostSettings, Settings};
use crate::error::{Error, Result};
use crate::limits::DOCUMENT as DOCUMENT_MAX;
use crate::media_type::INDEX_OR_MANIFEST;
use blobstore::refs::{Digest, ImageName};
use reqwest::{Response, StatusCode, header};
use std::sync::Arc;

/// A repository of a registry. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Repository(Arc<Places>);

/// Where a repository is read from.
#[derive(Debug)]
struct Places {
    /// Asked first, in this order. What goes wrong there is told of in the log only.
    mirrors: Vec<Registry>,
    /// What they gave.
    ledger: Ledger,
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
        Ok(Self(Arc::new(Places { mirrors, ledger: Ledger::default(), upstream })))
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
                    Err(error) => pass_over(mirror, what, &error),
                }
            }
            whole(&self.0.upstream, what, digest).await
        })
        .await
    }

    /// A blob of `size` bytes from the byte `from` on, from the first that has it.
    pub(super) async fn blob_from(&self, digest: &Digest, size: u64, from: u64) -> std::result::Result<Part, Trouble> {
        let what = format!("blobs/{digest}");
        for (number, mirror) in self.0.mirrors.iter().enumerate() {
            if self.0.ledger.is_left_out(digest, number) {
                continue;
            }
            match part(mirror, &what, size, from).await {
                Ok(part) => return Ok(Part { mirror: Some(number), ..part }),
                Err(error) => pass_over(mirror, &what, &error),
            }
        }
        part(&self.0.upstream, &what, size, from).await
    }

    /// Whether a blob can come from somewhere else than the registry itself.
    pub(super) fn has_mirrors(&self) -> bool {
        !self.0.mirrors.is_empty()
    }

    /// What its mirrors gave.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Does not ask a mirror for a blob any more.
    pub(super) fn leave_out(&self, digest: &Digest, mirror: usize, trouble: &Trouble) {
        self.0.ledger.leave_out(digest, mirror);
        pass_over(&self.0.mirrors[mirror], &format!("blobs/{digest}"), trouble);
    }

    /// Who gave what there is of a blob, for messages.
    pub(super) fn givers(&self, digest: &Digest) -> String {
        let mirrors = self.0.ledger.gave(digest).into_iter().map(|number| self.0.mirrors[number].place());
        let places: Vec<String> = mirrors.collect();
        if places.is_empty() { self.place() } else { places.join(" and ") }
    }

    /// Whether bytes of a blob that was refused came from mirrors, and may be better when it is read again: those mirrors
    /// are not asked for it any more.
    pub(crate) fn blames_mirrors(&self, digest: &Digest, error: &Error) -> bool {
        let blamed = self.0.ledger.blame(digest);
        for &number in &blamed {
            let mirror = self.0.mirrors[number].place();
            tracing::warn!(mirror, blob = %digest, %error, "what a mirror gave is not used: the next is asked");
        }
        !blamed.is_empty()
    }
}

/// An answer that gives a blob from some byte on.
pub(super) struct Part {
    pub(super) response: Response,
    /// Bytes in front of those that were asked for.
    pub(super) skip: u64,
    /// The mirror that gives it; else it is the registry itself.
    pub(super) mirror: Option<usize>,
}

/// Where a document is: an index or a manifest by its media type, any other is a blob.
fn path(digest: &Digest, media_type: &str) -> String {
    let room = if INDEX_OR_MANIFEST.contains(&media_type) || media_type.is_empty() { "manifests" } else { "blobs" };
    format!("{room}/{digest}")
}

fn pass_over(mirror: &Registry, what: &str, error: &Trouble) {
    tracing::warn!(mirror = mirror.place(), what, %error, "a mirror is passed over");
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

/// A blob of `size` bytes from a byte on. One that is announced with another size is not the blob.
async fn part(registry: &Registry, what: &str, size: u64, from: u64) -> std::result::Result<Part, Trouble> {
    let response = fetch(registry, what, (from > 0).then_some(from)).await?;
    let skip = match response.status() {
        StatusCode::PARTIAL_CONTENT if starts_at(&response) == Some(from) => 0,
        StatusCode::PARTIAL_CONTENT => {
            return Err(Trouble::passing(format!("{what}: not the range from byte {from} was sent")));
        }
        _ => from,
    };
    let wanted = size - (from - skip);
    match response.content_length() {
        Some(length) if length != wanted => {
            Err(Trouble::Refused(format!("{what} is sent as {length} bytes, and {wanted} are expected")))
        }
        _ => Ok(Part { response, skip, mirror: None }),
    }
}
