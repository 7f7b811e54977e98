//! What commands say, and what they do not: for people, for cron, and for scripts.

// Tests fail by panicking.
use serde_json::Value;
use std::fs;
use tests::image::{Image, layer_file, tar};
use tests::node::Node;
use tests::registry::layers;
use tests::tree::{noise, write};

const NAME: &str = "said.local/image:1";

fn image(node: &Node, name: &str) -> String {
    let image = Image::new(vec![tar(&[("a", &noise(1, 50_000))]), tar(&[("b", &noise(2, 50_000)), ("c", b"c")])]);
    image.write(&node.path("image"), name)
}

#[test]
fn with_q_nothing_is_said_of_what_was_done_and_what_was_asked_for_is() {
    let node = Node::default();
    let source = image(&node, NAME);
    write(&node.path("tools/tool"), b"x");
    let directory = format!("dir:{}", node.path("tools").display());
    let out = node.path("out");
    let layer = || layers(&node.json(&["convert", &source]))[1].clone();
    let done: [&[&str]; 11] = [
        &["convert", &source, "--collapse", "1GiB"],
        &["convert", &directory, "--tag", "toolkit/tools:1"],
        &["verify", NAME],
        &["verify", &source],
        &["export", NAME, "--output", out.to_str().unwrap()],
        &["store", "fsck", "--deep"],
        &["store", "gc", "--delete"],
        &["store", "revoke", &layer()],
        &["store", "unrevoke", &layer()],
        &["store", "rm", "toolkit/tools:1"],
        &["store", "gc", "--delete", "--settle", "0s"],
    ];
    for arguments in done {
        let output = node.lamina(&[&["-q"], arguments].concat());
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
    let asked: [&[&str]; 6] = [
        &["store", "ls"],
        &["store", "du"],
        &["store", "gc"],
        &["inspect", NAME],
        &["export", NAME],
        &["convert", &source, "--json"],
    ];
    for arguments in asked {
        assert!(!node.lamina(&[&["-q"], arguments].concat()).stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_collection_removes_the_directories_that_conversions_have_left_empty() {
    let node = Node::default();
    let source = image(&node, NAME);
    node.run(&["convert", &source]);
    let leases = node.path("store/node/leases");
    for n in 0..3 {
        fs::create_dir(leases.join(format!("convert-before-{n}"))).unwrap();
    }
    for left in fs::read_dir(&leases).unwrap() {
        fs::File::open(left.unwrap().path()).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    fs::create_dir(leases.join("convert-now")).unwrap();
    node.run(&["store", "gc"]);
    assert_eq!(fs::read_dir(&leases).unwrap().count(), 5, "a dry run changes nothing");
    node.run(&["store", "gc", "--delete", "--settle", "0s"]);
    let left: Vec<_> = fs::read_dir(&leases).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["convert-now"], "somebody may be about to write there");
}

#[test]
fn an_export_under_the_name_of_something_compressed_is_refused_and_says_how() {
    let node = Node::default();
    node.run(&["convert", &image(&node, NAME)]);
    for (name, how) in [
        ("x.tar.gz", "| gzip >"),
        ("x.TGZ", "| gzip >"),
        ("x.tar.zst", "| zstd >"),
        ("x.tar.xz", "| xz >"),
        ("x.zip", "zip that"),
    ] {
        let path = node.path(name);
        let error = node.fail(2, &["export", NAME, "--output", path.to_str().unwrap()]);
        assert!(error.contains(how) && !path.exists(), "{error}");
    }
    let path = node.path("x.gz");
    node.run(&["export", NAME, "--format", "tar", "--output", path.to_str().unwrap()]);
    assert!(path.is_file());
}

#[test]
fn pull_says_of_a_tag_what_it_is_for() {
    let node = Node::default();
    let error = node.fail(2, &["pull", "toolkit/tools:1"]);
    assert!(
        error.contains("toolkit/tools:1 is a tag") && error.contains("lamina mount toolkit/tools:1 DIR"),
        "{error}"
    );
    assert!(error.contains("containerd.io/snapshot/lamina.toolkits=toolkit/tools:1"), "{error}");
    assert!(!node.fail(2, &["pull", "base/tools:1"]).contains("containerd.io/"));
    assert!(node.fail(2, &["pull", "layer:0123456789ab"]).contains("no image's name"));
}

#[test]
fn mount_needs_a_reference_and_a_directory() {
    let node = Node::default();
    for arguments in [&["mount", "/mnt"][..], &["mount", "/mnt", "--face", "kernel"]] {
        assert!(node.fail(2, arguments).contains("lamina mount [OPTIONS] <REF>... <DIR>"));
    }
}

#[test]
fn what_is_not_known_of_a_layer_that_the_store_had_is_null() {
    let node = Node::default();
    let source = image(&node, NAME);
    let of = |report: &Value| report["images"][0]["layers"][1].clone();
    let (made, found) = (of(&node.json(&["convert", &source])), of(&node.json(&["convert", &source])));
    assert_eq!((&made["entries"], &made["reused"]), (&2.into(), &false.into()), "{made}");
    for unknown in ["entries", "chunks", "bytes_tar", "bytes_deduplicated", "bytes_repeated", "seconds"] {
        assert!(made[unknown].is_number() && found.get(unknown) == Some(&Value::Null), "{unknown}: {made} {found}");
    }
    assert_eq!((&found["reused"], &found["bytes_out"]), (&true.into(), &made["bytes_out"]), "{found}");
}

#[test]
fn inspect_says_what_an_image_is_and_lists_entries_as_objects() {
    let node = Node::default();
    let source = image(&node, NAME);
    let report = node.json(&["convert", &source]);
    let shown = node.json(&["inspect", NAME, "--tree"]);
    let converted = &report["images"][0];
    assert_eq!((&shown["name"], &shown["digest"]), (&format!("image:{NAME}").into(), &report["digest"]));
    assert_eq!((&shown["manifest"], &shown["platform"]), (&converted["manifest"], &"linux/amd64".into()));
    assert_eq!((&shown["platforms"][0], &shown["chain_id"]), (&shown["platform"], &converted["layers"][1]["chain_id"]));
    let sum: u64 = shown["layers"].as_array().unwrap().iter().map(|layer| layer["bytes"].as_u64().unwrap()).sum();
    assert_eq!(shown["bytes"], sum);
    let tree = shown["layers"][1]["tree"].as_array().unwrap();
    let paths: Vec<&str> = tree.iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/", "/b", "/c"]);
    assert_eq!((&tree[2]["type"], &tree[2]["size"]), (&"file".into(), &1.into()), "{tree:?}");
    assert!(tree[2]["mtime"].as_str().unwrap().ends_with('Z'), "{tree:?}");
    let text = node.run(&["inspect", NAME]);
    for part in
        [NAME, "2 layers", report["digest"].as_str().unwrap(), "linux/amd64", shown["chain_id"].as_str().unwrap()]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_collapsed_stack_that_is_kept_is_told_of() {
    let node = Node::default();
    let source = image(&node, NAME);
    let first = node.run(&["convert", &source, "--collapse", "1GiB"]);
    let second = node.run(&["convert", &source, "--collapse", "1GiB"]);
    assert!(
        !first.contains("is kept") && second.contains("the collapsed stack that the image has already is kept"),
        "{second}"
    );
}

#[test]
fn names_are_listed_by_the_forms_that_other_commands_take() {
    let node = Node::default();
    node.run(&["convert", &image(&node, NAME)]);
    node.convert_dir(&node.new_dir("tools"), "toolkit/tools:1");
    for prefix in ["toolkit", "toolkit/", "tag:toolkit/", "toolkit/tools:1"] {
        assert_eq!(node.run(&["store", "ls", prefix]), "tag:toolkit/tools:1\n", "{prefix}");
    }
    assert_eq!(node.run(&["store", "ls", "said.local"]), format!("image:{NAME}\n"));
}

#[test]
fn a_store_that_is_not_there_is_told_of_with_what_to_do_and_nothing_is_said_twice() {
    let node = Node::default();
    for command in [&["store", "gc"][..], &["store", "fsck"], &["store", "ls"], &["store", "du"]] {
        let error = node.fail(1, command);
        assert!(error.contains("there is no store") && error.contains("lamina convert makes one"), "{error}");
    }
    node.run(&["convert", &image(&node, NAME)]);
    let once = |error: &str, what: &str| assert_eq!(error.matches(what).count(), 1, "{error}");
    once(&node.fail(1, &["inspect", "toolkit/no:1"]), "toolkit/no:1");
    for command in ["inspect", "verify", "export"] {
        once(&node.fail(1, &[command, "/no/such/file"]), "/no/such/file");
    }
    let text = node.run(&["store", "fsck"]);
    assert!(text.contains("nothing wrong; contents not read: --deep reads them"), "{text}");
    assert!(node.run(&["store", "fsck", "--deep"]).ends_with("nothing wrong\n"));
}

#[test]
fn verify_says_what_to_do_about_a_damaged_layer() {
    let node = Node::default();
    let source = image(&node, NAME);
    let id = layers(&node.json(&["convert", &source]))[0].clone();
    let file = layer_file(&node.path("store"), &id);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(node.fail(3, &["verify", NAME]).contains("with --again"));
    node.run(&["convert", &source, "--again"]);
    assert!(node.run(&["verify", &source]).contains("no differences"));
}
