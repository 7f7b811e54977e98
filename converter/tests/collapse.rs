//! Collapsed stacks from outside: what becomes one layer, what is kept, and what references say. That both stacks show
//! the same is proven by each conversion itself, of every image of the corpus too (`cases`); of random stacks it is shown by
//! `tree::collapse_tests`, and by the whole-system tests with the kernel's word on it.

use crate::support::{Item, Layout, Store, dir, file, link};
use blobstore::refs::{Digest, Name, Stacks};
use converter::{CollapsedReport, Options, Report};

const SIZE: Option<u64> = Some(1 << 30);

fn collapsing() -> Options {
    Options { collapse: SIZE, ..Options::default() }
}

fn collapsed(report: &Report) -> &CollapsedReport {
    report.images[0].collapsed.as_ref().unwrap()
}

async fn stacks(store: &Store, report: &Report) -> Stacks {
    let chain_id: Digest = report.images[0].layers.last().unwrap().chain_id.as_ref().unwrap().parse().unwrap();
    store.refs.resolve_stacks(&Name::Digest(chain_id)).await.unwrap()
}

fn image(layers: &[&[Item]]) -> Layout {
    let layout = Layout::new();
    layout.image(layers, "linux/amd64", "docker.io/library/x:1");
    layout
}

fn noise(length: u32) -> Vec<u8> {
    (0..length).flat_map(|n| n.wrapping_mul(2_654_435_761).rotate_left(n % 31).to_le_bytes()).collect()
}

#[tokio::test]
async fn an_image_gets_a_second_stack_and_keeps_the_first() {
    let big = noise(300_000);
    let base: &[_] = &[dir("d", 7), file("d/a", b"one"), file("big", &big), link("linked", "big")];
    let layout =
        image(&[base, &[file("d/.wh.a", b""), file("d/b", b"two"), file("big", b"other")], &[file("c", b"3")]]);
    let (store, plain) = (Store::new(), Store::new());
    let without = plain.convert(&layout.source(), &Options::default()).await.unwrap();
    let report = store.convert(&layout.source(), &collapsing()).await.unwrap();
    let Stacks { plain: stack, collapsed: one } = stacks(&store, &report).await;
    let ids = |report: &Report| report.images[0].layers.iter().map(|l| l.layer.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&report), ids(&without));
    assert_eq!(stack, stacks(&plain, &without).await.plain);
    let one = one.unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(store.read(&one.layers()[0], b"d/b"), b"two");
    assert_eq!(store.read(&one.layers()[0], b"linked"), big);
    let made = &collapsed(&report).layers[0];
    assert_eq!((made.from.clone(), collapsed(&report).stack.len()), (ids(&report), 1));
    // A file of a megabyte is cut where it was cut before.
    assert!(made.bytes_same * 10 > made.bytes_out * 9, "{made:?}");
    let name: Name = "image:x:1".parse().unwrap();
    assert_eq!(store.refs.resolve(&name).await.unwrap(), one);
}

#[tokio::test]
async fn an_image_that_is_there_already_is_collapsed_without_another_conversion() {
    let layout = image(&[&[file("a", b"one")], &[file("b", b"two")]]);
    let store = Store::new();
    store.convert(&layout.source(), &Options::default()).await.unwrap();
    let report = store.convert(&layout.source(), &collapsing()).await.unwrap();
    assert!(report.images[0].layers.iter().all(|layer| layer.reused));
    assert_eq!(collapsed(&report).layers.len(), 1);
    assert_eq!(stacks(&store, &report).await.collapsed.unwrap().len(), 1);
    // Once more, and without asking for it: nothing changes.
    let files = store.files();
    let second = store.convert(&layout.source(), &collapsing()).await.unwrap();
    assert_eq!((collapsed(&second).stack.len(), collapsed(&second).layers.len()), (1, 0));
    store.convert(&layout.source(), &Options::default()).await.unwrap();
    assert_eq!(store.files(), files);
    let again = Options { again: true, ..Options::default() };
    let report = store.convert(&layout.source(), &again).await.unwrap();
    assert_eq!(stacks(&store, &report).await.collapsed.unwrap().len(), 1, "the same layers, so it stays");
}

#[tokio::test]
async fn what_a_base_image_has_is_kept_and_shared_and_only_what_lies_above_is_grouped() {
    let base: [&[Item]; 2] = [&[file("a", b"one"), file("x", b"x")], &[file("b", b"two")]];
    let upper: [&[Item]; 2] = [&[file("c", b"three"), file(".wh.a", b"")], &[file("d", b"four")]];
    let store = Store::new();
    let first = store.convert(&image(&base).source(), &collapsing()).await.unwrap();
    let below = stacks(&store, &first).await.collapsed.unwrap();
    let layout = image(&[base[0], base[1], upper[0], upper[1]]);
    let report = store.convert(&layout.source(), &collapsing()).await.unwrap();
    let stack = stacks(&store, &report).await.collapsed.unwrap();
    assert_eq!((stack.len(), &stack.layers()[0]), (2, &below.layers()[0]));
    assert_eq!(collapsed(&report).layers.len(), 1);
    assert_eq!(collapsed(&report).layers[0].from.len(), 2);
    // Of a base of one layer too, which has nothing to collapse.
    let store = Store::new();
    let first = store.convert(&image(&base[..1]).source(), &collapsing()).await.unwrap();
    assert_eq!((collapsed(&first).stack.len(), collapsed(&first).layers.len()), (1, 0));
    let report = store.convert(&layout.source(), &collapsing()).await.unwrap();
    let stack = stacks(&store, &report).await.collapsed.unwrap();
    assert_eq!((stack.len(), stack.layers()[0].layer.to_string()), (2, collapsed(&first).stack[0].clone()));
    // Asked to begin again, everything is one.
    let again = Options { again: true, ..collapsing() };
    let report = store.convert(&layout.source(), &again).await.unwrap();
    assert_eq!(stacks(&store, &report).await.collapsed.unwrap().len(), 1);
}

#[tokio::test]
async fn groups_end_at_the_size_and_every_end_has_its_own_reference() {
    let contents: Vec<Vec<u8>> = (0..6u32).map(|n| noise(50_000).into_iter().skip(n as usize).collect()).collect();
    let names: Vec<String> = (0..6).map(|n| format!("f{n}")).collect();
    let layers: Vec<Vec<Item>> = names.iter().zip(&contents).map(|(name, bytes)| vec![file(name, bytes)]).collect();
    let layout = image(&layers.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let store = Store::new();
    let report = store.convert(&layout.source(), &Options { collapse: Some(1), ..collapsing() }).await.unwrap();
    assert_eq!((collapsed(&report).stack.len(), collapsed(&report).layers.len()), (6, 0), "each is too large");
    let size = report.images[0].layers.iter().map(|l| l.bytes_out).max().unwrap();
    let again = Options { again: true, collapse: Some(size * 2), ..collapsing() };
    let report = store.convert(&layout.source(), &again).await.unwrap();
    assert_eq!(collapsed(&report).stack.len(), 3);
    for (number, layer) in report.images[0].layers.iter().enumerate() {
        let chain_id: Digest = layer.chain_id.as_ref().unwrap().parse().unwrap();
        let chain = store.refs.chain(&chain_id).await.unwrap().unwrap();
        let expect = (number % 2 == 1).then_some(number / 2 + 1);
        assert_eq!(chain.collapsed.map(|stack| stack.len()), expect, "{number}");
        assert_eq!(chain.stack.len(), number + 1);
    }
}

#[tokio::test]
async fn under_an_opaque_root_there_is_nothing_to_keep_or_to_hide() {
    let base: [&[Item]; 2] = [&[file("a", b"one"), dir("d", 1)], &[file("b", b"two")]];
    let upper: [&[Item]; 2] = [&[file(".wh..wh..opq", b""), file("d/c", b"three")], &[file("e", b"four")]];
    let store = Store::new();
    store.convert(&image(&base).source(), &collapsing()).await.unwrap();
    let layout = image(&[base[0], base[1], upper[0], upper[1]]);
    let report = store.convert(&layout.source(), &collapsing()).await.unwrap();
    let stack = stacks(&store, &report).await.collapsed.unwrap();
    assert_eq!((stack.len(), stack.layers()[0].root_opaque), (1, true));
    // The root, d, c and e: no whiteouts, which one layer alone would show.
    assert_eq!(collapsed(&report).layers[0].entries, 4);
}

#[tokio::test]
async fn the_same_image_gives_the_same_collapsed_layer() {
    let layers: [&[Item]; 3] =
        [&[file("a", &noise(90_000)), dir("d", 1)], &[file("d/b", b"two")], &[file(".wh.a", b""), file("e", b"5")]];
    let mut ids = Vec::new();
    for jobs in [1, 3] {
        let options = Options { jobs, ..collapsing() };
        let report = Store::new().convert(&image(&layers).source(), &options).await.unwrap();
        ids.push(collapsed(&report).stack.clone());
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0].len(), 1);
}

#[tokio::test]
async fn a_tag_of_an_image_has_both_stacks() {
    let store = Store::new();
    let tag = Some("base/x:1".parse().unwrap());
    let layout = image(&[&[file("a", b"one")], &[file("b", b"two")]]);
    store.convert(&layout.source(), &Options { tag, ..collapsing() }).await.unwrap();
    let stacks = store.refs.resolve_stacks(&"tag:base/x:1".parse().unwrap()).await.unwrap();
    assert_eq!((stacks.plain.len(), stacks.collapsed.map(|stack| stack.len())), (2, Some(1)));
}
