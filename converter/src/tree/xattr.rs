//! Which extended attributes of an input become those of a layer.

use erofs::RareMap;
use std::collections::BTreeMap;

/// Extended attributes by full name.
pub type Xattrs = RareMap<Vec<u8>, Vec<u8>>;

/// Removes the attributes that a layer must not have, and gives their names.
///
/// Those of overlayfs itself would change what the mount shows; those in namespaces that no Linux file system has
/// (macOS's `com.apple.…`) cannot be set anywhere, and unpackers pass over them too.
pub fn keep_possible(xattrs: &mut Xattrs) -> Vec<Vec<u8>> {
    let all = std::mem::take(xattrs).into_iter();
    let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(|(name, _)| possible(name));
    *xattrs = kept.into();
    dropped.into_keys().collect()
}

fn possible(name: &[u8]) -> bool {
    let private = name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.");
    let namespace = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.strip_prefix(*prefix).is_some_and(|rest| !rest.is_empty()));
    let acl = name == b"system.posix_acl_access" || name == b"system.posix_acl_default";
    (namespace || acl) && !private
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_names_and_foreign_namespaces_go() {
        let names = [
            &b"user.a"[..],
            b"user.",
            b"trusted.overlay.opaque",
            b"user.overlay.origin",
            b"trusted.overlayx",
            b"com.apple.x",
            b"system.posix_acl_access",
            b"system.other",
            b"security.capability",
        ];
        let mut xattrs: Xattrs = names.iter().map(|name| (name.to_vec(), vec![])).collect();
        let dropped = keep_possible(&mut xattrs);
        let kept: Vec<_> = xattrs.keys().collect();
        assert_eq!(kept, [&b"security.capability"[..], b"system.posix_acl_access", b"trusted.overlayx", b"user.a"]);
        assert_eq!(dropped.len(), 5);
    }
}
