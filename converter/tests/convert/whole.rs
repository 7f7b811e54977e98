//! Whole images: indexes of many platforms, and layers that are in several places and are converted once.

use crate::support::{Item, Layout, Store, dir, file, link};
use blobstore::refs::{Digest, Refs};
use converter::{Options, Report};
use std::collections::HashMap;

fn with(platforms: &str) -> Options {
    Options { platforms: platforms.parse().unwrap(), ..Options::default() }
}

/// How often each layer was made, by its diff id.
fn made(reports: &[&Report]) -> HashMap<String, usize> {
    let mut made = HashMap::new();
    for layer in reports.iter().flat_map(|report| &report.images).flat_map(|image| &image.layers) {
        *made.entry(layer.diff_id.clone().unwrap()).or_default() += usize::from(!layer.reused);
    }
    made
}

#[tokio::test]
async fn a_layer_that_is_twice_in_an_image_is_converted_once() {
    let layout = Layout::new();
    let twice: &[Item] = &[dir("d", 7), file("d/a", b"one")];
    layout.image(&[twice, &[dir("e", 7), file("e/b", b"two")], twice], "linux/amd64", "a");
    let store = Store::new();
    for options in [Options { again: true, ..Options::default() }, Options::default()] {
        let store = if options.again { &Store::new() } else { &store };
        let report = store.convert(&layout.source(), &options).await.unwrap();
        let layers = &report.images[0].layers;
        assert_eq!(
            layers.iter().map(|l| (l.reused, l.resumed, l.shared)).collect::<Vec<_>>(),
            [(false, false, false), (false, false, false), (true, false, true)]
        );
        assert_eq!(layers[0].layer, layers[2].layer);
        assert_eq!(layers[0].made.as_ref().unwrap().entries, layers[2].made.as_ref().unwrap().entries);
    }
    let options = with("linux/amd64");
    let found = store.compare(&layout.source(), &options).await.unwrap();
    assert_eq!(found.count, 0, "{found:?}");
}

#[tokio::test]
async fn every_platform_of_an_index_is_converted_and_what_they_share_once() {
    let layout = Layout::new();
    let shared: &[Item] = &[file("shared", b"s")];
    let manifest =
        |own: &str, platform: &str| layout.manifest(&[&[dir("d", 7), file("own", own.as_bytes())], shared], platform);
    let (amd, arm, s390x) = (manifest("1", "linux/amd64"), manifest("2", "linux/arm64"), manifest("3", "linux/s390x"));
    let (attestation, documents) = layout.attestation();
    let inner = layout.nested(&[(&s390x, ""), (&attestation, "unknown/unknown")]);
    let list: &[_] = &[(&*amd, "linux/amd64"), (&*arm, "linux/arm64/v8"), (&*amd, "linux/amd64"), (&*inner, "index")];
    layout.index(list, "quay.io/a/b:1");
    let store = Store::new();
    let report = store.convert(&layout.source(), &with("all")).await.unwrap();
    let platforms: Vec<_> = report.images.iter().map(|image| image.platform.as_deref().unwrap()).collect();
    assert_eq!(platforms, ["linux/amd64", "linux/arm64/v8", "linux/s390x"]);
    assert_eq!(made(&[&report]).values().collect::<Vec<_>>(), [&1; 4]);
    assert_eq!(
        report.images.iter().map(|image| &image.layers[1].layer).collect::<std::collections::HashSet<_>>().len(),
        1
    );
    // The index is whole: every document below it is there byte for byte, but for what attestations hold.
    for digest in documents.iter().chain([&amd, &arm, &s390x, &inner, report.digest.as_ref().unwrap()]) {
        assert!(store.refs.blob(&digest.parse().unwrap()).await.unwrap().is_some(), "{digest}");
    }
    for (platform, manifest) in [("linux/s390x", &s390x), ("linux/arm64", &arm), ("linux/amd64", &amd)] {
        let refs = Refs::new(store.refs.store().clone()).with_platform(platform_of(platform));
        let chosen = refs.choose_manifest(&report.digest.clone().unwrap().parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(chosen.digest.to_string(), *manifest);
        let found = store.compare(&layout.source(), &with(platform)).await.unwrap();
        assert_eq!(found.count, 0, "{found:?}");
    }
    // One platform alone finds its layers there.
    let one = store.convert(&layout.source(), &with("linux/s390x")).await.unwrap();
    assert_eq!(one.images[0].manifest.as_deref(), Some(&*s390x));
    assert!(one.images[0].layers.iter().all(|layer| layer.reused && !layer.resumed && !layer.shared));
}

fn platform_of(text: &str) -> blobstore::refs::Platform {
    let converter::Platforms::One(platform) = text.parse().unwrap() else { panic!("one platform") };
    platform
}

#[tokio::test]
async fn of_variants_the_best_that_runs_is_converted_as_containerd_chooses_it() {
    let layout = Layout::new();
    let manifest = |own: &str| layout.manifest(&[&[file("own", own.as_bytes())]], "linux/arm");
    let (v5, v6, v7) = (manifest("5"), manifest("6"), manifest("7"));
    // That the configs say no variant does not count.
    layout.index(&[(&v5, "linux/arm/v5"), (&v7, "linux/arm/v7"), (&v6, "linux/arm/v6")], "quay.io/a/b:1");
    for (wanted, chosen) in [("linux/arm", &v7), ("linux/arm/v6", &v6), ("linux/arm/v7", &v7), ("linux/arm/v8", &v7)] {
        let report = Store::new().convert(&layout.source(), &with(wanted)).await.unwrap();
        assert_eq!(report.images[0].manifest.as_ref(), Some(chosen), "{wanted}");
    }
    let report = Store::new().convert(&layout.source(), &with("all")).await.unwrap();
    assert_eq!(report.images.len(), 3);
}

#[tokio::test]
async fn an_index_of_which_one_platform_is_refused_or_missing_is_refused_as_a_whole() {
    let layout = Layout::new();
    let good = layout.manifest(&[&[file("a", b"1")]], "linux/amd64");
    let bad = layout.manifest(&[&[file("a", b"1")], &[link("g", "no/such")]], "linux/arm64");
    let (attestation, documents) = layout.attestation();
    layout.index(&[(&good, "linux/amd64"), (&bad, "linux/arm64"), (&attestation, "unknown/unknown")], "quay.io/a/b:1");
    let store = Store::new();
    let error = store.convert(&layout.source(), &with("all")).await.unwrap_err();
    assert!(error.is_refusal(), "{error}");
    assert_eq!((store.files(), store.left_in_work()), (vec![], vec![]));
    // Attestations that the source does not have are not missed; a platform is.
    documents.iter().for_each(|document| layout.remove(document));
    store.convert(&layout.source(), &with("linux/amd64")).await.unwrap();
    let files = store.files();
    layout.remove(&bad);
    let error = store.convert(&layout.source(), &with("all")).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("missing"), "{error}");
    assert_eq!(store.files(), files);
}

#[tokio::test]
async fn a_conversion_that_failed_at_the_end_is_taken_up_by_the_next() {
    let layout = Layout::new().gzip();
    layout.image(&[&[dir("d", 7), file("d/a", b"one")], &[file("d/b", b"two")]], "linux/amd64", "quay.io/a/b:1");
    let (store, temp, options) = (Store::new(), tempfile::tempdir().unwrap(), with("linux/amd64"));
    // A store whose directory of layers is a file: everything was converted, nothing can be published.
    let broken = Refs::new(blobstore::store::open(&format!("file://{}/store", temp.path().display())).unwrap());
    std::fs::create_dir(temp.path().join("store")).unwrap();
    std::fs::write(temp.path().join("store/layers"), b"").unwrap();
    let error = converter::convert(&broken, &layout.source(), temp.path(), &options).await.unwrap_err();
    assert!(!error.is_refusal(), "{error}");
    let report = store.convert_in(temp.path(), &layout.source(), &options).await.unwrap();
    assert!(report.images[0].layers.iter().all(|layer| layer.reused
        && layer.resumed
        && !layer.shared
        && layer.made.as_ref().is_some_and(|made| made.entries > 0)));
    assert_eq!(store.read(&store.top(&report).await, b"d/b"), b"two");
    let digest: Digest = report.images[0].layers[1].source.as_ref().unwrap().parse().unwrap();
    assert!(store.refs.layer_digest(&digest).await.unwrap().is_some(), "the blob was read, by the first");
    let third = Store::new().convert_in(temp.path(), &layout.source(), &options).await.unwrap();
    assert!(third.images[0].layers.iter().all(|layer| !layer.reused), "what was published is not kept");
}

#[tokio::test]
async fn a_kept_layer_is_not_used_where_its_assumptions_do_not_hold_or_with_other_options() {
    let top: &[Item] = &[file("d/new", b"x")];
    let layout = |uid: u64| {
        let layout = Layout::new();
        layout.image(&[&[dir("d", uid)], top, &[link("g", "no/such")]], "linux/amd64", "a");
        layout
    };
    let (work, options) = (tempfile::tempdir().unwrap(), with("linux/amd64"));
    let work = work.path();
    let good = |uid: u64| {
        let layout = Layout::new();
        layout.image(&[&[dir("d", uid)], top], "linux/amd64", "a");
        layout
    };
    // Of a refused image nothing stays.
    assert!(Store::new().convert_in(work, &layout(7).source(), &options).await.unwrap_err().is_refusal());
    let report = Store::new().convert_in(work, &good(7).source(), &options).await.unwrap();
    assert!(report.images[0].layers.iter().all(|layer| !layer.reused));

    let broken = || {
        let at = tempfile::tempdir().unwrap();
        std::fs::write(at.path().join("layers"), b"").unwrap();
        (Refs::new(blobstore::store::open(&format!("file://{}", at.path().display())).unwrap()), at)
    };
    converter::convert(&broken().0, &good(7).source(), work, &options).await.unwrap_err();
    let reused = async |uid: u64, options: &Options| {
        let report = Store::new().convert_in(work, &good(uid).source(), options).await.unwrap();
        report.images[0].layers.iter().map(|layer| layer.reused).collect::<Vec<_>>()
    };
    assert_eq!(reused(7, &Options { level: 4, ..options.clone() }).await, [false, false]);
    assert_eq!(reused(8, &options).await, [false, false]);
    assert_eq!(reused(7, &options).await, [true, true]);
}
