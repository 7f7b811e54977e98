//! `lamina store fsck`: what is wrong is named, and what is safe is done about it.

use serde_json::Value;
use std::fs;
use std::time::{Duration, SystemTime};
use tests::image::{Image, layer_file, tar};
use tests::node::Node;
use tests::tree::{files, noise};

const NAME: &str = "fsck.local/image:1";

/// A node with an image of two layers in its store: the source, and the layers.
fn converted() -> (Node, String, [String; 2]) {
    let node = Node::default();
    let image = Image::new(vec![tar(&[("base", &noise(1, 900_000))]), tar(&[("top", &noise(2, 700_000))])]);
    let source = image.write(&node.path("image"), NAME);
    let report = node.convert(&source, &[]);
    let id = |n: usize| report["images"][0]["layers"][n]["layer"].as_str().unwrap().to_owned();
    let ids = [id(0), id(1)];
    (node, source, ids)
}

/// What is found, which is a fault: `--json` prints it before the exit status says so.
fn findings(node: &Node, options: &[&str], status: i32) -> Vec<Value> {
    let output = node.lamina(&[&["store", "fsck", "--json"][..], options].concat());
    assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["findings"].as_array().unwrap().clone()
}

fn of<'a>(findings: &'a [Value], key: &str) -> Vec<&'a Value> {
    findings.iter().filter(|finding| finding["key"].as_str().unwrap().starts_with(key)).collect()
}

#[test]
fn a_whole_store_has_no_faults() {
    let (node, _, _) = converted();
    assert_eq!(findings(&node, &["--deep"], 0), Vec::<Value>::new());
    let text = node.run(&["store", "fsck"]);
    assert!(text.starts_with("2 layers, 1.6 MB; 1 name, 3 documents, 6 references looked at"), "{text}");
}

#[test]
fn a_missing_layer_is_told_of_everything_that_names_it_and_repair_lets_nodes_unpack_the_image() {
    let (node, source, [_, top]) = converted();
    fs::remove_file(layer_file(&node.path("store"), &top)).unwrap();
    let found = findings(&node, &[], 1);
    for key in ["manifests/", "refs/chain/", "refs/diff/"] {
        let [finding] = of(&found, key)[..] else { panic!("{key}: {found:#?}") };
        assert!(finding["kind"] == "fault" && finding["what"].as_str().unwrap().contains(&top), "{finding}");
    }
    // Those, and what leads to the diff reference.
    let found = findings(&node, &["--repair"], 1);
    assert_eq!(found.iter().filter(|finding| finding["repaired"] == true).count(), 4, "{found:#?}");
    // The name is left, and now leads to nothing; who asks for the chain finds none, and unpacks.
    let found = findings(&node, &[], 1);
    assert!(
        of(&found, "image:").len() == 1 && found.iter().filter(|f| f["kind"] == "fault").count() == 1,
        "{found:#?}"
    );
    assert!(node.fail(1, &["inspect", NAME]).contains("not converted"));
    node.convert(&source, &[]);
    assert_eq!(findings(&node, &["--deep"], 0), Vec::<Value>::new());
}

#[test]
fn a_damaged_layer_is_found_by_its_index_or_by_all_of_its_bytes() {
    let (node, source, [base, top]) = converted();
    let damage = |id: &str, at: usize| {
        let file = layer_file(&node.path("store"), id);
        let mut bytes = fs::read(&file).unwrap();
        let at = at.min(bytes.len() - 10);
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    damage(&base, usize::MAX);
    assert_eq!(findings(&node, &[], 0), Vec::<Value>::new(), "only every byte tells");
    let found = findings(&node, &["--deep"], 1);
    assert_eq!(of(&found, &format!("layers/{}/{base}", &base[..2])).len(), 1, "{found:#?}");
    damage(&top, 40);
    let found = findings(&node, &[], 1);
    assert_eq!(of(&found, "layers/").len(), 1, "{found:#?}");
    node.run(&["convert", &source, "--again"]);
    assert_eq!(findings(&node, &["--deep"], 0), Vec::<Value>::new());
}

#[test]
fn of_a_damaged_layer_what_helps_is_told_by_who_needs_it() {
    let (node, _, [base, _]) = converted();
    let file = layer_file(&node.path("store"), &base);
    let length = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
    let told = |status| {
        let found = findings(&node, &[], status);
        let [finding] = of(&found, "layers/")[..] else { panic!("{found:#?}") };
        finding["what"].as_str().unwrap().to_owned()
    };
    assert!(told(1).contains("--again"), "{}", told(1));
    node.run(&["store", "rm", NAME]);
    let advice = {
        let found = findings(&node, &[], 1);
        let of_base: Vec<_> =
            of(&found, "layers/").into_iter().filter(|f| f["key"].to_string().contains(&base)).collect();
        assert_eq!(of_base.len(), 1, "{found:#?}");
        of_base[0]["what"].as_str().unwrap().to_owned()
    };
    assert!(advice.contains("store gc --delete") && !advice.contains("--again"), "{advice}");
    let gc = ["store", "gc", "--delete", "--grace", "0s", "--settle", "0s"];
    node.run(&gc);
    node.run(&gc);
    assert_eq!(findings(&node, &[], 0), Vec::<Value>::new());
}

#[test]
fn what_nothing_needs_and_what_killed_writers_left_are_told_and_are_no_faults() {
    let (node, _, [base, _]) = converted();
    node.run(&["store", "rm", NAME]);
    let shard = node.path("store/layers").join(&base[..2]);
    for (name, days) in [(".tmp-old", 2), (".tmp-new", 0)] {
        fs::write(shard.join(name), "half").unwrap();
        let modified = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
        fs::File::options().write(true).open(shard.join(name)).unwrap().set_modified(modified).unwrap();
    }
    fs::write(node.path("store/notes.txt"), "mine").unwrap();
    let found = findings(&node, &[], 0);
    assert_eq!(of(&found, "layers/").len(), 3, "two layers and half a file: {found:#?}");
    assert_eq!(of(&found, "notes.txt").len(), 1);
    let found = findings(&node, &["--repair"], 0);
    assert_eq!(found.iter().filter(|finding| finding["repaired"] == true).count(), 1, "{found:#?}");
    assert!(!shard.join(".tmp-old").exists() && shard.join(".tmp-new").exists());
    assert!(node.path("store/notes.txt").exists());
}

#[test]
fn references_that_cannot_be_read_are_named_and_those_of_later_builds_are_left() {
    let (node, _, _) = converted();
    let chains = node.path("store/refs/chain");
    let shard = fs::read_dir(&chains).unwrap().next().unwrap().unwrap().path();
    let chain = fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    fs::write(&chain, "{}").unwrap();
    let later = r#"{"payloadType": "application/vnd.later+json", "payload": "", "signatures": []}"#;
    let diffs = node.path("store/refs/diff");
    let shard = fs::read_dir(&diffs).unwrap().next().unwrap().unwrap().path();
    let diff = fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    fs::write(&diff, later).unwrap();
    let found = findings(&node, &["--repair"], 0);
    let kinds: Vec<_> =
        found.iter().map(|finding| (finding["kind"].as_str().unwrap(), finding["repaired"] == true)).collect();
    assert_eq!(kinds, [("fault", true), ("note", false)], "{found:#?}");
    assert!(!chain.exists() && diff.exists());
}

#[test]
fn an_image_is_converted_again_over_anything_of_it_that_cannot_be_read() {
    let (node, source, _) = converted();
    for (below, again) in [
        ("images", false),
        ("manifests", false),
        ("refs/chain", false),
        ("refs/diff", true),
        ("refs/digest", true),
        ("blobs", true),
    ] {
        let root = node.path("store").join(below);
        let found = files(&root);
        let objects = found.keys().filter(|path| !path.ends_with("latest"));
        assert!(objects.map(|path| fs::write(root.join(path), "").unwrap()).count() > 0, "{below}");
        findings(&node, &[], 1);
        node.convert(&source, if again { &["--again"] } else { &[] });
        assert_eq!(findings(&node, &["--deep"], 0), Vec::<Value>::new(), "{below}");
    }
}

#[test]
fn a_name_that_cannot_be_read_can_be_removed_and_nothing_hinders_a_collection_then() {
    let (node, _, _) = converted();
    let name = node.path("store/images/fsck.local/image/_/1/0000000001");
    fs::write(&name, "{}").unwrap();
    let found = findings(&node, &["--repair"], 1);
    assert!(of(&found, "image:")[0]["what"].as_str().unwrap().contains("store rm"), "{found:#?}");
    assert!(node.fail(3, &["store", "gc"]).contains("fsck"));
    node.run(&["store", "rm", NAME]);
    assert!(!name.exists());
    node.run(&["store", "gc"]);
    assert_eq!(node.run(&["store", "ls"]), "");
}
