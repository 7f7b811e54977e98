//! What any web server gives out, read-only: `http://` and `https://`.
//!
//! Ranges are asked for with `If-Match` once the object's tag is known. A server that answers a range with the whole
//! object is read as far as the range goes where that begins at the object's beginning, and refused elsewhere. Such
//! servers cannot list: names are found through the hints that writers leave, and what cannot be found so says it.
//! A request is tried once ([`Retry`](super::Retry) is for the rest), and every wait has an end. Redirects are followed, out
//! of TLS never.

use super::body::Body;
use super::client::{CONNECT, STALL, TOLD, Wanted};
use super::connections::Connections;
use super::identity::Identities;
use super::refusal::{Refusal, TOLD_MAX, no_answer};
use super::settings::Settings;
use super::{Pieces, Result, Stat, Store, StoreError, WHOLE_MAX, check_key, check_prefix};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_MATCH, LAST_MODIFIED, RANGE};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, Method, Response, StatusCode, Url};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

const REDIRECTS_MAX: usize = 5;

/// A server's directory; see the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HttpStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    base: Url,
    connections: Connections,
    identities: Identities,
}

impl HttpStore {
    /// The store at a URL. Nothing is asked yet.
    pub fn new(url: &str, settings: &Settings) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let base = Url::parse(url).ok().filter(|base| base.has_host() && !base.cannot_be_a_base());
        let bare = base.filter(|b| b.username().is_empty() && b.password().is_none() && b.query().is_none());
        let Some(base) = bare.filter(|base| base.fragment().is_none()) else {
            // What stands before the host may be a password.
            let what = "not a store's URL: https://HOST/PATH is, without user, query or fragment".to_owned();
            return Err(StoreError::Unsupported { store: "the web server".to_owned(), what });
        };
        let plain_http = base.scheme() == "http";
        let wanted =
            Wanted { target: Some(base.clone()), plain_http, connect: CONNECT, redirects: || Policy::custom(follow) };
        let connections = Connections::new(url, settings, &wanted)?;
        Ok(Self { inner: Arc::new(Inner { url: url.to_owned(), base, connections, identities: Identities::new() }) })
    }
}

/// Elsewhere, but not out of TLS, and not to a folder: that is how servers answer for a name that is one.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let down = attempt.url().scheme() == "http" && attempt.previous().iter().any(|url| url.scheme() == "https");
    match attempt.previous().len() > REDIRECTS_MAX || down || attempt.url().path().ends_with('/') {
        true => attempt.stop(),
        false => attempt.follow(),
    }
}

impl Inner {
    fn object(&self, key: &str) -> Result<Url> {
        check_key(&self.url, key)?;
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            // It encodes what must be encoded.
            path.pop_if_empty().extend(key.split('/'));
        }
        Ok(url)
    }

    /// An answer's head, whatever its status.
    async fn ask(&self, key: &str, method: Method, headers: &[(HeaderName, String)]) -> Result<Response> {
        let object = self.object(key)?;
        let send = |client: Client| {
            let request = client.request(method.clone(), object.clone());
            headers.iter().fold(request, |request, (name, value)| request.header(name, value)).send()
        };
        // Nothing is written here.
        match timeout(STALL, self.connections.ask(true, send)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.broken(key, error)),
            Err(_) => Err(self.late(key, STALL)),
        }
    }

    fn broken(&self, key: &str, error: reqwest::Error) -> StoreError {
        let kind = match (error.is_timeout(), error.is_connect()) {
            (true, _) => io::ErrorKind::TimedOut,
            (_, true) => io::ErrorKind::NotConnected,
            _ => io::ErrorKind::ConnectionReset,
        };
        // The URL stands before it already.
        let source = no_answer(kind, &error.without_url());
        StoreError::Io { store: self.url.clone(), key: key.to_owned(), source }
    }

    fn late(&self, key: &str, limit: Duration) -> StoreError {
        let source = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
        StoreError::Io { store: self.url.clone(), key: key.to_owned(), source }
    }

    fn answer(&self, key: &str, what: String) -> StoreError {
        StoreError::Answer { store: self.url.clone(), key: key.to_owned(), what }
    }

    /// What an answer that is no success means.
    async fn refused(&self, key: &str, mut answer: Response) -> StoreError {
        if answer.status().is_redirection() {
            return self.redirected(key, &answer);
        }
        let mut told = BytesMut::new();
        let reading = async {
            while told.len() < TOLD_MAX
                && let Some(piece) = answer.chunk().await?
            {
                told.extend_from_slice(&piece);
            }
            Ok(())
        };
        match timeout(TOLD, reading).await {
            Ok(Ok(())) => Refusal::new(answer.status(), answer.headers(), &told.freeze()).into_error(&self.url, key),
            // What a status means may stand in its body.
            Ok(Err(error)) => self.broken(key, error),
            Err(_) => self.late(key, TOLD),
        }
    }

    /// What a redirect means that is not followed.
    fn redirected(&self, key: &str, answer: &Response) -> StoreError {
        match answer.headers().get(http::header::LOCATION).map(|to| to.as_bytes()) {
            Some(to) if to.ends_with(b"/") => StoreError::NotFound { store: self.url.clone(), key: key.to_owned() },
            Some(_) => {
                self.answer(key, "a redirect out of TLS, to no URL, or one too many, is not followed".to_owned())
            }
            None => self.answer(key, format!("the server answers {} and does not say where to", answer.status())),
        }
    }

    /// The next `length` bytes of an answer, of which nothing more is read; `whole`: and there must be no more.
    fn body(self: &Arc<Self>, key: &str, answer: Response, length: u64, whole: bool) -> Body {
        Body::new(&self.url, key, self.clone().pieces(key.to_owned(), answer), length, whole)
    }

    /// What comes of an answer's body, as it comes.
    fn pieces(self: Arc<Self>, key: String, answer: Response) -> Pieces {
        let next = |(inner, key, mut answer): (Arc<Self>, String, Response)| async move {
            let piece = answer.chunk().await.map_err(|e| inner.broken(&key, e))?;
            Ok(piece.map(|piece| (piece, (inner, key, answer))))
        };
        Box::pin(stream::try_unfold((self, key, answer), next))
    }

    async fn get(self: &Arc<Self>, key: &str) -> Result<Bytes> {
        let mut answer = self.ask(key, Method::GET, &[]).await?;
        if answer.status() != StatusCode::OK {
            return Err(self.refused(key, answer).await);
        }
        let too_long = || self.answer(key, format!("more than {WHOLE_MAX} bytes, too many to be read at once"));
        match length(answer.headers()) {
            Some(length) if length > WHOLE_MAX => Err(too_long()),
            Some(length) => self.body(key, answer, length, true).collect().await,
            None => {
                let mut body = BytesMut::new();
                while let Some(piece) = timeout(STALL, answer.chunk())
                    .await
                    .map_err(|_| self.late(key, STALL))?
                    .map_err(|e| self.broken(key, e))?
                {
                    body.extend_from_slice(&piece);
                    if body.len() as u64 > WHOLE_MAX {
                        return Err(too_long());
                    }
                }
                Ok(body.freeze())
            }
        }
    }

    /// What was answered to a request for a range: that range, of one object.
    async fn open(self: &Arc<Self>, key: &str, range: Range<u64>) -> Result<Body> {
        if range.start >= range.end {
            let size = self.stat(key).await?.size;
            let empty = range.start == range.end && range.end <= size;
            return if empty { Ok(Body::empty(&self.url, key)) } else { Err(self.past(key, &range, Some(size))) };
        }
        // Objects end long before: servers read the number into what they count with.
        let asked = format!("bytes={}-{}", range.start, range.end.min(i64::MAX as u64) - 1);
        let known = self.identities.get(key);
        let mut headers = vec![(RANGE, asked.clone())];
        headers.extend(known.map(|tag| (IF_MATCH, tag)));
        let mut answer = self.ask(key, Method::GET, &headers).await?;
        if answer.status() == StatusCode::PRECONDITION_FAILED && headers.len() > 1 {
            tracing::warn!(store = self.url, key, "the object was replaced since it was last read");
            self.identities.forget(key);
            answer = self.ask(key, Method::GET, &[(RANGE, asked)]).await?;
        }
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let said = answer.headers().get(CONTENT_RANGE).and_then(|value| content_range(value.to_str().ok()?));
                let Some((got, size)) = said else {
                    return Err(self.answer(key, "a part came without saying which".to_owned()));
                };
                if got.start != range.start || got.end != range.end {
                    return Err(self.past(key, &range, size));
                }
                self.learn(key, answer.headers());
                Ok(self.body(key, answer, range.end - range.start, true))
            }
            StatusCode::OK => self.beginning(key, &range, answer),
            StatusCode::RANGE_NOT_SATISFIABLE => Err(self.past(key, &range, None)),
            _ => Err(self.refused(key, answer).await),
        }
    }

    /// A range out of the whole object: where it is at its beginning, no more than that is read.
    fn beginning(self: &Arc<Self>, key: &str, range: &Range<u64>, answer: Response) -> Result<Body> {
        match length(answer.headers()) {
            Some(length) if length < range.end => Err(self.past(key, range, Some(length))),
            length if range.start == 0 => {
                self.learn(key, answer.headers());
                Ok(self.body(key, answer, range.end, length == Some(range.end)))
            }
            _ => {
                let what = format!(
                    "{key}: the server answers a request for bytes {}..{} with the whole object; one that serves ranges \
                     is needed",
                    range.start, range.end
                );
                Err(StoreError::Unsupported { store: self.url.clone(), what })
            }
        }
    }

    fn learn(&self, key: &str, headers: &HeaderMap) {
        self.identities.learn(key, headers.get(ETAG).and_then(|tag| tag.to_str().ok()));
    }

    fn past(&self, key: &str, range: &Range<u64>, size: Option<u64>) -> StoreError {
        let of = size.map(|size| format!(" of {size}")).unwrap_or_default();
        self.answer(key, format!("bytes {}..{} of an object{of}", range.start, range.end))
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        let answer = self.ask(key, Method::HEAD, &[]).await?;
        if answer.status() != StatusCode::OK {
            return Err(self.refused(key, answer).await);
        }
        let headers = answer.headers();
        let date = headers.get(LAST_MODIFIED).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        match length(headers) {
            // A server need not say: then it was long ago.
            Some(size) => Ok(Stat { size, modified: date.unwrap_or(SystemTime::UNIX_EPOCH) }),
            None => Err(self.answer(key, "the server does not say how long it is".to_owned())),
        }
    }

    fn read_only(&self) -> StoreError {
        let what = "stores on a web server are read-only: write to the directory that it serves".to_owned();
        StoreError::Unsupported { store: self.url.clone(), what }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `bytes START-LAST/SIZE`, where the size may be `*`.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let range = start.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?;
    Some((range, size.parse().ok()))
}

#[async_trait]
impl Store for HttpStore {
    fn url(&self) -> &str {
        &self.inner.url
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.inner.open(key, range).await?.collect().await
    }

    async fn read(&self, key: &str, range: Range<u64>) -> Result<Pieces> {
        Ok(self.inner.open(key, range).await?.pieces())
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        self.inner.stat(key).await
    }

    async fn create(&self, key: &str, _: Bytes) -> Result<()> {
        check_key(&self.inner.url, key)?;
        Err(self.inner.read_only())
    }

    async fn put(&self, key: &str, _: Bytes) -> Result<()> {
        check_key(&self.inner.url, key)?;
        Err(self.inner.read_only())
    }

    async fn upload(&self, key: &str, _: &Path) -> Result<()> {
        check_key(&self.inner.url, key)?;
        Err(self.inner.read_only())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        check_prefix(&self.inner.url, prefix)?;
        let what = "a web server cannot list what it has: ask for things by name".to_owned();
        Err(StoreError::Unsupported { store: self.inner.url.clone(), what })
    }

    async fn check_writable(&self) -> Result<()> {
        Err(self.inner.read_only())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        check_key(&self.inner.url, key)?;
        Err(self.inner.read_only())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_part_came_is_read_from_the_answer() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5..6, None)));
        for bad in ["", "bytes", "bytes */100", "bytes 0-18446744073709551615/1", "items 0-1/2", "bytes a-b/c"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_with_secrets_in_them_are_refused_and_not_repeated() {
        for url in ["https://user:hush@host/x", "https://host/x?token=hush"] {
            let error = HttpStore::new(url, &Settings::default()).unwrap_err().to_string();
            assert!(error.contains("https://HOST/PATH") && !error.contains("hush"), "{error}");
        }
        assert_eq!(
            HttpStore::new("http://127.0.0.1:1/a/", &Settings::default()).unwrap().url(),
            "http://127.0.0.1:1/a"
        );
    }

    #[test]
    fn keys_are_encoded_below_the_path() {
        let store = HttpStore::new("http://127.0.0.1:1/a b", &Settings::default()).unwrap();
        let url = store.inner.object("x/h:1/ä?#%2F").unwrap();
        assert_eq!(url.as_str(), "http://127.0.0.1:1/a%20b/x/h:1/%C3%A4%3F%23%252F");
    }
}
