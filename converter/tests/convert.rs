//! Conversions from outside: small image layouts into stores in temporary directories.

mod whole;

use crate::support::{self, Layout, Store, dir, file, link};
use blobstore::refs::{Digest, Name, TagName};
use converter::{Options, Platforms, Report, Source};

fn layers(report: &Report) -> Vec<(&str, bool)> {
    report.images[0].layers.iter().map(|layer| (layer.layer.as_str(), layer.reused)).collect()
}

#[tokio::test]
async fn a_second_conversion_reuses_everything_and_changes_nothing() {
    let layout = Layout::new();
    layout.image(
        &[&[dir("d", 7), file("d/a", b"one")], &[file("d/b", b"two")]],
        "linux/amd64",
        "docker.io/library/x:1",
    );
    let store = Store::new();
    let first = store.convert(&layout.source(), &Options::default()).await.unwrap();
    let files = store.files();
    let second = store.convert(&layout.source(), &Options::default()).await.unwrap();
    assert!(layers(&first).iter().all(|(_, reused)| !reused) && layers(&second).iter().all(|(_, reused)| *reused));
    assert_eq!(files, store.files());
    assert_eq!(first.name.as_deref(), Some("docker.io/library/x:1"));
    let name: Name = "image:x:1".parse().unwrap();
    let stack = store.refs.resolve(&name).await.unwrap();
    assert_eq!(stack.layers()[1].layer.to_string(), layers(&first)[1].0);
    assert_eq!(store.read(&stack.layers()[1], b"d/b"), b"two");
}

#[tokio::test]
async fn layers_do_not_depend_on_threads_or_on_the_compression_of_the_source() {
    let noise: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let entries: &[_] = &[file("big", &noise), file("a", b"small"), file("z", &noise[..5000])];
    let (plain, gzip) = (Layout::new(), Layout::new().gzip());
    let mut ids = Vec::new();
    for (layout, jobs) in [(&plain, 1), (&gzip, 3)] {
        layout.image(&[entries], "linux/amd64", "a");
        let options = Options { jobs, ..Options::default() };
        ids.push(layers(&Store::new().convert(&layout.source(), &options).await.unwrap())[0].0.to_owned());
    }
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_layer_is_used_again_over_another_base_where_its_assumptions_hold() {
    let store = Store::new();
    let copy: &[_] = &[file("d/new", b"x")];
    let mut top = Vec::new();
    for (number, base) in [dir("d", 7), dir("d", 7), dir("d", 8)].into_iter().enumerate() {
        let layout = Layout::new();
        let other = file("other", number.to_string().as_bytes());
        layout.image(&[&[base, other], copy], "linux/amd64", "a");
        let report = store.convert(&layout.source(), &Options::default()).await.unwrap();
        let (id, reused) = layers(&report)[1];
        top.push((id.to_owned(), reused));
    }
    assert_eq!((top[0].1, top[1].1, top[2].1), (false, true, false));
    assert_eq!(top[0].0, top[1].0);
    assert_ne!(top[0].0, top[2].0);
}

#[tokio::test]
async fn a_hard_link_copies_a_file_of_a_layer_that_only_the_store_has() {
    let store = Store::new();
    let noise: Vec<u8> = (0..400_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let base: &[_] = &[file("a", b"1"), dir("d", 7), file("d/f", &noise)];
    let layout = Layout::new();
    layout.image(&[base], "linux/amd64", "a");
    store.convert(&layout.source(), &Options::default()).await.unwrap();
    let layout = Layout::new();
    layout.image(&[base, &[link("g", "d/f")]], "linux/amd64", "a");
    let report = store.convert(&layout.source(), &Options::default()).await.unwrap();
    assert_eq!(layers(&report).iter().map(|(_, reused)| *reused).collect::<Vec<_>>(), [true, false]);
    let top = store.top(&report).await;
    assert!(store.read(&top, b"g") == noise && store.read(&top, b"d/f") == noise);
}

#[tokio::test]
async fn a_refused_layer_leaves_nothing_behind_of_the_layers_below_it() {
    let layout = Layout::new();
    layout.image(&[&[file("a", b"1")], &[link("g", "no/such")]], "linux/amd64", "a");
    let store = Store::new();
    let error = store.convert(&layout.source(), &Options::default()).await.unwrap_err();
    assert!(error.is_refusal(), "{error}");
    assert_eq!(store.files(), [""; 0]);
}

#[tokio::test]
async fn a_blob_that_is_another_is_said_to_be_that_however_it_is_read_and_leaves_nothing() {
    let (noise, own) = (vec![7; 600_000], support::tar(&[file("a", b"1"), file("b", b"2")]));
    let same_size = support::tar(&[file("a", b"1"), file("b", b"3")]);
    let others = [
        ("good", same_size.clone()),
        ("larger", support::tar(&[file("a", &noise)])),
        ("smaller", support::tar(&[])),
        ("cut in the data", same_size[..1300].to_vec()),
        ("no tar", vec![b'x'; own.len()]),
        ("with a link to nothing", support::tar(&[file("a", b"1"), link("b", "no/such")])),
    ];
    for (what, other) in &others {
        for streamed in [false, true] {
            let layout = Layout::new();
            layout.image(&[&[file("a", b"1"), file("b", b"2")]], "linux/amd64", "a");
            let path = layout.replace(&Digest::of(&own).to_string(), other);
            // No tar that somebody has open for writing is read in place.
            let _writer = streamed.then(|| std::fs::File::options().append(true).open(path).unwrap());
            let store = Store::new();
            let error = store.convert(&layout.source(), &Options::default()).await.unwrap_err();
            let told = error.to_string();
            assert!(error.is_refusal() && told.contains(&Digest::of(&own).to_string()), "{what}: {told}");
            assert!(told.contains("blob mismatch") || told.contains("the blob is larger"), "{what}: {told}");
            assert_eq!((store.files(), store.left_in_work()), (vec![], vec![]), "{what}");
        }
    }
}

#[tokio::test]
async fn documents_that_disagree_are_refused() {
    let store = Store::new();
    for (find, put) in
        [("\"diff_ids\":[\"sha256:", "\"diff_ids\":[\"sha256:0"), ("\"diff_ids\":[", "\"diff_ids\":[\"x\",")]
    {
        let layout = Layout::new().edit_config(find, put);
        layout.image(&[&[file("a", b"1")]], "linux/amd64", "a");
        let error = store.convert(&layout.source(), &Options::default()).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("diff_id"), "{error}");
    }
    let layout = Layout::new();
    layout.image(&[&[file("a", b"1")]], "linux/amd64", "a");
    layout.damage_manifest();
    let error = store.convert(&layout.source(), &Options::default()).await.unwrap_err();
    assert!(error.to_string().contains("mismatch"), "{error}");
    assert_eq!(store.files(), [""; 0]);
}

#[tokio::test]
async fn a_platform_is_chosen_from_an_index_and_all_of_them_on_request() {
    let layout = Layout::new();
    let arm = layout.manifest(&[&[file("arm", b"1")]], "linux/arm64");
    let amd = layout.manifest(&[&[file("amd", b"1")]], "linux/amd64");
    let attestation = layout.manifest(&[&[file("x", b"1")]], "unknown/unknown");
    layout.index(&[(&arm, "linux/arm64"), (&amd, "linux/amd64"), (&attestation, "unknown/unknown")], "quay.io/a/b:1");
    let store = Store::new();
    let with = |platforms: &str| Options { platforms: platforms.parse().unwrap(), ..Options::default() };
    let report = store.convert(&layout.source(), &with("linux/arm64")).await.unwrap();
    assert_eq!(report.images.len(), 1);
    assert_eq!(report.images[0].manifest.as_deref(), Some(arm.as_str()));
    assert_eq!(store.read(&store.top(&report).await, b"arm"), b"1");
    let report = store.convert(&layout.source(), &with("all")).await.unwrap();
    assert_eq!(report.images.len(), 2);
    assert!(store.convert(&layout.source(), &with("linux/s390x")).await.unwrap_err().is_refusal());
    assert_eq!("linux/arm/v7".parse::<Platforms>().unwrap().to_owned(), with("linux/arm/v7").platforms);
}

#[tokio::test]
async fn an_archive_gives_the_same_layers_as_its_directory() {
    let layout = Layout::new().gzip();
    layout.image(&[&[file("a", b"1")], &[file("b", b"2")]], "linux/amd64", "a");
    let archive = layout.archive();
    let ours = Store::new().convert(&layout.source(), &Options::default()).await.unwrap();
    let source = Source::OciArchive { file: archive.path().to_owned(), reference: Some("a".to_owned()) };
    let theirs = Store::new().convert(&source, &Options::default()).await.unwrap();
    assert_eq!(layers(&ours), layers(&theirs));
}

#[tokio::test]
async fn a_tar_and_a_directory_become_one_layer_each_under_a_tag() {
    let store = Store::new();
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("root")).unwrap();
    std::fs::write(temp.path().join("root/a"), "from a directory").unwrap();
    let tar = support::tar(&[file("a", b"from a tar")]);
    std::fs::write(temp.path().join("x.tar"), &tar).unwrap();
    let sources = [
        (Source::Directory(temp.path().join("root")), "toolkit/dir:1", &b"from a directory"[..]),
        (Source::Tar(Some(temp.path().join("x.tar"))), "base/team/tar:1", b"from a tar"),
    ];
    for (source, tag, text) in sources {
        let tag: TagName = tag.parse().unwrap();
        let options = Options { tag: Some(tag.clone()), ..Options::default() };
        let report = store.convert(&source, &options).await.unwrap();
        assert_eq!(report.tag.as_deref(), Some(tag.to_string().as_str()));
        let stack = store.refs.tag(&tag).await.unwrap().unwrap().stack;
        assert_eq!(store.read(&stack.layers()[0], b"a"), text);
    }
    assert!(store.refs.chain(&Digest::of(&tar)).await.unwrap().is_some());
}

#[tokio::test]
async fn whiteouts_of_a_tar_are_kept_for_what_is_stacked_on_others_and_for_nothing_else() {
    let (store, temp) = (Store::new(), tempfile::tempdir().unwrap());
    let path = temp.path().join("x.tar");
    std::fs::write(&path, support::tar(&[file("a", b"1"), file(".wh.b", b"")])).unwrap();
    for (tag, names) in [(Some("toolkit/t:1"), 3), (Some("workspace/w:1"), 3), (Some("base/b:1"), 2), (None, 2)] {
        let options = Options { tag: tag.map(|tag| tag.parse().unwrap()), ..Options::default() };
        let report = store.convert(&Source::Tar(Some(path.clone())), &options).await.unwrap();
        let layer = &report.images[0].layers[0];
        let stack = store.refs.resolve(&format!("layer:{}", layer.layer).parse().unwrap()).await.unwrap();
        let tree = store.tree(&stack.layers()[0]);
        assert_eq!((tree.walk().count(), layer.warnings.is_empty()), (names, names == 3), "{tag:?}");
    }
}

#[tokio::test]
async fn a_comparison_knows_the_directories_that_kept_marks_make_and_no_others() {
    let (store, temp) = (Store::new(), tempfile::tempdir().unwrap());
    let path = temp.path().join("x.tar");
    for (items, kept, not) in [
        (vec![file("d/.wh.x", b"")], 2, 1),
        (vec![file("d/.wh..wh..opq", b"")], 2, 1),
        (vec![file("d/.wh..wh..opq", b""), file("d/e/.wh.x", b""), file("f", b"1")], 3, 2),
    ] {
        std::fs::write(&path, support::tar(&items)).unwrap();
        let source = Source::Tar(Some(path.clone()));
        let options = |tag: &str| Options { tag: Some(tag.parse().unwrap()), ..Options::default() };
        for (tag, names) in [("toolkit/t:1", kept), ("workspace/w:1", kept), ("base/b:1", not)] {
            store.convert(&source, &options(tag)).await.unwrap();
            let found = store.compare(&source, &options(tag)).await.unwrap();
            assert_eq!((found.names, found.count), (names, 0), "{tag}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_comparison_finds_nothing_after_a_conversion_and_a_wrong_stack_by_name() {
    let store = Store::new();
    let options = Options { platforms: "linux/amd64".parse().unwrap(), ..Options::default() };
    let layout = Layout::new();
    layout.image(&[&[dir("d", 7), file("d/f", b"1"), link("g", "d/f")], &[file("d/h", b"2")]], "linux/amd64", "a");
    let error = store.compare(&layout.source(), &options).await.unwrap_err();
    assert!(!error.is_refusal() && error.to_string().contains("not converted"), "{error}");
    let report = store.convert(&layout.source(), &options).await.unwrap();
    let found = store.compare(&layout.source(), &options).await.unwrap();
    assert_eq!((found.layers, found.names, found.count), (2, 5, 0), "{found:?}");

    let other = Layout::new();
    other.image(&[&[dir("d", 8), file("d/f", b"2"), file("g", b"1"), file("x", b"")]], "linux/amd64", "a");
    let theirs = store.convert(&other.source(), &options).await.unwrap();
    let wrong =
        store.refs.chain(&theirs.images[0].layers[0].chain_id.as_ref().unwrap().parse().unwrap()).await.unwrap();
    let chain_id = report.images[0].layers[1].chain_id.as_ref().unwrap().parse().unwrap();
    let wrong = blobstore::refs::Chain { chain_id, stack: wrong.unwrap().stack, collapsed: None };
    store.refs.replace_chain(&wrong).await.unwrap();
    let found = store.compare(&layout.source(), &options).await.unwrap();
    let text = found.differences.join("\n");
    for part in [
        "/x: is missing in the source",
        "/d/h: is missing in the store",
        "/d: owner is 8:0 in the store, 7:0",
        "/d/f: type is a file of 1",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_docker_archive_gives_the_layers_and_the_name_of_its_image() {
    let (bottom, top) = (support::tar(&[file("a", b"1")]), support::tar(&[file("b", b"2")]));
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":["{}","{}"]}}}}"#,
        Digest::of(&bottom),
        Digest::of(&top)
    );
    let manifest = r#"[{"Config":"c.json","RepoTags":["quay.io/a/b:1"],"Layers":["x/layer.tar","y.tar"]}]"#;
    let archive = tempfile::NamedTempFile::new().unwrap();
    let files = [("c.json", config.as_bytes()), ("manifest.json", manifest.as_bytes())];
    let items: Vec<_> = files.into_iter().chain([("x/layer.tar", &bottom[..]), ("y.tar", &top[..])]).collect();
    let items: Vec<_> = items.into_iter().map(|(name, data)| file(name, data)).collect();
    std::fs::write(archive.path(), support::tar(&items)).unwrap();
    let source = Source::DockerArchive { file: archive.path().to_owned(), reference: Some("quay.io/a/b:1".to_owned()) };
    let store = Store::new();
    let report = store.convert(&source, &Options::default()).await.unwrap();
    assert_eq!(report.name.as_deref(), Some("quay.io/a/b:1"));
    assert_eq!(store.read(&store.top(&report).await, b"b"), b"2");
    let digest: Digest = report.digest.unwrap().parse().unwrap();
    assert!(store.refs.manifest(&digest).await.unwrap().is_some() && store.refs.blob(&digest).await.unwrap().is_some());
}
