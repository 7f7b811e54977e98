//! References against a store in memory: what writers and readers see of each other.

mod memory;

use super::*;
use bytes::Bytes;
use memory::Memory;
use serde_json::json;

pub(super) fn store() -> Arc<Memory> {
    Arc::new(Memory::default())
}

pub(super) fn refs(store: &Arc<Memory>) -> Refs {
    Refs::new(store.clone()).with_platform(platform("amd64"))
}

fn platform(architecture: &str) -> Platform {
    Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
}

pub(super) fn layer(n: u8) -> LayerId {
    LayerId::from_bytes([n; 32])
}

pub(super) fn entry(n: u8) -> StackEntry {
    StackEntry { head: 4096, size: 1 << 20, format: 1, generation: 1, ..StackEntry::bare(layer(n)) }
}

fn opaque(n: u8) -> StackEntry {
    StackEntry { root_opaque: true, ..entry(n) }
}

pub(super) fn stack(layers: &[u8]) -> Stack {
    layers.iter().map(|n| entry(*n)).collect::<Vec<_>>().into()
}

pub(super) fn chain(name: &str, layers: &[u8]) -> Chain {
    Chain { chain_id: Digest::of(name.as_bytes()), stack: stack(layers), collapsed: None }
}

fn image(name: &str) -> ImageName {
    name.parse().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn write_raw(store: &Memory, key: &str, payload: serde_json::Value) {
    use base64::Engine as _;
    let payload = base64::engine::general_purpose::STANDARD.encode(payload.to_string());
    let body = json!({"payloadType": envelope::PAYLOAD_TYPE, "payload": payload, "signatures": []});
    let body = Bytes::from(body.to_string());
    store.objects.lock().unwrap().insert(key.to_owned(), body);
}

#[tokio::test]
async fn the_format_object_is_the_first_that_is_written() {
    let store = store();
    assert_eq!(refs(&store).chain(&Digest::of(b"")).await.unwrap(), None);
    assert!(store.objects.lock().unwrap().is_empty());
    refs(&store).create_chain(&chain("a", &[1])).await.unwrap();
    assert_eq!(store.objects.lock().unwrap()["format"], r#"{"version":1,"requires":[]}"#);
}

#[tokio::test]
async fn a_store_of_a_later_format_is_refused_to_readers_and_writers() {
    for format in [r#"{"version":2}"#, r#"{"version":1,"requires":["moon"]}"#] {
        let store = store();
        store.objects.lock().unwrap().insert("format".into(), format.into());
        let read = refs(&store).chain(&Digest::of(b"")).await.unwrap_err();
        assert!(matches!(read, Error::Unsupported { .. }), "{read}");
        let written = refs(&store).create_chain(&chain("a", &[1])).await.unwrap_err();
        assert!(matches!(written, Error::Unsupported { .. }), "{written}");
        assert_eq!(store.objects.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn of_two_writers_of_a_chain_the_loser_takes_the_winners() {
    let store = store();
    let (one, two) = (refs(&store), refs(&store));
    let (first, second) = (chain("a", &[1]), chain("a", &[2]));
    let (a, b) = tokio::join!(one.create_chain(&first), two.create_chain(&second));
    let stands = one.chain(&first.chain_id).await.unwrap().unwrap();
    assert_eq!((a.unwrap(), b.unwrap()), (stands.clone(), stands));
}

#[tokio::test]
async fn converting_again_replaces_and_readers_follow() {
    let store = store();
    let (writer, reader) = (refs(&store), refs(&store));
    writer.create_chain(&chain("a", &[1])).await.unwrap();
    let id = Digest::of(b"a");
    assert_eq!(reader.chain(&id).await.unwrap().unwrap().stack, stack(&[1]));
    writer.replace_chain(&chain("a", &[2])).await.unwrap();
    assert_eq!(reader.chain(&id).await.unwrap().unwrap().stack, stack(&[2]));
}

#[tokio::test]
async fn a_store_that_goes_back_in_time_is_refused() {
    let store = store();
    let (writer, reader) = (refs(&store), refs(&store));
    writer.create_chain(&chain("a", &[1])).await.unwrap();
    let old = store.objects.lock().unwrap().clone();
    writer.replace_chain(&chain("a", &[2])).await.unwrap();
    writer.put_image(&image("x"), Digest::of(b"1")).await.unwrap();
    writer.put_image(&image("x"), Digest::of(b"2")).await.unwrap();
    reader.chain(&Digest::of(b"a")).await.unwrap();
    reader.image(&image("x")).await.unwrap();

    let mut objects = store.objects.lock().unwrap().clone();
    objects.extend(old);
    objects.remove("images/docker.io/library/x/_/latest/0000000002");
    *store.objects.lock().unwrap() = objects;
    let error = reader.chain(&Digest::of(b"a")).await.unwrap_err();
    assert!(matches!(error, Error::Older { .. }), "{error}");
    let error = reader.image(&image("x")).await.unwrap_err();
    assert!(matches!(error, Error::Older { sequence: 1, seen: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_removed_name_that_is_written_again_is_not_refused() {
    let store = store();
    let (writer, reader, other) = (refs(&store), refs(&store), refs(&store));
    for n in [b"1", b"2"] {
        writer.put_image(&image("x"), Digest::of(n)).await.unwrap();
    }
    reader.image(&image("x")).await.unwrap();
    other.remove_image(&image("x")).await.unwrap();
    assert_eq!(reader.image(&image("x")).await.unwrap(), None);
    assert_eq!(refs(&store).put_image(&image("x"), Digest::of(b"3")).await.unwrap(), 3);
    assert_eq!(reader.image(&image("x")).await.unwrap(), Some(Digest::of(b"3")));
}

#[tokio::test]
async fn an_object_moved_to_another_key_is_refused_to_readers_and_replaced_by_writers() {
    let store = store();
    let refs = refs(&store);
    refs.create_chain(&chain("a", &[1])).await.unwrap();
    let (from, to) = (Chain::key(&Digest::of(b"a")), Chain::key(&Digest::of(b"b")));
    let stolen = store.objects.lock().unwrap()[&from].clone();
    store.objects.lock().unwrap().insert(to, stolen);
    let error = refs.resolve(&Name::Digest(Digest::of(b"b"))).await.unwrap_err();
    assert!(matches!(error, Error::WrongKey { .. }), "{error}");
    assert_eq!(refs.create_chain(&chain("b", &[2])).await.unwrap(), chain("b", &[2]));
    assert_eq!(refs.resolve(&Name::Digest(Digest::of(b"b"))).await.unwrap(), stack(&[2]));
}

#[tokio::test]
async fn an_unknown_requirement_counts_as_not_converted_and_is_not_overwritten() {
    let store = store();
    let refs = refs(&store);
    let id = Digest::of(b"a");
    let key = Chain::key(&id);
    let payload = json!({"key": key, "schema": 1, "requires": ["warp"], "sequence": 1, "stack": "warped"});
    write_raw(&store, &key, payload);
    for result in [
        refs.chain(&id).await.map(drop),
        refs.create_chain(&chain("a", &[1])).await.map(drop),
        refs.replace_chain(&chain("a", &[1])).await.map(drop),
        refs.resolve(&Name::Digest(id)).await.map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(error.is_not_converted() && error.to_string().contains("'warp'"), "{error}");
    }
}

#[tokio::test]
async fn a_reference_about_something_else_is_malformed_to_readers_and_replaced_by_writers() {
    let id = Digest::of(b"a");
    let key = Chain::key(&id);
    for (chain_id, stack) in [(Digest::of(b"b"), json!([{"layer": layer(1)}])), (id, json!([]))] {
        let store = store();
        let refs = refs(&store);
        let payload = json!({"key": key, "schema": 1, "sequence": 1, "chain_id": chain_id, "stack": stack});
        write_raw(&store, &key, payload);
        let error = refs.resolve(&Name::Digest(id)).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert_eq!(refs.create_chain(&chain("a", &[1])).await.unwrap(), chain("a", &[1]));
        assert_eq!(refs.resolve(&Name::Digest(id)).await.unwrap(), self::stack(&[1]));
    }
}

#[tokio::test]
async fn an_images_chains_lie_on_the_stacks_that_stand() {
    let store = store();
    let refs = refs(&store);
    let layers = |ids: &[u8]| -> Vec<ChainLayer> {
        let name = |i: usize| Digest::of(format!("chain {i}").as_bytes());
        let layer =
            |(i, n): (usize, &u8)| ChainLayer { chain_id: name(i), entry: if i == 0 { opaque(*n) } else { entry(*n) } };
        ids.iter().enumerate().map(layer).collect()
    };
    refs.write_chains(&layers(&[1, 2]), false).await.unwrap();
    // Another conversion of the same image, longer: its first two layers are those that stand.
    let chains = refs.write_chains(&layers(&[11, 12, 13]), false).await.unwrap();
    let top = Stack::from(vec![opaque(1), entry(2), entry(13)]);
    assert_eq!(chains[2].stack, top);
    assert_eq!(refs.resolve(&Name::Digest(chains[2].chain_id)).await.unwrap(), top);
    let chains = refs.write_chains(&layers(&[11, 12, 13]), true).await.unwrap();
    assert_eq!(chains[2].stack, Stack::from(vec![opaque(11), entry(12), entry(13)]));
}

#[tokio::test]
async fn racing_writers_of_a_name_lose_nothing_and_the_highest_wins() {
    let store = store();
    let writers = (0..8u8).map(|n| {
        let refs = refs(&store);
        tokio::spawn(async move { refs.put_image(&image("x:1"), Digest::of(&[n])).await.unwrap() })
    });
    let mut sequences = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        sequences.push(writer.await.unwrap());
    }
    let last = (0..8u8).find(|n| sequences[usize::from(*n)] == 8).unwrap();
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(refs(&store).image(&image("x:1")).await.unwrap(), Some(Digest::of(&[last])));
}

#[tokio::test]
async fn a_name_that_already_says_so_is_not_written_again() {
    let store = store();
    let refs = refs(&store);
    assert_eq!(refs.put_image(&image("x"), Digest::of(b"1")).await.unwrap(), 1);
    assert_eq!(refs.put_image(&image("x"), Digest::of(b"1")).await.unwrap(), 1);
    assert_eq!(refs.put_image(&image("x"), Digest::of(b"2")).await.unwrap(), 2);
    assert_eq!(refs.put_image(&image("x"), Digest::of(b"1")).await.unwrap(), 3);
    refs.put_image(&image("y:t"), Digest::of(b"1")).await.unwrap();
    assert_eq!(refs.images().await.unwrap(), [image("x"), image("y:t")]);
}

#[tokio::test]
async fn a_store_that_cannot_list_is_read_from_the_hint_upwards() {
    let store = store();
    let writer = refs(&store);
    for n in 1..=5u8 {
        writer.put_image(&image("x"), Digest::of(&[n])).await.unwrap();
    }
    let mut objects = store.objects.lock().unwrap().clone();
    for hint in [r#"{"sequence":3}"#, r#"{"sequence":5}"#, "garbage"] {
        objects.insert("images/docker.io/library/x/_/latest/latest".into(), hint.into());
        let deaf = Arc::new(Memory { objects: Mutex::new(objects.clone()), no_list: true });
        let refs = refs(&deaf);
        assert_eq!(refs.image(&image("x")).await.unwrap(), Some(Digest::of(&[5])), "{hint}");
        assert_eq!(refs.image(&image("none")).await.unwrap(), None);
        refs.revoke(&layer(1), "bad").await.unwrap();
        assert!(refs.revoked(&layer(1)).await.unwrap() && !refs.revoked(&layer(2)).await.unwrap());
    }
}

fn manifest(digest: Digest, architecture: &str, layers: &[u8]) -> ManifestDoc {
    ManifestDoc {
        digest,
        platform: platform(architecture),
        config: Digest::of(b"config"),
        chains: vec![ManifestChain {
            chain_id: Digest::of(b"chain"),
            diff_id: Digest::of(b"diff"),
            stack: stack(layers),
            collapsed: None,
        }],
    }
}

#[tokio::test]
async fn an_image_of_many_platforms_gives_this_platforms_stack() {
    let store = store();
    let refs = refs(&store);
    let (amd, arm) = (Digest::of(b"amd"), Digest::of(b"arm"));
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": arm, "size": 1, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {"digest": "sha512:attestation", "platform": {"os": "unknown", "architecture": "unknown"}},
        {"digest": amd, "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
    ]});
    let digest = refs.put_blob(index.to_string().into()).await.unwrap();
    refs.put_image(&image("x"), digest).await.unwrap();
    let missing = refs.resolve(&name("x")).await.unwrap_err();
    assert!(missing.is_not_converted() && missing.to_string().contains("not converted"), "{missing}");
    refs.put_manifest(&manifest(amd, "amd64", &[1, 2])).await.unwrap();
    for text in ["x", "image:docker.io/library/x", &format!("x@{digest}"), &digest.to_string(), &amd.to_string()] {
        assert_eq!(refs.resolve(&name(text)).await.unwrap(), stack(&[1, 2]), "{text}");
    }
    let riscv = Refs::new(store.clone()).with_platform(platform("riscv64"));
    let error = riscv.resolve(&name("x")).await.unwrap_err();
    assert!(error.to_string().contains("linux/riscv64"), "{error}");
    refs.put_manifest(&manifest(amd, "amd64", &[3])).await.unwrap();
    assert_eq!(refs.resolve(&name("x")).await.unwrap(), stack(&[3]));
}

#[tokio::test]
async fn the_best_variant_is_chosen_also_in_an_index_of_an_index_and_where_only_the_config_names_the_platform() {
    let store = store();
    let (v6, v7, s390x, amd) = (Digest::of(b"v6"), Digest::of(b"v7"), Digest::of(b"s390x"), Digest::of(b"amd"));
    let arm = |variant: &str| json!({"os": "linux", "architecture": "arm", "variant": variant});
    let refs = refs(&store);
    let put = async |index: serde_json::Value| refs.put_blob(index.to_string().into()).await.unwrap();
    let inner =
        put(json!({"manifests": [{"digest": s390x}, {"digest": amd}, {"digest": Digest::of(b"signature")}]})).await;
    let outer = json!({"manifests": [
        {"digest": inner}, {"digest": v6, "platform": arm("v6")}, {"digest": v7, "platform": arm("v7")},
    ]});
    let outer = put(outer).await;
    for (digest, architecture) in [(v6, "arm"), (s390x, "s390x"), (amd, "amd64")] {
        refs.put_manifest(&manifest(digest, architecture, &[1])).await.unwrap();
    }
    let on = |architecture: &str| Refs::new(store.clone()).with_platform(platform(architecture));
    let way = on("amd64").way_to_manifest(&outer).await.unwrap().unwrap();
    assert_eq!((way.0.digest, way.1), (amd, vec![outer, inner]));
    let way = on("s390x").way_to_manifest(&outer).await.unwrap().unwrap();
    assert_eq!(way.0.digest, s390x);
    // containerd would run v7: another that happens to be converted is no answer.
    let error = on("arm").way_to_manifest(&outer).await.unwrap_err();
    assert!(error.is_not_converted() && error.to_string().contains(&v7.to_string()), "{error}");
    refs.put_manifest(&manifest(v7, "arm", &[1])).await.unwrap();
    assert_eq!(on("arm").way_to_manifest(&outer).await.unwrap().unwrap().0.digest, v7);
    let error = on("riscv64").way_to_manifest(&outer).await.unwrap_err();
    assert!(error.is_not_converted() && error.to_string().contains("linux/riscv64"), "{error}");
}

#[tokio::test]
async fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    let store = store();
    let refs = refs(&store);
    let digest = refs.put_blob(Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(refs.blob(&digest).await.unwrap().unwrap(), "{}");
    let key = format!("blobs/sha256/{}", digest.hex());
    store.objects.lock().unwrap().insert(key, "[]".into());
    assert!(matches!(refs.blob(&digest).await, Err(Error::Malformed { .. })));
}

#[tokio::test]
async fn a_revoked_layer_is_refused_to_nodes_and_absent_to_writers() {
    let store = store();
    let refs = refs(&store);
    let id = Digest::of(b"a");
    refs.create_chain(&chain("a", &[1, 2])).await.unwrap();
    refs.revoke(&layer(2), "a secret in it").await.unwrap();
    let error = refs.resolve(&Name::Digest(id)).await.unwrap_err();
    assert!(matches!(error, Error::Revoked { layer: l, .. } if l == layer(2)), "{error}");
    assert!(error.is_not_converted());
    assert_eq!(refs.chain(&id).await.unwrap(), None);
    let stands = refs.create_chain(&chain("a", &[1, 3])).await.unwrap();
    assert_eq!(stands.stack, stack(&[1, 3]));
    assert_eq!(refs.resolve(&Name::Digest(id)).await.unwrap(), stack(&[1, 3]));
}

#[tokio::test]
async fn diff_ids_and_layer_digests_lead_to_a_layer() {
    let store = store();
    let refs = refs(&store);
    let (diff_id, digest) = (Digest::of(b"tar"), Digest::of(b"tar.gz"));
    let assumes = vec![Assume { path: b"usr/\xff".to_vec(), what: Assumed::Absent }];
    let candidate = |n, assumes| Candidate { entry: entry(n), assumes };
    refs.add_candidate(&diff_id, candidate(1, assumes.clone())).await.unwrap();
    refs.add_candidate(&diff_id, candidate(2, vec![])).await.unwrap();
    refs.add_candidate(&diff_id, candidate(2, vec![])).await.unwrap();
    refs.put_layer_digest(digest, diff_id).await.unwrap();
    let diff = refs.diff(&diff_id).await.unwrap().unwrap();
    assert_eq!(diff.candidates, [candidate(1, assumes), candidate(2, vec![])]);
    for id in [diff_id, digest] {
        assert_eq!(refs.resolve(&Name::Digest(id)).await.unwrap(), stack(&[2]));
    }
    refs.revoke(&layer(2), "").await.unwrap();
    // The other one took something from below: alone it would be wrong, and the lowest chain id is a diff id.
    let error = refs.resolve(&Name::Digest(digest)).await.unwrap_err();
    assert!(error.is_not_converted() && error.to_string().contains(&layer(1).to_string()), "{error}");
    let error = refs.resolve(&Name::Digest(Digest::of(b"?"))).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn layers_are_found_by_id_and_by_its_start() {
    let store = store();
    let refs = refs(&store);
    let mut other = [7; 32];
    other[31] = 8;
    for id in [layer(7), LayerId::from_bytes(other), layer(9)] {
        store.objects.lock().unwrap().insert(layer_key(&id), "12345".into());
    }
    let found = refs.resolve(&name(&layer(9).to_string()[..12])).await.unwrap();
    assert_eq!((found.layers()[0].layer, found.layers()[0].size), (layer(9), 5));
    assert_eq!(refs.resolve(&Name::Layer(layer(7))).await.unwrap().len(), 1);
    let error = refs.resolve(&name("070707070707")).await.unwrap_err();
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
    let error = refs.resolve(&name("layer:aaaaaaaaaaaa")).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let error = refs.resolve(&name("/some/file")).await.unwrap_err();
    assert!(matches!(error, Error::LocalFile { .. }), "{error}");
}

#[tokio::test]
async fn tags_stand_for_stacks() {
    let store = store();
    let refs = refs(&store);
    let mut tag = Tag {
        kind: TagKind::Workspace,
        name: "team/w".into(),
        version: "1".into(),
        stack: stack(&[5]),
        collapsed: None,
        made_over: Some(MadeOver { name: Some("tag:base/b:1".into()), stack: stack(&[1]) }),
        environment: vec!["A=b".into()],
    };
    assert_eq!(refs.put_tag(&tag).await.unwrap(), 1);
    assert_eq!(refs.tag(&tag.tag_name()).await.unwrap().as_ref(), Some(&tag));
    assert_eq!(refs.resolve(&name("workspace/team/w:1")).await.unwrap(), stack(&[5]));
    assert_eq!(refs.tags().await.unwrap(), [tag.tag_name()]);
    tag.stack = Stack::EMPTY;
    assert!(matches!(refs.put_tag(&tag).await, Err(Error::Refused { .. })));
    tag.name = "../w".into();
    assert!(matches!(refs.put_tag(&tag).await, Err(Error::Name(_))));
    refs.remove_tag(&"workspace/team/w:1".parse().unwrap()).await.unwrap();
    let error = refs.resolve(&name("workspace/team/w:1")).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_stack_with_a_layer_of_a_later_version_counts_as_not_converted() {
    let store = store();
    let id = Digest::of(b"a");
    let stack: Stack = vec![entry(1), StackEntry { format: 2, ..entry(2) }].into();
    let key = Chain::key(&id);
    write_raw(&store, &key, json!({"key": key, "schema": 1, "sequence": 1, "chain_id": id, "stack": stack}));
    for error in
        [refs(&store).chain(&id).await.unwrap_err(), refs(&store).resolve(&Name::Digest(id)).await.unwrap_err()]
    {
        assert!(error.is_not_converted() && error.to_string().contains("version 2"), "{error}");
    }
}

#[tokio::test]
async fn a_candidate_that_only_a_newer_build_can_judge_survives_an_older_writer() {
    let store = store();
    let id = Digest::of(b"diff");
    let newer = json!({"layer": layer(1), "assumes": [{"path": "a", "kind": "moon", "phase": 3}]});
    let key = Diff::key(&id);
    write_raw(
        &store,
        &key,
        json!({"key": key, "schema": 1, "sequence": 1, "diff_id": id, "candidates": [newer.clone()]}),
    );
    refs(&store).add_candidate(&id, Candidate { entry: entry(2), assumes: Vec::new() }).await.unwrap();
    assert_eq!(refs(&store).diff(&id).await.unwrap().unwrap().candidates.len(), 1);
    let stored = store.objects.lock().unwrap()[&key].clone();
    let payload: serde_json::Value = serde_json::from_slice(&envelope::payload(&key, &stored).unwrap()).unwrap();
    assert_eq!(payload["candidates"][0], newer);
}

/// Every object below `prefix` becomes these bytes.
fn damage(store: &Memory, prefix: &str, bytes: &'static [u8]) {
    let mut objects = store.objects.lock().unwrap();
    let keys: Vec<String> = objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
    assert!(!keys.is_empty(), "{prefix}");
    objects.extend(keys.into_iter().map(|key| (key, Bytes::from_static(bytes))));
}

#[tokio::test]
async fn a_name_that_cannot_be_read_is_an_error_until_it_is_written_anew() {
    for (bytes, hint) in [(&b""[..], true), (b"{}", false), (b"\xff\xfe", true)] {
        let store = store();
        for n in [b"1", b"2"] {
            refs(&store).put_image(&image("x"), Digest::of(n)).await.unwrap();
        }
        let top = "images/docker.io/library/x/_/latest/0000000002";
        damage(&store, top, bytes);
        if !hint {
            damage(&store, "images/docker.io/library/x/_/latest/latest", bytes);
        }
        let error = refs(&store).image(&image("x")).await.unwrap_err();
        assert!(error.is_damaged() && error.to_string().contains(top), "{error}");
        assert_eq!(refs(&store).put_image(&image("x"), Digest::of(b"3")).await.unwrap(), 3);
        assert_eq!(refs(&store).image(&image("x")).await.unwrap(), Some(Digest::of(b"3")));
    }
}

#[tokio::test]
async fn what_a_writer_cannot_read_it_replaces_and_what_is_of_a_later_build_it_leaves() {
    let later: &[u8] = br#"{"payloadType": "application/vnd.later+json", "payload": ""}"#;
    for (bytes, replaced) in [(&b""[..], true), (b"{\"payloadType\":1}", true), (later, false)] {
        let store = store();
        let chain = chain("a", &[1]);
        let (digest, diff_id) = (Digest::of(b"blob"), Digest::of(b"tar"));
        let candidate = Candidate { entry: entry(1), assumes: Vec::new() };
        let manifest =
            ManifestDoc::new(Digest::of(b"m"), Digest::of(b"c"), platform("amd64"), vec![chain.clone()], [&diff_id]);
        let write = async || -> Result<()> {
            let refs = refs(&store);
            refs.create_chain(&chain).await?;
            refs.add_candidate(&diff_id, candidate.clone()).await?;
            refs.put_layer_digest(digest, diff_id).await?;
            refs.put_manifest(&manifest).await
        };
        write().await.unwrap();
        damage(&store, "refs/", bytes);
        damage(&store, "manifests/", bytes);
        assert_eq!(write().await.is_ok(), replaced);
        if replaced {
            let refs = refs(&store);
            assert_eq!(refs.stored_chain(&chain.chain_id).await.unwrap().as_ref(), Some(&chain));
            assert_eq!(refs.diff(&diff_id).await.unwrap().unwrap().candidates, [candidate]);
            assert_eq!(refs.layer_digest(&digest).await.unwrap(), Some(diff_id));
            assert_eq!(refs.manifest(&manifest.digest).await.unwrap(), Some(manifest));
        }
    }
}

#[tokio::test]
async fn a_document_that_is_damaged_is_replaced_when_everything_is_done_again() {
    let store = store();
    let refs = refs(&store);
    let document = Bytes::from_static(b"{}");
    let digest = refs.put_blob(document.clone()).await.unwrap();
    damage(&store, "blobs/", b"");
    assert_eq!(refs.put_blob(document.clone()).await.unwrap(), digest);
    assert!(refs.blob(&digest).await.unwrap_err().is_damaged());
    assert_eq!(refs.put_blob_again(document.clone()).await.unwrap(), digest);
    assert_eq!(refs.blob(&digest).await.unwrap(), Some(document));
}

#[tokio::test]
async fn a_name_that_is_not_there_tells_whether_there_is_a_store() {
    let store = store();
    for name in ["image:x", "tag:base/x:1", &format!("layer:{}", layer(1))] {
        let error = refs(&store).resolve(&name.parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("no store yet"), "{error}");
    }
    refs(&store).init().await.unwrap();
    for name in ["image:x", "tag:base/x:1", &format!("layer:{}", layer(1))] {
        let error = refs(&store).resolve(&name.parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("no such") && !error.contains("no store yet"), "{error}");
    }
}
