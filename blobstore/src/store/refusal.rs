//! An HTTP answer that is no success, and what it means to callers of a store.

use super::StoreError;
use crate::causes;
use crate::https::is_untrusted;
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

/// How much of an error's body is looked at, bytes.
pub(super) const TOLD_MAX: usize = 64 << 10;

/// Longest message that is passed on, characters.
const MESSAGE_MAX: usize = 300;

/// The longest `Retry-After` that is believed.
const AFTER_MAX: Duration = Duration::from_secs(600);

/// What a server said instead of yes.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// S3's word for it (`NoSuchKey`); empty where there is none.
    pub(super) code: String,
    message: String,
    /// When to come back.
    after: Option<Duration>,
}

impl Refusal {
    /// Whether new credentials may help. AWS says 400 where they are over, and to HEAD nothing else.
    pub(super) fn may_be_credentials(&self) -> bool {
        matches!(self.status.as_u16(), 401 | 403)
            || (self.status == 400 && (self.code.is_empty() || is_expiry(&self.code)))
    }

    pub(super) fn new(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(TOLD_MAX)]);
        let mut message = element(&text, "Message").unwrap_or_default();
        // S3 says so in a header, and to HEAD only there.
        if let Some(region) = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok()) {
            message = format!("{message} (the bucket is in region {region})").trim_start().to_owned();
        }
        let after = headers.get(RETRY_AFTER).and_then(|value| come_back(value.to_str().ok()?.trim()));
        Self { status, code: element(&text, "Code").unwrap_or_default(), message, after }
    }

    /// The kinds that callers act on.
    pub(super) fn into_error(self, store: &str, key: &str) -> StoreError {
        let (store, key, what) = (store.to_owned(), key.to_owned(), self.to_string());
        match self.status.as_u16() {
            404 if self.code == "NoSuchBucket" => StoreError::NoStore { store, what },
            // An upload is not there: that says nothing of an object.
            404 if self.code == "NoSuchUpload" => StoreError::Answer { store, key, what },
            404 | 410 => StoreError::NotFound { store, key },
            401 | 403 => StoreError::Denied { store, key, what },
            // So AWS tells that temporary credentials are over.
            400 if is_expiry(&self.code) => StoreError::Denied { store, key, what },
            // The body came too slowly, or not whole; another request is at the same thing.
            400 if matches!(&*self.code, "RequestTimeout" | "IncompleteBody") => {
                StoreError::Busy { store, key, what, after: self.after }
            }
            // Of AWS's service for web identities: too many asked, or it could not ask who vouches for them.
            400 if matches!(&*self.code, "Throttling" | "ThrottlingException" | "IDPCommunicationError") => {
                StoreError::Busy { store, key, what, after: self.after }
            }
            409 if self.code == "OperationAborted" => StoreError::Busy { store, key, what, after: self.after },
            408 | 429 | 500 | 502 | 503 | 504 => StoreError::Busy { store, key, what, after: self.after },
            501 => StoreError::Unsupported { store, what: format!("{key}: {what}") },
            _ => StoreError::Answer { store, key, what },
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answers {}", self.status)?;
        for part in [&self.code, &self.message].into_iter().filter(|part| !part.is_empty()) {
            write!(f, ": {part}")?;
        }
        Ok(())
    }
}

impl StdError for Refusal {}

/// How long a `Retry-After` (RFC 9110, 10.2.3) asks to wait: seconds, or until a date.
fn come_back(text: &str) -> Option<Duration> {
    let after = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // A date that has passed: at once.
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    Some(after.min(AFTER_MAX))
}

fn is_expiry(code: &str) -> bool {
    matches!(code, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")
}

/// The text of the first element of this name; S3's errors are `<Error><Code>…</Code><Message>…</Message>…`.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    Some(shown.take(MESSAGE_MAX).collect())
}

/// A request that got no answer, told with all causes.
pub(super) fn no_answer(kind: io::ErrorKind, error: &(dyn StdError + 'static)) -> io::Error {
    let hint = match is_untrusted(error) {
        true => {
            "; a private certificate authority is named by ca_file under [fetch], the public ones come with the package ca-certificates"
        }
        false => "",
    };
    io::Error::new(kind, format!("{}{hint}", causes(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Refusal {
        let headers = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        Refusal::new(StatusCode::from_u16(status).unwrap(), &headers, &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn answers_become_the_errors_that_callers_act_on() {
        let denied = "<Error><Code>AccessDenied</Code><Message>Access\nDenied</Message></Error>";
        let error = refusal(403, &[], denied).into_error("s3://b", "k");
        assert_eq!(
            error.to_string(),
            "s3://b: k: access denied: the server answers 403 Forbidden: AccessDenied: Access Denied"
        );
        let expired = "<Error><Code>ExpiredToken</Code></Error>";
        assert!(matches!(refusal(400, &[], expired).into_error("s", "k"), StoreError::Denied { .. }));
        let busy = refusal(503, &[("retry-after", "7")], "<Error><Code>SlowDown</Code></Error>").into_error("s", "k");
        assert!(matches!(busy, StoreError::Busy { after: Some(after), .. } if after.as_secs() == 7));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        assert!(come_back(&date).is_some_and(|after| (80..=90).contains(&after.as_secs())));
        assert_eq!(come_back("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!((come_back("99999999"), come_back("soon"), come_back("-1")), (Some(AFTER_MAX), None, None));
        assert!(matches!(refusal(404, &[], "").into_error("s", "k"), StoreError::NotFound { .. }));
        let bucket = "<Error><Code>NoSuchBucket</Code></Error>";
        assert!(matches!(refusal(404, &[], bucket).into_error("s", "k"), StoreError::NoStore { .. }));
        let upload = refusal(404, &[], "<Error><Code>NoSuchUpload</Code></Error>").into_error("s", "k");
        assert!(matches!(upload, StoreError::Answer { .. }), "{upload}");
        for (status, code) in
            [(400, "RequestTimeout"), (400, "IncompleteBody"), (400, "Throttling"), (409, "OperationAborted")]
        {
            let body = Bytes::from(format!("<Error><Code>{code}</Code></Error>"));
            let told = Refusal::new(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), &body);
            assert!(matches!(told.into_error("s", "k"), StoreError::Busy { .. }), "{code}");
        }
        assert!(matches!(refusal(400, &[], "").into_error("s", "k"), StoreError::Answer { .. }));
        assert!(matches!(refusal(501, &[], "").into_error("s", "k"), StoreError::Unsupported { .. }));
        let moved = refusal(301, &[("x-amz-bucket-region", "eu-west-1")], "").into_error("s", "k").to_string();
        assert!(moved.contains("eu-west-1"), "{moved}");
    }

    #[test]
    fn what_a_server_says_is_cut_and_may_be_anything() {
        let long = format!("<Message>{}</Message>", "x".repeat(100_000));
        let told = Refusal::new(StatusCode::BAD_REQUEST, &HeaderMap::new(), &Bytes::from(long)).to_string();
        assert!(told.len() < 100, "{told}");
        refusal(500, &[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")], "<Code>").into_error("s", "k");
    }
}
