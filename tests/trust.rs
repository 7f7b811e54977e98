//! What an image says about itself changes nothing that another image, or another name, gets.

use containerd::snapshots::PrepareSnapshotRequest;
use containerd::snapshots::snapshots_client::SnapshotsClient;
use serde_json::json;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use tests::image::{Image, digest, layer_file, tar};
use tests::node::Node;
use tests::tree::listing;

/// Every file below a directory store, but for the object that says it is one.
fn objects(store: &Path) -> Vec<String> {
    if !store.exists() {
        return Vec::new();
    }
    let all = listing(store);
    all.into_iter().filter(|(name, what)| what != "directory" && name != "format").map(|(name, _)| name).collect()
}

#[test]
fn an_image_with_false_diff_ids_writes_nothing() {
    let node = Node::default();
    let mut image = Image::new(vec![tar(&[("a", b"honest")]), tar(&[("b", b"not what it says")])]);
    image.diff_ids[1] = digest(b"something else");
    let source = image.write(&node.path("image"), "false.local/image:1");
    let error = node.fail(3, &["convert", &source]);
    assert!(error.contains(&image.diff_ids[1]), "the error names the diff id: {error}");
    assert_eq!(objects(&node.path("store")), Vec::<String>::new());
}

#[test]
fn an_image_that_claims_anothers_diff_ids_writes_nothing_and_changes_nothing() {
    let node = Node::default();
    let good = Image::new(vec![tar(&[("a", b"good")])]);
    node.convert(&good.write(&node.path("good"), "good.local/image:1"), &[]);
    let before = objects(&node.path("store"));
    let mut evil = Image::new(vec![tar(&[("a", b"evil")])]);
    evil.diff_ids.clone_from(&good.diff_ids);
    let source = evil.write(&node.path("evil"), "evil.local/image:1");
    // The chain is in the store: what the image would get under that name is the trusted content, so either is right:
    // a refusal, or the name standing for exactly that content. Never the evil one.
    let output = node.lamina(&["convert", &source]);
    if output.status.success() {
        let (a, b) =
            (node.json(&["inspect", "image:good.local/image:1"]), node.json(&["inspect", "image:evil.local/image:1"]));
        assert_eq!(a["layers"], b["layers"]);
    } else {
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(objects(&node.path("store")), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_that_name_other_layers_change_no_snapshot() {
    if !tests::possible("annotations") {
        return;
    }
    let mut node = Node::default();
    let good = Image::new(vec![tar(&[("a", b"good")])]);
    node.convert(&good.write(&node.path("good"), "good.local/image:1"), &[]);
    let other = Image::new(vec![tar(&[("a", b"other")])]);
    node.convert(&other.write(&node.path("other"), "other.local/image:1"), &[]);
    let layer_of = |name: &str| node.json(&["inspect", name])["layers"][0]["layer"].as_str().unwrap().to_owned();
    let (good_layer, other_layer) = (layer_of("good.local/image:1"), layer_of("other.local/image:1"));
    node.start_daemon();
    node.start_snapshotter();
    // Annotations with this prefix reach the snapshotter as labels, from any image.
    let labels: HashMap<String, String> = [
        ("containerd.io/snapshot.ref", good.chain_ids()[0].as_str()),
        ("containerd.io/snapshot/lamina.layer", &other_layer),
        ("containerd.io/snapshot/cri.layer-digest", &other.diff_ids[0]),
        ("containerd.io/snapshot/diff-id", &other.diff_ids[0]),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .collect();
    let mut client = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    let request = |key: &str, parent: &str, labels| PrepareSnapshotRequest {
        snapshotter: "lamina".into(),
        key: key.into(),
        parent: parent.into(),
        labels,
    };
    let chain = good.chain_ids().remove(0);
    let answer = client.prepare(request("default/1/extract-1 x", "", labels)).await.unwrap_err();
    assert_eq!(answer.code(), tonic::Code::AlreadyExists);
    client.prepare(request("default/2/c", &chain, HashMap::new())).await.unwrap();
    let mounts = node.status().unwrap()["mounts"].to_string();
    assert!(mounts.contains(&good_layer) && !mounts.contains(&other_layer), "{mounts}");
}

#[test]
fn an_annotation_in_the_image_itself_changes_nothing_in_the_conversion() {
    let node = Node::default();
    let mut plain = Image::new(vec![tar(&[("a", b"a")])]);
    node.convert(&plain.write(&node.path("plain"), "plain.local/image:1"), &[]);
    plain.annotations[0] = json!({
        "containerd.io/snapshot/lamina.layer": "00".repeat(32),
        "containerd.io/snapshot/lamina.workspace": "file:/etc/passwd",
    });
    let again = Node::default();
    again.convert(&plain.write(&again.path("annotated"), "plain.local/image:1"), &[]);
    let layers = |n: &Node| n.json(&["inspect", "plain.local/image:1"])["layers"].clone();
    assert_eq!(layers(&node), layers(&again));
}

/// What a newer Lamina wrote is "not converted" to a pull, and a clear error to a mount.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_is_an_ordinary_unpack_at_pull_and_an_error_at_mount() {
    if !tests::possible("the future") {
        return;
    }
    let mut node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    node.convert(&image.write(&node.path("image"), "future.local/image:1"), &[]);
    let chain = image.chain_ids().remove(0);
    require_unknown_feature(&chain_reference(&node, &chain));
    node.start_daemon();
    node.start_snapshotter();
    assert_eq!(unpack(&node, &chain).await.len(), 1, "an ordinary, empty snapshot to unpack into");
    let target = node.new_dir("mnt");
    let error = node.fail(1, &["mount", &chain, target.to_str().unwrap()]);
    assert!(error.contains("teleportation"), "the error names what is not understood: {error}");
}

/// Rewrites a reference's payload to require a feature that nobody has.
fn require_unknown_feature(path: &Path) {
    rewrite(path, |payload| payload["requires"] = json!(["teleportation"]));
}

/// Rewrites a reference's payload, as somebody who can write the store could.
fn rewrite(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    use blobstore::refs::envelope;
    let stored = fs::read(path).unwrap();
    let key = path.ancestors().take(4).map(|p| p.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>();
    let key: String = key.into_iter().rev().collect::<Vec<_>>().join("/");
    let payload = envelope::payload(&key, &stored).unwrap();
    let mut payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    change(&mut payload);
    let mut envelope: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    envelope["payload"] = base64(payload.to_string().as_bytes()).into();
    fs::write(path, envelope.to_string()).unwrap();
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The same for a layer whose index has a section that must be understood and is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_with_an_unknown_section_is_an_ordinary_unpack_at_pull_and_a_clear_error_at_mount() {
    if !tests::possible("an unknown section") {
        return;
    }
    let mut node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    let report = node.convert(&image.write(&node.path("image"), "strange.local/image:1"), &[]);
    let id = report["images"][0]["layers"][0]["layer"].as_str().unwrap();
    // The file gets the section, and with it another id, under which it is put into the store and referred to.
    let old = layer_file(&node.path("store"), id);
    let strange = with_unknown_section(&fs::read(&old).unwrap());
    let id = blobstore::layer::LayerId::of(index_frame(&strange)).to_string();
    let file = layer_file(&node.path("store"), &id);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, strange).unwrap();
    let chain = image.chain_ids().remove(0);
    rewrite(&chain_reference(&node, &chain), |payload| payload["stack"][0] = json!({"layer": id}));
    node.start_daemon();
    node.start_snapshotter();
    let target = node.new_dir("mnt");
    for reference in [&format!("layer:{id}"), &chain] {
        let error = node.fail(3, &["mount", reference, target.to_str().unwrap()]);
        assert!(error.contains(&id) && error.contains("section"), "{error}");
    }
    assert_eq!(unpack(&node, &chain).await.len(), 1, "an ordinary, empty snapshot to unpack into");
}

fn chain_reference(node: &Node, chain: &str) -> std::path::PathBuf {
    let hex = chain.strip_prefix("sha256:").unwrap();
    node.path("store/refs/chain").join(&hex[..2]).join(hex)
}

/// Prepares a layer's unpack, as containerd does at a pull; gives the mounts, which there are when the layer is not lazy.
async fn unpack(node: &Node, chain: &str) -> Vec<containerd::types::Mount> {
    let mut client = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    let labels = HashMap::from([("containerd.io/snapshot.ref".to_owned(), chain.to_owned())]);
    let request = PrepareSnapshotRequest {
        snapshotter: "lamina".into(),
        key: format!("default/1/extract-1 {chain}"),
        parent: String::new(),
        labels,
    };
    client.prepare(request).await.unwrap().into_inner().mounts
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn index_frame(layer: &[u8]) -> &[u8] {
    &layer[..8 + word(layer, 4) as usize]
}

/// Makes the optional section (of the kind "assumes", which every layer may have) one of a kind from the future.
fn with_unknown_section(layer: &[u8]) -> Vec<u8> {
    const CONTENT: usize = 8;
    const TABLE: usize = CONTENT + 56;
    let sections = word(layer, CONTENT + 52) as usize;
    let mut out = layer.to_vec();
    let added = 24 + 8;
    // A new entry at the end of the table moves every section by its size; the new section is the last one.
    let (table_end, frame_end) = (TABLE + 24 * sections, index_frame(layer).len());
    let pad = (8 - (frame_end - CONTENT) % 8) % 8;
    for i in 0..sections {
        let at = TABLE + 24 * i + 8;
        let offset = u64::from_le_bytes(layer[at..at + 8].try_into().unwrap()) + 24;
        out[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    }
    let mut entry = Vec::new();
    entry.extend_from_slice(&999u32.to_le_bytes());
    entry.extend_from_slice(&1u32.to_le_bytes());
    entry.extend_from_slice(&((frame_end - CONTENT + pad + 24) as u64).to_le_bytes());
    entry.extend_from_slice(&8u64.to_le_bytes());
    out.splice(frame_end..frame_end, vec![0; pad + 8]);
    out.splice(table_end..table_end, entry);
    let grown = (added + pad) as u64;
    for at in [CONTENT + 16, CONTENT + 24] {
        let value = u64::from_le_bytes(layer[at..at + 8].try_into().unwrap()) + grown;
        out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    out[4..8].copy_from_slice(&(word(layer, 4) + grown as u32).to_le_bytes());
    out[CONTENT + 52..CONTENT + 56].copy_from_slice(&(sections as u32 + 1).to_le_bytes());
    out
}
