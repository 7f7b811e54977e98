//! Pushing to a repository: blobs, then what names them.
//!
//! A blob that is there is left alone, one that another repository of the registry has is mounted. Others are sent as one
//! PATCH, which every registry takes; when it breaks, the registry is asked how much it has, and the rest follows. Whether all
//! arrived as it should is the registry's to check: it is told the digest at the end.

use super::Repository;
use super::access::Scopes;
use super::client::Registry;
use super::content::{Content, Sending};
use super::reach;
use super::retry::{Tries, retrying};
use super::trouble::{self, Trouble};
use crate::error::Result;
use blobstore::refs::Digest;
use reqwest::{Response, StatusCode, Url, header};
use std::sync::Arc;
use std::time::Duration;

/// How long a registry may take to say that it has a blob: some hash it again at the end.
const COMMIT: Duration = Duration::from_secs(600);

/// How long any other answer may take.
const ANSWER: Duration = Duration::from_secs(60);

type Outcome<T> = std::result::Result<T, Trouble>;

/// A blob that is to be in a registry.
#[derive(Clone)]
pub(crate) struct BlobToPush {
    /// Its digest.
    pub(crate) digest: Digest,
    /// Its bytes.
    pub(crate) size: u64,
    /// What is in it.
    pub(crate) content: Arc<dyn Content>,
}

/// How a blob came to be in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It was.
    There,
    /// Another repository had it.
    Mounted,
    /// It was sent.
    Sent,
}

/// One blob on its way.
struct Upload<'a> {
    registry: &'a Registry,
    scopes: Scopes,
    blob: &'a BlobToPush,
    session: Option<Session>,
}

/// An upload that the registry knows of.
struct Session {
    /// Where it goes on.
    url: Url,
    /// How much the registry has.
    at: u64,
    /// Whether it was taken up again after it broke.
    resumed: bool,
}

impl Repository {
    /// Has the blob in the registry; `from` is another repository of it that has it, if one is known.
    pub(crate) async fn push_blob(&self, blob: &BlobToPush, from: Option<&str>) -> Result<Pushed> {
        let registry = self.upstream();
        let scopes = Scopes::pushing(registry.repository(), from);
        let mut upload = Upload { registry, scopes, blob, session: None };
        upload.run(from).await.map_err(|trouble| trouble.into_error(&self.place()))
    }

    /// Puts an index or manifest under a tag or its digest. All that it names must be there.
    pub(crate) async fn push_document(&self, reference: &str, media_type: &str, bytes: &[u8]) -> Result<()> {
        let registry = self.upstream();
        let scopes = Scopes::pushing(registry.repository(), None);
        let what = format!("manifests/{reference}");
        let done = retrying(async || {
            let url = registry.url(&what).await?;
            let put = registry.say(&scopes, |client| {
                let request = client.put(url.clone()).header(header::CONTENT_TYPE, media_type);
                request.body(bytes.to_vec()).timeout(ANSWER)
            });
            let response = put.await?;
            match response.status() {
                StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
                _ => Err(registry.denied(trouble::of(response, &what).await).await),
            }
        });
        done.await.map_err(|trouble| trouble.into_error(&self.place()))
    }
}

impl Upload<'_> {
    async fn run(&mut self, from: Option<&str>) -> Outcome<Pushed> {
        if retrying(async || self.is_there().await).await? {
            return Ok(Pushed::There);
        }
        if let Some(from) = from {
            // A registry that cannot mount, or may not, takes an ordinary upload.
            match self.begin(Some(from)).await {
                Ok(None) => return Ok(Pushed::Mounted),
                Ok(begun) => self.session = begun,
                Err(error) => tracing::debug!(%error, from, "the blob is not mounted"),
            }
        }
        let (mut tries, mut furthest) = (Tries::default(), 0);
        while let Err(trouble) = self.send().await {
            match trouble {
                Trouble::Source(error) if self.blob.content.has_elsewhere(&error) => {
                    self.session = None;
                    continue;
                }
                trouble => tries.pause(trouble).await?,
            }
            // The answer may have been lost, and not the blob.
            if self.is_there().await.unwrap_or(false) {
                break;
            }
            self.session = self.resume().await;
            let at = self.session.as_ref().map_or(0, |session| session.at);
            if at > furthest {
                furthest = at;
                tries.progress();
            }
        }
        Ok(Pushed::Sent)
    }

    async fn is_there(&self) -> Outcome<bool> {
        let what = format!("blobs/{}", self.blob.digest);
        let url = self.registry.url(&what).await?;
        let response = self.registry.get(&self.scopes, |client| client.head(url.clone())).await?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.unexpected(response, &what).await),
        }
    }

    /// Begins an upload; `None` where the blob was mounted instead.
    async fn begin(&self, from: Option<&str>) -> Outcome<Option<Session>> {
        let mut url = self.registry.url("blobs/uploads/").await?;
        if let Some(from) = from {
            let digest = self.blob.digest.to_string();
            url.query_pairs_mut().append_pair("mount", &digest).append_pair("from", from);
        }
        let say = self.registry.say(&self.scopes, |client| client.post(url.clone()).timeout(ANSWER).body(""));
        let response = say.await?;
        match response.status() {
            StatusCode::CREATED if from.is_some() => Ok(None),
            StatusCode::ACCEPTED => {
                let url = self.location(&response).await?;
                Ok(Some(Session { url, at: 0, resumed: false }))
            }
            _ => Err(self.unexpected(response, "beginning an upload").await),
        }
    }

    /// Sends what is missing, and ends the upload.
    async fn send(&mut self) -> Outcome<()> {
        let begun = match self.session.take() {
            Some(session) => Some(session),
            None => self.begin(None).await?,
        };
        let session = self.session.insert(begun.ok_or_else(|| Trouble::passing("no upload was begun"))?);
        let (url, at, resumed) = (session.url.clone(), session.at, session.resumed);
        let url = match at < self.blob.size {
            true => self.patch(url, at).await?,
            false => url,
        };
        match self.commit(url).await {
            // Two ideas of how much had arrived: from the beginning, then.
            Err(Trouble::Lasting(what)) if resumed => {
                self.session = None;
                Err(Trouble::passing(what))
            }
            done => done,
        }
    }

    /// Sends all bytes from `at` on; where the upload goes on.
    async fn patch(&self, url: Url, at: u64) -> Outcome<Url> {
        let (size, sending) = (self.blob.size, Sending::default());
        let body = sending.body(self.blob.content.clone(), at);
        let request = self.registry.send_once(&self.scopes, &url, |client| {
            let request = client.patch(url.clone()).body(body);
            let request = request.header(header::CONTENT_TYPE, "application/octet-stream");
            let request = request.header(header::CONTENT_LENGTH, size - at);
            match at {
                // Whoever sends all at once says nothing of ranges; some registries know no other way.
                0 => request,
                at => request.header(header::CONTENT_RANGE, format!("{at}-{}", size - 1)),
            }
        });
        let response = sending.answered(request).await?;
        match response.status() {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT | StatusCode::CREATED => self.location(&response).await,
            _ => Err(self.broken(response, "sending a blob").await),
        }
    }

    async fn commit(&self, mut url: Url) -> Outcome<()> {
        url.query_pairs_mut().append_pair("digest", &self.blob.digest.to_string());
        let put = self.registry.say(&self.scopes, |client| client.put(url.clone()).timeout(COMMIT).body(""));
        let response = put.await?;
        match response.status() {
            StatusCode::CREATED | StatusCode::NO_CONTENT | StatusCode::OK => Ok(()),
            _ => Err(self.broken(response, "ending an upload").await),
        }
    }

    /// The upload as the registry knows it, if it still does and has any of it.
    async fn resume(&mut self) -> Option<Session> {
        let url = self.session.take()?.url;
        let ask = self.registry.say(&self.scopes, |client| client.get(url.clone()).timeout(ANSWER)).await.ok()?;
        if !matches!(ask.status(), StatusCode::NO_CONTENT | StatusCode::OK | StatusCode::ACCEPTED) {
            return None;
        }
        // `Range: 0-LAST`; nothing at all is also told as 0-0.
        let last: u64 = ask.headers().get(header::RANGE)?.to_str().ok()?.rsplit('-').next()?.trim().parse().ok()?;
        let at = last.checked_add(1).filter(|at| (2..=self.blob.size).contains(at))?;
        let url = self.location(&ask).await.unwrap_or(url);
        Some(Session { url, at, resumed: true })
    }

    /// Where an upload goes on. It may be another host, which gets no credentials.
    async fn location(&self, response: &Response) -> Outcome<Url> {
        let value = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let url = value.and_then(|value| response.url().join(value).ok());
        let url = url.ok_or_else(|| Trouble::Lasting("an upload has no Location".to_owned()))?;
        reach::checked(&url, self.registry.base().await?).map(|()| url.clone()).map_err(|why| {
            let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
            Trouble::Lasting(format!(
                "the registry wants the upload at {scheme}://{host}, {why}; it may not know by which address it is reached \
                 (behind a proxy: X-Forwarded-Proto, X-Forwarded-Host)"
            ))
        })
    }

    async fn unexpected(&self, response: Response, what: &str) -> Trouble {
        self.registry.denied(trouble::of(response, what).await).await
    }

    /// What ended an upload, but not the hope for another: the upload may be unknown by now, or the token have ended.
    async fn broken(&self, response: Response, what: &str) -> Trouble {
        let again = [StatusCode::NOT_FOUND, StatusCode::RANGE_NOT_SATISFIABLE, StatusCode::UNAUTHORIZED];
        match again.contains(&response.status()) {
            true => Trouble::passing(trouble::of(response, what).await.to_string()),
            false => self.unexpected(response, what).await,
        }
    }
}
