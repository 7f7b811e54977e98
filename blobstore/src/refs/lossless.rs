//! Bytes in JSON without loss: as text where they are UTF-8, else in base64 under a second field's name.
//!
//! `{"path": "etc/motd"}` or `{"path_b64": "ZXRjL/8="}`. Exactly one of the two is there.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// `(text, base64)` of these bytes: one of them is `None`.
pub(super) fn split(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(e) => (None, Some(STANDARD.encode(e.as_bytes()))),
    }
}

/// The bytes of the two fields that `what` is written as.
pub(super) fn join(what: &str, text: Option<String>, b64: Option<String>) -> Result<Vec<u8>, String> {
    match (text, b64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(b64)) => STANDARD.decode(b64).map_err(|e| format!("{what}_b64 is not base64: {e}")),
        _ => Err(format!("one of {what} and {what}_b64 must be there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        for bytes in [&b""[..], b"etc/motd", b"a\0b", b"\xff\xfe/x", "ä".as_bytes()].map(Vec::from) {
            let (text, b64) = super::split(bytes.clone());
            assert_eq!(join("path", text, b64).unwrap(), bytes);
        }
        assert!(join("path", None, None).is_err());
        assert!(join("path", Some(String::new()), Some(String::new())).is_err());
        assert!(join("path", None, Some("*".into())).is_err());
    }
}
