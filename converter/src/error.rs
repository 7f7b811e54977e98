//! What can go wrong, in two kinds that a caller must tell apart.
//!
//! [`Error::Refused`] means that the input is malformed, hostile or not supported: another try gives the same answer,
//! and nothing was written. [`Error::Failed`] means that the work failed: input or output, or the store.

use erofs::WriteError;
use std::fmt;
use std::io;

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a conversion did not happen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is malformed, hostile or not supported.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Input, output or the store failed.
    #[error("{what}: {source}")]
    Failed {
        /// What was being done, and to what.
        what: String,
        /// What the system or the store said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What is wrong with an input, and where.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The layer, by its digest or file name.
    pub layer: Option<String>,
    /// The tar entry or path inside the layer, escaped.
    pub entry: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = &self.layer {
            write!(f, "layer {layer}: ")?;
        }
        if let Some(entry) = &self.entry {
            write!(f, "entry '{entry}': ")?;
        }
        f.write_str(&self.what)
    }
}

impl Error {
    /// A refusal that no entry or layer is named for yet.
    pub fn refused(what: impl Into<String>) -> Self {
        Self::Refused(Box::new(Refusal { what: printable(what.into()), ..Refusal::default() }))
    }

    /// A failure of input, output or the store.
    pub fn failed(what: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed { what: what.into(), source: source.into() }
    }

    /// An error of a stream that is being decoded: one of the operating system is a failure, any other says that the
    /// bytes are wrong.
    pub fn stream(what: &str, source: io::Error) -> Self {
        if let Some(inner) = source.get_ref().and_then(|inner| inner.downcast_ref::<Self>()) {
            return inner.copy();
        }
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::refused(format!("{what}: unexpected end of the data")),
            _ if source.raw_os_error().is_some() => Self::failed(what, source),
            _ => Self::refused(format!("{what}: {source}")),
        }
    }

    /// Names the tar entry or path, if none is named yet.
    pub fn at(mut self, entry: &[u8]) -> Self {
        if let Self::Refused(refusal) = &mut self {
            refusal.entry.get_or_insert_with(|| short(entry));
        }
        self
    }

    /// Names the layer, if none is named yet.
    pub fn in_layer(mut self, layer: &str) -> Self {
        match &mut self {
            Self::Refused(refusal) => {
                refusal.layer.get_or_insert_with(|| layer.to_owned());
            }
            Self::Failed { what, .. } if what.starts_with(&format!("layer {layer}")) => {}
            Self::Failed { what, .. } => *what = format!("layer {layer}: {what}"),
        }
        self
    }

    /// Whether the input is at fault, so that trying again is of no use (exit status 3).
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Whether a file system had no room left for what was to be written.
    pub(crate) fn is_no_room(&self) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = next {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
                return true;
            }
            next = error.source();
        }
        false
    }

    /// The same once more; a failure's source as text.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Self::Refused(r) => Self::Refused(Box::new(Refusal {
                layer: r.layer.clone(),
                entry: r.entry.clone(),
                what: r.what.clone(),
            })),
            Self::Failed { what, source } => Self::failed(what.clone(), source.to_string()),
        }
    }
}

/// The start of a byte string that may be megabytes long, for messages.
pub(crate) fn short(bytes: &[u8]) -> String {
    const MOST: usize = 512;
    match bytes.get(..MOST) {
        Some(start) if bytes.len() > MOST => format!("{}…", show(start)),
        _ => show(bytes),
    }
}

/// A message that quotes an input: not longer than anybody reads, and nothing that a terminal would obey.
fn printable(what: String) -> String {
    const MOST: usize = 2048;
    match what.len() > MOST || what.contains(char::is_control) {
        true => show(what.as_bytes()).chars().take(MOST).chain((what.len() > MOST).then_some('…')).collect(),
        false => what,
    }
}

/// A failure of the store's references.
pub(crate) fn store(error: blobstore::refs::Error) -> Error {
    Error::failed("the store's references", error)
}

/// What the store has could not be held, or not be named.
pub(crate) fn held(error: blobstore::collect::Error) -> Error {
    match error {
        blobstore::collect::Error::Refs(error) => store(error),
        error => Error::failed("holding what is used of the store", error),
    }
}

/// What EROFS cannot hold is the input's fault.
pub(crate) fn unwritable(error: WriteError) -> Error {
    let refused = Error::refused(error.to_string());
    match &error {
        WriteError::Xattr { path, .. } | WriteError::Node { path, .. } => refused.at(path),
        WriteError::TooLarge { .. } => refused,
    }
}

/// A byte string for messages: printable text as it is, the rest escaped.
pub fn show(bytes: &[u8]) -> String {
    bytes
        .utf8_chunks()
        .flat_map(|chunk| {
            let valid =
                chunk.valid().chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() });
            valid.chain(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_layer_and_entry_once() {
        let error = Error::refused("bad").at(b"a\n\xff").at(b"later").in_layer("sha256:1").in_layer("sha256:2");
        assert_eq!(error.to_string(), "layer sha256:1: entry 'a\\n\\xff': bad");
        let failed = Error::failed("reading 'a'", "no").in_layer("tree").in_layer("tree");
        assert_eq!(failed.to_string(), "layer tree: reading 'a': no");
    }

    #[test]
    fn what_an_input_says_does_not_flood_or_command_a_terminal() {
        let long = Error::refused(format!("the platform {}", "x".repeat(100_000))).to_string();
        assert!(long.starts_with("the platform xxx") && long.ends_with('…') && long.len() < 2100);
        assert_eq!(Error::refused("a type '\u{1b}[2J'").to_string(), "a type '\\u{1b}[2J'");
        assert_eq!(Error::refused("plain: ä").to_string(), "plain: ä");
    }

    #[test]
    fn an_error_of_the_system_is_a_failure_and_of_the_data_a_refusal() {
        assert!(!Error::stream("x", io::Error::from_raw_os_error(5)).is_refusal());
        assert!(Error::stream("x", io::ErrorKind::InvalidData.into()).is_refusal());
        assert!(Error::stream("x", io::ErrorKind::UnexpectedEof.into()).is_refusal());
    }
}
