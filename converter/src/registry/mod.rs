//! Registries of images, as OCI's distribution specification has them: reading from them, and pushing to them.
//!
//! * [`Settings`]: what a user says of registries; `credentials` and `helper`: what `docker login` left (`secret`).
//! * `client`: one registry: every request with what it wants (`challenge`, `access`, `token`); `reach`: where it may
//!   send this machine; `trouble` and `retry`: what went wrong, and whether another try can help.
//! * [`Repository`]: documents and blobs of one repository, from its mirrors or itself; `ledger`: which mirrors are asked for
//!   a blob; `download`: a blob as a stream that survives broken connections; `upload` and `content`: the other way.
//!
//! What a registry says is untrusted: documents are bounded and verified by their digests here, blobs by those who read
//! them (and here where there are mirrors, so that the next is asked), and nothing that a registry names gets credentials that
//! are not its own.

mod access;
mod challenge;
mod client;
mod content;
mod credentials;
mod download;
mod helper;
mod ledger;
mod reach;
mod repository;
mod retry;
mod secret;
mod token;
mod trouble;
mod upload;

pub(crate) use content::Content;
pub use repository::Repository;
pub(crate) use upload::{BlobToPush, Pushed};

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is known of registries before one is asked.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// By host as image names have it: `docker.io`, `localhost:5000`.
    pub hosts: BTreeMap<String, HostSettings>,
    /// Files in the form of Docker's `config.json`; the first that has credentials for a host is taken.
    pub credential_files: Vec<PathBuf>,
}

/// What is to be known of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Where images are read from first: `HOST`, `HOST/PATH` in front of the repository, or either behind `http://` or
    /// `https://`.
    pub mirrors: Vec<String>,
    /// Certificates, in PEM form, of authorities that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether it is spoken to without TLS.
    pub plain_http: bool,
}
