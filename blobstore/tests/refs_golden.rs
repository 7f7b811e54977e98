//! Every kind of reference as it was once stored: it must parse for ever, and today's writer still writes it so.
//!
//! `tests/golden/refs/<what>.json` is the object as stored, `<what>.payload.json` its payload for people.
//! `BLESS=1` writes files that are missing; one that is there is never touched.

use blobstore::layer::LayerId;
use blobstore::refs::envelope::{self, Header};
use blobstore::refs::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::PathBuf;

fn golden<T>(what: &str, key: &str, body: T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/refs");
    let (stored, payload) = (dir.join(format!("{what}.json")), dir.join(format!("{what}.payload.json")));
    let written = envelope::seal(&Header::new(key, 7, 1_767_225_600), &body).unwrap();
    if std::env::var_os("BLESS").is_some() && !stored.exists() {
        let json: serde_json::Value = serde_json::from_slice(&envelope::payload(key, &written).unwrap()).unwrap();
        std::fs::write(&payload, serde_json::to_string_pretty(&json).unwrap() + "\n").unwrap();
        std::fs::write(&stored, &written).unwrap();
    }
    let bytes = std::fs::read(&stored).unwrap();
    let document = envelope::open::<T>(key, &bytes).unwrap();
    assert_eq!((document.header.sequence, document.header.time), (7, 1_767_225_600));
    assert_eq!(document.body, body, "{what}: reads as something else");
    assert_eq!(written, bytes, "{what}: is written differently");
    let readable: serde_json::Value = serde_json::from_slice(&std::fs::read(payload).unwrap()).unwrap();
    let inside: serde_json::Value = serde_json::from_slice(&envelope::payload(key, &bytes).unwrap()).unwrap();
    assert_eq!(readable, inside);
}

fn entry(n: u8, root_opaque: bool) -> StackEntry {
    StackEntry {
        layer: LayerId::from_bytes([n; 32]),
        head: 123_456,
        size: 7_654_321,
        format: 1,
        generation: 1,
        root_opaque,
    }
}

fn stack() -> Stack {
    vec![entry(0x11, true), entry(0x22, false)].into()
}

fn attributes() -> Attributes {
    Attributes {
        mode: 0o1777,
        uid: 1000,
        gid: 100,
        xattrs: [(b"user.text".to_vec(), b"value".to_vec()), (b"security.capability".to_vec(), b"\x01\xff".to_vec())]
            .into(),
    }
}

#[test]
fn a_chain_parses_for_ever() {
    let chain_id = Digest::from_bytes([0xab; 32]);
    let stack = stack();
    golden("chain", &Chain::key(&chain_id), Chain { chain_id, stack, collapsed: None });
}

#[test]
fn a_chain_with_a_collapsed_stack_parses_for_ever() {
    let chain_id = Digest::from_bytes([0xac; 32]);
    let collapsed = Some(vec![entry(0x44, true)].into());
    golden("chain-collapsed", &Chain::key(&chain_id), Chain { chain_id, stack: stack(), collapsed });
}

#[test]
fn a_diff_parses_for_ever() {
    let diff_id = Digest::from_bytes([0xcd; 32]);
    let assume = |path: &[u8], what| Assume { path: path.to_vec(), what };
    let assumes = vec![
        assume(b"", Assumed::Directory(attributes())),
        assume("usr/ä".as_bytes(), Assumed::Absent),
        assume(b"bin/\xff\xfe", Assumed::Copied),
    ];
    let candidates =
        vec![Candidate { entry: entry(0x11, true), assumes: vec![] }, Candidate { entry: entry(0x22, false), assumes }];
    golden("diff", &Diff::key(&diff_id), Diff { diff_id, candidates });
}

#[test]
fn a_layer_digest_parses_for_ever() {
    let digest = Digest::from_bytes([1; 32]);
    let diff_id = Digest::from_bytes([2; 32]);
    golden("digest", &LayerDigest::key(&digest), LayerDigest { digest, diff_id });
}

#[test]
fn an_image_parses_for_ever() {
    let image = Image { name: "docker.io/library/python:3.12".into(), digest: Digest::from_bytes([3; 32]) };
    golden("image", "images/docker.io/library/python/_/3.12/0000000007", image);
}

#[test]
fn a_manifest_parses_for_ever() {
    let digest = Digest::from_bytes([4; 32]);
    let manifest = ManifestDoc {
        digest,
        platform: Platform { os: "linux".into(), architecture: "arm64".into(), variant: Some("v8".into()) },
        config: Digest::from_bytes([5; 32]),
        chains: vec![ManifestChain {
            chain_id: Digest::from_bytes([6; 32]),
            diff_id: Digest::from_bytes([7; 32]),
            stack: stack(),
            collapsed: None,
        }],
    };
    golden("manifest", &ManifestDoc::key(&digest), manifest);
}

#[test]
fn a_tag_parses_for_ever() {
    let tag = Tag {
        kind: TagKind::Workspace,
        name: "team/notebook".into(),
        version: "2026-01".into(),
        stack: vec![entry(0x33, false)].into(),
        collapsed: None,
        made_over: Some(MadeOver { name: Some("tag:base/python:3.12".into()), stack: stack() }),
        environment: vec!["PATH=/usr/bin".into()],
    };
    golden("tag", "tags/workspace/team/notebook/_/2026-01/0000000007", tag);
}

#[test]
fn a_revocation_parses_for_ever() {
    let layer = LayerId::from_bytes([0x11; 32]);
    let reason = "a secret in it".to_owned();
    golden("revoked", &format!("revoked/{layer}"), Revocation { layer, reason });
}
