//! What `lamina store` and `lamina convert` say of what the store holds.

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
    assert!(node.fail(2, &["store", "nothing"]).contains("store ls, du, rm, revoke, unrevoke, gc, fsck"));
}

#[test]
fn an_empty_store_takes_nothing_and_a_damaged_layer_is_named() {
    let node = Node::default();
    node.new_dir("store");
    assert_eq!(node.json(&["store", "du"])["layers"], 0);
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    let report = node.json(&["convert", &image.write(&node.path("image"), "damaged.local/image:1")]);
    let id = report["images"][0]["layers"][0]["layer"].as_str().unwrap();
    let file = tests::image::layer_file(&node.path("store"), id);
    std::fs::write(file, noise(3, 5000)).unwrap();
    assert!(node.fail(3, &["store", "du"]).contains(id));
}

#[test]
fn a_list_of_a_store_that_is_not_there_is_an_error_and_of_an_empty_one_it_is_empty() {
    let node = Node::default();
    let store = node.path("store");
    let lists: [&[&str]; 5] = [&["ls"], &["ls", "--long"], &["ls", "--layers"], &["ls", "--revoked"], &["du"]];
    let others: [&[&str]; 2] = [&["rm", "x"], &["unrevoke", "000000000000"]];
    for list in lists.into_iter().chain(others) {
        let list = [&["store"][..], list].concat();
        let said = node.fail(1, &list);
        assert!(said.contains(store.to_str().unwrap()) && said.contains("there is no store"), "{list:?}: {said}");
        assert!(said.contains("mounted?") && said.contains("lamina convert makes one"), "{list:?}: {said}");
    }
    assert!(!store.exists(), "to look makes nothing");
    node.new_dir("store");
    for list in lists {
        let output = node.lamina(&[&["store"][..], list, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("no store yet"), "{list:?}: {said}");
    }
    assert_eq!(node.json(&["store", "ls"]), serde_json::json!({"images": [], "tags": []}));
    node.convert_dir(&node.new_dir("tools"), "toolkit/tools:1");
    let output = node.lamina(&["store", "ls"]);
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"tag:toolkit/tools:1\n"[..], &b""[..]));
}

#[test]
fn who_asks_for_what_is_not_there_is_told_what_is_like_it() {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    node.run(&["convert", &image.write(&node.path("image"), "registry.example.com/team/python:3.12")]);
    let tools = node.convert_dir(&node.new_dir("tools"), "toolkit/tools:1");
    let python = "did you mean image:registry.example.com/team/python:3.12?";
    let out = node.path("out");
    let cases: [(&[&str], &str); 7] = [
        (&["inspect", "python"], python),
        (&["verify", "python:3.13"], python),
        (&["export", "registry.example.com/team/pyton:3.12", "-o", out.to_str().unwrap()], python),
        (&["pull", "python:3.12"], python),
        (&["store", "rm", "team/python:3.12"], python),
        (&["inspect", "tools:1"], "did you mean tag:toolkit/tools:1?"),
        (&["store", "revoke", "000000000000"], "starts so"),
    ];
    for (command, told) in cases {
        let said = node.fail(1, command);
        assert!(said.contains(told), "{command:?}: {said}");
    }
    let (first, rest) = tools.split_at(1);
    let wrong = format!("{}{}", if first == "0" { "1" } else { "0" }, &rest[..15]);
    let said = node.fail(1, &["inspect", &format!("layer:{wrong}")]);
    assert!(said.contains(&format!("did you mean layer:{tools}?")), "{said}");
    let said = node.fail(1, &["inspect", "something-else"]);
    assert!(said.contains("no such image") && !said.contains("did you mean"), "{said}");
}

#[test]
fn a_store_that_is_named_to_commands_that_laminad_answers_is_said_to_be_of_no_use() {
    let node = Node::default();
    let dir = node.new_dir("dir").to_str().unwrap().to_owned();
    let commands: [&[&str]; 5] = [&["mount", "x", &dir], &["umount", &dir], &["status"], &["cache", "ls"], &["trace"]];
    for command in commands {
        let said = node.fail(1, &[command, &["--store", "file:///elsewhere"]].concat());
        assert!(said.contains("--store is of no use") && said.contains("laminad"), "{command:?}: {said}");
        assert!(!node.fail(1, command).contains("--store"), "{command:?}");
    }
}
