//! What the service said, and what it means: between the S3 client's errors and a store's.

use crate::causes;
use crate::store::StoreError;
use crate::store::client::{STALL, TOLD};
use crate::store::connections::Connections;
use crate::store::refusal::{Refusal, TOLD_MAX, no_answer};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService};
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// An HTTP client that tells every answer that is no success as a [`Refusal`], which is found again among the causes
/// of what the S3 client makes of it.
#[derive(Debug)]
pub(super) struct Service(pub(super) Connections);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let to = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        // A store's URL has the bucket, not the endpoint.
        let failed = |error: HttpError| HttpError::new(error.kind(), Unanswered(to, error));
        let again = matches!(*request.method(), Method::GET | Method::HEAD);
        let send = |client: reqwest::Client| {
            let request = request.clone();
            async move { HttpService::call(&client, request).await }
        };
        let answer = self.0.ask(again, send).await.map_err(failed)?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let told = match tokio::time::timeout(TOLD, beginning(body)).await {
            Ok(told) => told.map_err(|e| HttpError::new(e.kind(), Broken(head.status, causes(&e))))?,
            Err(late) => return Err(HttpError::new(HttpErrorKind::Timeout, Broken(head.status, late.to_string()))),
        };
        let refusal = Refusal::new(head.status, &head.headers, &told);
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

/// A request that got no answer from where it was sent.
#[derive(Debug)]
struct Unanswered(String, HttpError);

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unanswered {
    /// What the client says, without its own words around it.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.1.source()
    }
}

/// A refusal that did not come whole. What a status means stands in its body (of a 404: the object, the bucket or the upload).
#[derive(Debug, thiserror::Error)]
#[error("the server answers {0}, and then not why: {1}")]
struct Broken(http::StatusCode, String);

/// As much of a body as is looked at.
async fn beginning(mut body: HttpResponseBody) -> Result<Bytes, HttpError> {
    let mut told = BytesMut::new();
    while told.len() < TOLD_MAX
        && let Some(frame) = body.frame().await
    {
        told.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(told.freeze())
}

/// What the server refused, if that is what an error is about.
pub(super) fn refusal(error: &Error) -> Option<&Refusal> {
    find(error)
}

/// A listing of which the next page does not come.
pub(super) fn stalled() -> Error {
    let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {STALL:?}"));
    Error::Generic { store: "S3", source: Box::new(HttpError::new(HttpErrorKind::Timeout, late)) }
}

/// The kinds that callers act on.
pub(super) fn store_error(store: &str, key: &str, error: &Error) -> StoreError {
    if let Some(refusal) = find::<Refusal>(error) {
        return refusal.clone().into_error(store, key);
    }
    let (store, key) = (store.to_owned(), key.to_owned());
    // Ours, of credentials, went through the client.
    match find(error) {
        Some(StoreError::Denied { what, .. }) => return StoreError::Denied { store, key, what: what.clone() },
        Some(StoreError::Busy { what, after, .. }) => {
            return StoreError::Busy { store, key, what: what.clone(), after: *after };
        }
        Some(StoreError::Io { source, .. }) => {
            return StoreError::Io { store, key, source: io::Error::new(source.kind(), source.to_string()) };
        }
        _ => {}
    }
    match find::<HttpError>(error) {
        Some(http) => {
            let kind = match http.kind() {
                HttpErrorKind::Timeout => io::ErrorKind::TimedOut,
                HttpErrorKind::Connect => io::ErrorKind::NotConnected,
                HttpErrorKind::Interrupted => io::ErrorKind::ConnectionReset,
                _ => io::ErrorKind::Other,
            };
            StoreError::Io { store, key, source: no_answer(kind, http.source().unwrap_or(http)) }
        }
        // The service itself reports a failure in an answer of 200.
        None if causes(error).contains("error response") => {
            StoreError::Busy { store, key, what: causes(error), after: None }
        }
        None => StoreError::Answer { store, key, what: causes(error) },
    }
}

/// An error of the S3 client with its causes.
pub(super) fn told(error: &Error) -> String {
    match find::<StoreError>(error) {
        Some(StoreError::Unsupported { what, .. }) => what.clone(),
        _ => causes(error),
    }
}

fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
