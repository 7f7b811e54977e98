//! A bucket of S3, or of what speaks its language, as a store.
//!
//! The protocol is object_store's; what it leaves open is decided here:
//!
//! * Every refusal is told with the service's own words ([`answer`]); one that denies access has the credentials renewed
//!   and is tried once more ([`credentials`]).
//! * What is created is created under `If-None-Match: *`, large files when their upload is completed ([`upload`]). An
//!   endpoint that passes over this condition would let writers replace each other's objects: it is put to the test
//!   before the first write of a process, and again before the first upload in parts, and not written to ([`condition`]).
//! * Ranges are asked for with `If-Match` once the object's tag is known, one range a request.
//! * A request is tried once: [`Retry`](super::Retry) is for the rest. Parts of an upload are tried again here.
//!
//! Every wait has an end. No listing of more than the keys asked for; no copies; nothing is trusted for having come
//! from here.

mod answer;
mod condition;
mod connect;
mod connector;
mod credentials;
mod pending;
mod profile;
mod upload;

use super::body::Body;
use super::client::STALL;
use super::identity::Identities;
use super::settings::Settings;
use super::unfinished::Unfinished;
use super::{Listed, Pieces, Result, Stat, Store, StoreError, WHOLE_MAX, check_key, check_prefix};
use async_trait::async_trait;
use bytes::Bytes;
use condition::Condition;
use credentials::Credentials;
use futures_util::StreamExt;
use object_store::aws::AmazonS3;
use object_store::path::Path as Location;
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long a small write may take, its body included.
const WRITE: Duration = Duration::from_secs(120);

/// Bytes of a body that is sent without asking first whether there is an object.
const SMALL: usize = 16 << 10;

/// How often a write that met another one is repeated.
const CONFLICTS: u32 = 8;

/// A bucket; see the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct S3Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    plain: AmazonS3,
    creating: AmazonS3,
    credentials: Option<Arc<Credentials>>,
    prefix: String,
    identities: Identities,
    condition: Condition,
    unfinished: Unfinished,
}

impl S3Store {
    /// The store at `s3://BUCKET/PREFIX`. Nothing is asked yet; files that the settings name are read.
    pub fn new(url: &str, settings: &Settings) -> Result<Self> {
        let connect::Connected { plain, creating, credentials, prefix } = connect::connect(url, settings)?;
        let url = url.trim_end_matches('/').to_owned();
        let (identities, condition, unfinished) = (Identities::new(), Condition::default(), Unfinished::default());
        let inner = Inner { url, plain, creating, credentials, prefix, identities, condition, unfinished };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// Where a key's object lies in the bucket.
    fn location(&self, key: &str) -> Result<Location> {
        check_key(&self.url, key)?;
        self.place(key)
    }

    /// The same for names that are no keys.
    fn place(&self, name: &str) -> Result<Location> {
        let whole = format!("{}{name}", self.prefix);
        let refuse = |what: String| StoreError::Unsupported { store: self.url.clone(), what };
        // S3's limit counts the prefix.
        if whole.len() > 1024 {
            return Err(refuse(format!("{name:?} is too long below this prefix")));
        }
        Location::parse(whole).map_err(|e| refuse(e.to_string()))
    }

    /// One request, and where access is denied another with new credentials, if there are any.
    async fn asked<T, F>(&self, key: &str, limit: Duration, once: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        self.raw(key, limit, once).await?.map_err(|e| answer::store_error(&self.url, key, &e))
    }

    /// As [`Inner::asked`], with the S3 client's own error where it has one.
    async fn raw<T, F>(&self, key: &str, limit: Duration, once: impl Fn() -> F) -> Result<object_store::Result<T>>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let begun = Instant::now();
        let first = self.timed(key, limit, once()).await?;
        let denied = |error| answer::refusal(error).is_some_and(|refusal| refusal.may_be_credentials());
        match (&first, &self.credentials) {
            (Err(error), Some(credentials)) if denied(error) && credentials.renew(begun) => {
                self.timed(key, limit, once()).await
            }
            _ => Ok(first),
        }
    }

    async fn timed<T>(&self, key: &str, limit: Duration, work: impl Future<Output = T>) -> Result<T> {
        timeout(limit, work).await.map_err(|_| self.late(key, limit))
    }

    fn late(&self, key: &str, limit: Duration) -> StoreError {
        self.io(key, io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}")))
    }

    fn io(&self, key: &str, source: io::Error) -> StoreError {
        StoreError::Io { store: self.url.clone(), key: key.to_owned(), source }
    }

    fn answer(&self, key: &str, what: String) -> StoreError {
        StoreError::Answer { store: self.url.clone(), key: key.to_owned(), what }
    }

    fn exists(&self, key: &str) -> StoreError {
        StoreError::AlreadyExists { store: self.url.clone(), key: key.to_owned() }
    }

    /// The body of an answer, of a known length; nothing past it is read.
    fn body(&self, key: &str, answer: GetResult) -> Body {
        let (length, store, of) = (answer.range.end - answer.range.start, self.url.clone(), key.to_owned());
        let told = move |piece: object_store::Result<Bytes>| piece.map_err(|e| answer::store_error(&store, &of, &e));
        Body::new(&self.url, key, Box::pin(answer.into_stream().map(told)), length, true)
    }

    /// What was answered to a request for a range: that range, of one object.
    async fn open(&self, key: &str, range: Range<u64>) -> Result<Body> {
        let location = self.location(key)?;
        let past = |size: u64| self.answer(key, format!("bytes {}..{} of an object of {size}", range.start, range.end));
        if range.start >= range.end {
            let size = self.stat(key).await?.size;
            let empty = range.start == range.end && range.end <= size;
            return if empty { Ok(Body::empty(&self.url, key)) } else { Err(past(size)) };
        }
        let mut known = self.identities.get(key);
        loop {
            // Objects end long before: services read the number into what they count with.
            let bounded = GetRange::Bounded(range.start..range.end.min(i64::MAX as u64));
            let options = GetOptions { range: Some(bounded), if_match: known.clone(), ..GetOptions::default() };
            match self.raw(key, STALL, || self.plain.get_opts(&location, options.clone())).await? {
                Ok(answer) if answer.range == range => {
                    self.identities.learn(key, answer.meta.e_tag.as_deref());
                    return Ok(self.body(key, answer));
                }
                Ok(answer) => return Err(past(answer.meta.size)),
                Err(error) if known.is_some() && status(&error) == Some(412) => {
                    tracing::warn!(store = self.url, key, "the object was replaced since it was last read");
                    self.identities.forget(key);
                    known = None;
                }
                Err(error) if status(&error) == Some(416) => {
                    return Err(self.answer(key, format!("bytes {}..{} are past the end", range.start, range.end)));
                }
                Err(error) => return Err(answer::store_error(&self.url, key, &error)),
            }
        }
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        let location = self.location(key)?;
        let found = self.asked(key, STALL, || self.plain.head(&location)).await?;
        self.identities.learn(key, found.e_tag.as_deref());
        Ok(Stat { size: found.size, modified: found.last_modified.into() })
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        let location = self.location(key)?;
        self.check_condition().await?;
        if body.len() > SMALL {
            self.check_absent(key).await?;
        }
        let mode = PutOptions::from(PutMode::Create);
        for _ in 0..CONFLICTS {
            let put = || self.plain.put_opts(&location, body.clone().into(), mode.clone());
            match self.raw(key, WRITE, put).await? {
                Ok(_) => return Ok(()),
                Err(error) if status(&error) == Some(412) => return Err(self.exists(key)),
                // Another writer is at it just now: who was first is known when it is done.
                Err(error) if status(&error) == Some(409) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => return Err(answer::store_error(&self.url, key, &error)),
            }
        }
        Err(self.contended(key))
    }

    fn contended(&self, key: &str) -> StoreError {
        let what = "other writers are at it all the time".to_owned();
        StoreError::Busy { store: self.url.clone(), key: key.to_owned(), what, after: None }
    }

    /// An error where there is an object. Asked before a body that is more than a socket takes: a service that says no at
    /// once, and hangs up while it is still being sent, is not heard. The write's own condition decides.
    async fn check_absent(&self, key: &str) -> Result<()> {
        match self.stat(key).await {
            Ok(_) => Err(self.exists(key)),
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        check_prefix(&self.url, prefix)?;
        let below =
            Location::parse(format!("{}{prefix}", self.prefix)).map_err(|e| self.answer(prefix, e.to_string()))?;
        let collect = || async {
            let (mut objects, mut found) = (Vec::new(), self.plain.list(Some(&below)));
            // A page of a thousand keys at a time, each with its own time.
            loop {
                match timeout(STALL, found.next()).await {
                    Ok(Some(object)) => objects.push(object?),
                    Ok(None) => return Ok(objects),
                    Err(_) => return Err(answer::stalled()),
                }
            }
        };
        let found = self.asked(prefix, Duration::MAX, collect).await?;
        let listed = |object: ObjectMeta| {
            let key = object.location.as_ref().strip_prefix(&self.prefix)?.to_owned();
            let ours = key.starts_with(prefix) && check_key("", &key).is_ok();
            ours.then(|| Listed { key, stat: Stat { size: object.size, modified: object.last_modified.into() } })
        };
        let mut objects: Vec<Listed> = found.into_iter().filter_map(listed).collect();
        // Directory buckets list in another order.
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }
}

/// The status that a request was refused with.
fn status(error: &Error) -> Option<u16> {
    answer::refusal(error).map(|refusal| refusal.status.as_u16())
}

#[async_trait]
impl Store for S3Store {
    fn url(&self) -> &str {
        &self.inner.url
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        let (inner, location) = (&self.inner, self.inner.location(key)?);
        let answer = inner.asked(key, STALL, || inner.plain.get(&location)).await?;
        if answer.meta.size > WHOLE_MAX {
            return Err(inner.answer(key, format!("{} bytes, too many to be read at once", answer.meta.size)));
        }
        inner.body(key, answer).collect().await
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

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        self.inner.create(key, body).await
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        let (inner, location) = (&self.inner, self.inner.location(key)?);
        inner.asked(key, WRITE, || inner.plain.put(&location, body.clone().into())).await?;
        inner.identities.forget(key);
        Ok(())
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        upload::upload(&self.inner, key, file).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.inner.scan(prefix).await?.into_iter().map(|object| object.key).collect())
    }

    async fn scan(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.inner.scan(prefix).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let (inner, location) = (&self.inner, self.inner.location(key)?);
        inner.identities.forget(key);
        match inner.asked(key, WRITE, || inner.plain.delete(&location)).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            done => done,
        }
    }

    /// The test of the endpoint's condition is a write.
    async fn check_writable(&self) -> Result<()> {
        self.inner.check_condition().await
    }

    async fn settle(&self) {
        self.inner.unfinished.settled().await;
    }
}
