//! Why a request to a registry did not succeed, and whether another try can help.

use crate::error::Error;
use blobstore::causes;
use blobstore::https::{is_not_tls, is_untrusted};
use reqwest::{Response, StatusCode, header};
use serde::Deserialize;
use std::time::Duration;

/// What a registry may say about an error, in bytes; the rest is not read.
const MESSAGE_MAX: usize = 16 << 10;

/// How long it may take to say it; what came by then is used. Not every request has a deadline of its own.
const MESSAGE_TIME: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// It may pass: a connection that broke, a server that is overloaded.
    #[error("{what}")]
    Passing {
        /// What happened.
        what: String,
        /// How long the registry asks to wait.
        wait: Option<Duration>,
    },
    /// What was asked for is not there.
    #[error("{0}")]
    Missing(String),
    /// The registry wants other credentials.
    #[error("{0}")]
    Denied(String),
    /// Another try gives the same answer.
    #[error("{0}")]
    Lasting(String),
    /// What the registry gave is not what it should be.
    #[error("{0}")]
    Refused(String),
    /// The bytes that it was to get could not be read.
    #[error(transparent)]
    Source(Box<Error>),
}

impl Trouble {
    /// A trouble that may pass.
    pub(super) fn passing(what: impl Into<String>) -> Self {
        Self::Passing { what: what.into(), wait: None }
    }

    /// The same for this crate's callers; `place` is the registry and the repository.
    pub(super) fn into_error(self, place: &str) -> Error {
        match self {
            Self::Refused(what) => Error::refused(format!("{place}: {what}")),
            Self::Source(error) => *error,
            trouble => Error::failed(place, trouble),
        }
    }
}

impl From<reqwest::Error> for Trouble {
    fn from(error: reqwest::Error) -> Self {
        let host = error.url().and_then(|url| url.host_str()).unwrap_or("the registry").to_owned();
        let certificate = is_untrusted(&error);
        let lasting = error.is_builder() || error.is_redirect() || certificate;
        let hint = match (certificate, is_not_tls(&error)) {
            (true, _) => {
                "; a private certificate authority is named by ca_file under [registry.\"HOST\"], the public ones come \
                 with the package ca-certificates"
            }
            (_, true) => "; it does not speak TLS: plain_http = true under [registry.\"HOST\"] is for such",
            _ => "",
        };
        // Not the URL: what a registry redirects to can hold a signature that opens it for everybody.
        let what = format!("{host}: {}{hint}", causes(&error.without_url()));
        match lasting {
            true => Self::Lasting(what),
            false => Self::passing(what),
        }
    }
}

#[derive(Deserialize)]
struct Messages {
    #[serde(default)]
    errors: Vec<Message>,
    /// Token servers' way.
    #[serde(default)]
    details: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// What an answer means that is none of those that were hoped for; `what` was asked for.
pub(super) async fn of(response: Response, what: &str) -> Trouble {
    let status = response.status();
    let wait = retry_after(&response);
    let text = format!("{what}: {status}{}", message(response).await);
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Trouble::Missing(text),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Denied(text),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Trouble::Passing { what: text, wait },
        status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            Trouble::Passing { what: text, wait }
        }
        _ => Trouble::Lasting(text),
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.parse().ok().map(Duration::from_secs)
}

/// What the registry says of it, in brackets.
async fn message(mut response: Response) -> String {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk[..chunk.len().min(MESSAGE_MAX - body.len())]);
            if body.len() == MESSAGE_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(MESSAGE_TIME, read).await;
    let Ok(Messages { errors, details }) = serde_json::from_slice(&body) else { return String::new() };
    let said = errors.iter().map(|e| format!("{} {}", e.code, e.message)).chain(details);
    let said = said.take(3).collect::<Vec<_>>().join("; ");
    let said: String = said.trim().chars().filter(|c| !c.is_control()).take(500).collect();
    if said.is_empty() { said } else { format!(" ({said})") }
}
