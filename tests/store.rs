//! What `lamina store` and `lamina convert` say of what the store holds.

#![allow(clippy::unwrap_used)]

use tests::image::{Image, tar};
use tests::node::Node;
use tests::tree::noise;

#[test]
fn chunks_that_several_layers_have_are_told_by_convert_and_by_store_du() {
    let node = Node::default();
    let (large, other) = (noise(1, 1 << 20), noise(2, 50_000));
    let lower: &[(&str, &[u8])] = &[("big", &large), ("copy", &large)];
    // The same file under another name, in another layer of the image, among others.
    let upper: &[(&str, &[u8])] = &[("a", &other), ("moved/big", &large)];
    let image = Image::new(vec![tar(lower), tar(upper)]);
    let report = node.json(&["convert", &image.write(&node.path("image"), "chunks.local/image:1")]);
    let number = |layer: usize, name: &str| report["images"][0]["layers"][layer][name].as_u64().unwrap();
    let megabyte = 1_000_000..1_100_000;
    // Within a layer, files share blocks; between layers, chunks are equal and stored twice.
    assert_eq!([number(0, "bytes_deduplicated"), number(1, "bytes_deduplicated")], [1 << 20, 0]);
    assert_eq!(number(0, "bytes_repeated"), 0);
    assert!(megabyte.contains(&number(1, "bytes_repeated")), "{report}");
    let du = node.json(&["store", "du"]);
    let du = |name: &str| du[name].as_u64().unwrap();
    assert_eq!((du("layers"), du("bytes")), (2, number(0, "bytes_out") + number(1, "bytes_out")));
    assert_eq!(du("repeated_chunk_bytes"), number(1, "bytes_repeated"));
    assert_eq!(du("chunk_bytes"), du("distinct_chunk_bytes") + du("repeated_chunk_bytes"));
    let text = node.run(&["store", "du"]);
    assert!(text.starts_with("2 layers, 2.") && text.lines().count() == 1, "{text}");
    assert!(node.fail(2, &["store", "nothing"]).contains("store ls, du, rm, revoke, gc, fsck"));
}

#[test]
fn an_empty_store_takes_nothing_and_a_damaged_layer_is_named() {
    let node = Node::default();
    assert_eq!(node.json(&["store", "du"])["layers"], 0);
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    let report = node.json(&["convert", &image.write(&node.path("image"), "damaged.local/image:1")]);
    let id = report["images"][0]["layers"][0]["layer"].as_str().unwrap();
    let file = tests::image::layer_file(&node.path("store"), id);
    std::fs::write(file, noise(3, 5000)).unwrap();
    assert!(node.fail(3, &["store", "du"]).contains(id));
}
