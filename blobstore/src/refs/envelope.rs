//! The envelope round every reference: DSSE (<https://github.com/secure-systems-lab/dsse>), with a JSON payload.
//!
//! ```json
//! {"payloadType": "application/vnd.lamina.ref+json", "payload": "<base64>", "signatures": []}
//! ```
//!
//! The payload is one JSON object: the header's fields ([`Header`]) and, beside them, those of the body. What is
//! signed is the payload as stored, byte for byte. Unknown fields are ignored; what must not be ignored is named in
//! `requires`, and a name not in [`FEATURES`] makes the whole object [`Error::Unsupported`]. The key inside must be
//! the key it was read from, so an object copied to another name is refused.
//!
//! Signatures are carried, not yet made or checked: only trusted writers can write the store.

use super::error::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// `payloadType` of every reference.
pub const PAYLOAD_TYPE: &str = "application/vnd.lamina.ref+json";

/// The schema version that is written, and the highest that is understood.
pub const SCHEMA: u32 = 1;

/// The features that `requires` may name. None so far.
pub const FEATURES: &[&str] = &[];

/// What every payload says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The full key of the object in the store.
    pub key: String,
    /// Schema version of the payload.
    pub schema: u32,
    /// Features that a reader must understand to use the object at all.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Rises with every version of the object. In a series it is the number in the key.
    pub sequence: u64,
    /// When it was written, seconds since 1970 by the writer's clock. For people; nothing is decided by it.
    #[serde(default)]
    pub time: u64,
}

/// A payload that belongs to its key and that this build understands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document<T> {
    /// What it says of itself.
    pub header: Header,
    /// What it is about.
    pub body: T,
}

/// One signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// A hint at the key, unauthenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyid: Option<String>,
    /// Base64 of the signature over the DSSE pre-authentication encoding.
    pub sig: String,
}

/// The envelope as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Always [`PAYLOAD_TYPE`].
    #[serde(rename = "payloadType")]
    pub payload_type: String,
    /// The payload in base64.
    pub payload: String,
    /// None so far.
    #[serde(default)]
    pub signatures: Vec<Signature>,
}

#[derive(Serialize)]
struct Payload<'a, T> {
    #[serde(flatten)]
    header: &'a Header,
    #[serde(flatten)]
    body: &'a T,
}

impl Header {
    /// The header of what this build writes.
    pub fn new(key: &str, sequence: u64, time: u64) -> Self {
        Self { key: key.to_owned(), schema: SCHEMA, requires: Vec::new(), sequence, time }
    }

    fn check(&self, key: &str) -> Result<()> {
        if self.key != key {
            return Err(Error::WrongKey { key: key.to_owned(), claims: self.key.clone() });
        }
        check_versions(key, "schema", self.schema, SCHEMA, &self.requires)
    }
}

/// Refuses what is newer than this build, naming it.
pub(super) fn check_versions(key: &str, what: &str, version: u32, known: u32, requires: &[String]) -> Result<()> {
    let unsupported = |what: String| Err(Error::Unsupported { key: key.to_owned(), what });
    if let Some(feature) = requires.iter().find(|f| !FEATURES.contains(&f.as_str())) {
        return unsupported(format!("it requires the feature '{feature}'"));
    }
    if version == 0 || version > known {
        return unsupported(format!("it has {what} version {version} (known: {known})"));
    }
    Ok(())
}

/// The bytes to store under `header.key`.
pub fn seal<T: Serialize>(header: &Header, body: &T) -> Result<Vec<u8>> {
    let refused = |e: serde_json::Error| Error::Refused { key: header.key.clone(), what: e.to_string() };
    let payload = serde_json::to_vec(&Payload { header, body }).map_err(refused)?;
    let envelope =
        Envelope { payload_type: PAYLOAD_TYPE.to_owned(), payload: STANDARD.encode(payload), signatures: Vec::new() };
    serde_json::to_vec(&envelope).map_err(refused)
}

/// Opens what was read from `key`. The header is judged before the body is looked at, so that a body of a later
/// schema is `Unsupported` and not `Malformed`.
pub fn open<T: DeserializeOwned>(key: &str, stored: &[u8]) -> Result<Document<T>> {
    let payload = payload(key, stored)?;
    let header: Header =
        serde_json::from_slice(&payload).map_err(|e| Error::malformed(key, format!("payload: {e}")))?;
    header.check(key)?;
    let body = serde_json::from_slice(&payload).map_err(|e| Error::malformed(key, format!("payload: {e}")))?;
    Ok(Document { header, body })
}

/// The payload of an envelope, for people: nothing but the envelope itself is checked.
pub fn payload(key: &str, stored: &[u8]) -> Result<Vec<u8>> {
    let envelope: Envelope =
        serde_json::from_slice(stored).map_err(|e| Error::malformed(key, format!("envelope: {e}")))?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(Error::Unsupported {
            key: key.to_owned(),
            what: format!("it has the payload type '{}'", envelope.payload_type),
        });
    }
    // DSSE: writers use either alphabet, readers accept both.
    STANDARD
        .decode(&envelope.payload)
        .or_else(|_| URL_SAFE.decode(&envelope.payload))
        .map_err(|e| Error::malformed(key, format!("payload: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stored(payload: &Value) -> Vec<u8> {
        let envelope = json!({
            "payloadType": PAYLOAD_TYPE, "payload": STANDARD.encode(payload.to_string()), "signatures": [],
            "from the future": 1,
        });
        envelope.to_string().into_bytes()
    }

    fn good() -> Value {
        json!({"key": "refs/x", "schema": 1, "requires": [], "sequence": 3, "time": 5, "n": 7, "new": true})
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Body {
        n: u32,
    }

    #[test]
    fn what_is_sealed_opens_again() {
        let header = Header::new("refs/x", 3, 5);
        let bytes = seal(&header, &Body { n: 7 }).unwrap();
        let document: Document<Body> = open("refs/x", &bytes).unwrap();
        assert_eq!(document, Document { header, body: Body { n: 7 } });
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let document: Document<Body> = open("refs/x", &stored(&good())).unwrap();
        assert_eq!((document.header.sequence, document.body.n), (3, 7));
    }

    #[test]
    fn another_key_is_refused() {
        let result = open::<Body>("refs/y", &stored(&good()));
        assert!(matches!(result, Err(Error::WrongKey { claims, .. }) if claims == "refs/x"));
    }

    #[test]
    fn an_unknown_feature_is_its_own_kind_and_is_named() {
        let mut payload = good();
        payload["requires"] = json!(["nested-stacks"]);
        payload["n"] = json!("of another type in that schema");
        let error = open::<Body>("refs/x", &stored(&payload)).unwrap_err();
        assert!(error.is_not_converted(), "{error}");
        assert!(error.to_string().contains("'nested-stacks'"), "{error}");
    }

    #[test]
    fn a_later_schema_is_unsupported() {
        let mut payload = good();
        payload["schema"] = json!(2);
        payload["n"] = json!([]);
        let error = open::<Body>("refs/x", &stored(&payload)).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }

    #[test]
    fn garbage_is_malformed_and_never_panics() {
        let bytes = stored(&good());
        for end in 0..bytes.len() {
            assert!(open::<Body>("refs/x", &bytes[..end]).is_err());
        }
        for bad in ["{}", "[]", "null", "{\"payloadType\":1}"] {
            assert!(matches!(open::<Body>("k", bad.as_bytes()), Err(Error::Malformed { .. })));
        }
    }
}
