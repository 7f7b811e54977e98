//! What the service said, and what it means: between the S3 client's errors and a store's.

use crate::causes;
use crate::store::refusal::{Refusal, TOLD_MAX, no_answer};
use crate::store::{StoreError, client::STALL};
use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use std::error::Error as StdError;
use std::io;

/// An HTTP client that tells every answer that is no success as a [`Refusal`], which is found again among the causes
/// of what the S3 client makes of it.
#[derive(Debug)]
pub(super) struct Service(pub(super) reqwest::Client);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = HttpService::call(&self.0, request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        // What does not come, or is too long, is not needed to know what the status means.
        let told = tokio::time::timeout(STALL, Limited::new(body, TOLD_MAX).collect()).await;
        let told = told.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        let refusal = Refusal::new(head.status, &head.headers, &told);
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
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
    // Ours went through the client.
    if let Some(StoreError::Denied { what, .. }) = find(error) {
        return StoreError::Denied { store: store.to_owned(), key: key.to_owned(), what: what.clone() };
    }
    let (store, key) = (store.to_owned(), key.to_owned());
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
