//! Images pushed to a registry beside their originals, and what becomes of it when the way there is bad.

// Tests fail by panicking.
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tests::front::{Answer, Front};
use tests::image::{Image, chain_ids, digest, tar};
use tests::node::Node;
use tests::registry::{
    Options, Registry, docker_config, expected, lamina, layers, layout, login, stderr, token_registry,
};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn read(path: &Path) -> Value {
    parse(&fs::read(path).unwrap())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Converts a layout, and pushes it as `image`; gives the report.
fn push(node: &Node, layout: &Path, image: &str) -> Value {
    node.json(&["convert", &format!("oci:{}", layout.display()), "--push", image])
}

/// The manifest and the config of an entry of an index.
fn image_of(registry: &Registry, repository: &str, entry: &Value) -> (Value, Value) {
    let manifest = parse(&registry.get(&format!("/v2/{repository}/manifests/{}", text(&entry["digest"]))));
    let config = registry.get(&format!("/v2/{repository}/blobs/{}", text(&manifest["config"]["digest"])));
    assert_eq!(digest(&config), text(&manifest["config"]["digest"]));
    (manifest, parse(&config))
}

/// Every blob of a pushed repository is what its name says; the decompressed layers of ours are what their config says.
fn check_ours(node: &Node, registry: &Registry, repository: &str, entry: &Value) -> Vec<String> {
    let (manifest, config) = image_of(registry, repository, entry);
    let diff_ids: Vec<String> = config["rootfs"]["diff_ids"].as_array().unwrap().iter().map(text).collect();
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), diff_ids.len());
    for (layer, diff_id) in layers.iter().zip(&diff_ids) {
        let blob = registry.get(&format!("/v2/{repository}/blobs/{}", text(&layer["digest"])));
        assert_eq!(digest(&blob), text(&layer["digest"]));
        assert_eq!(layer["mediaType"], "application/vnd.erofs.layer.v1+zstd");
        let file = node.path("layer");
        fs::write(&file, &blob).unwrap();
        let plain = Command::new("zstd").arg("-dcq").arg(&file).output().unwrap();
        assert!(plain.status.success(), "{}", stderr(&plain));
        assert_eq!(&digest(&plain.stdout), diff_id);
    }
    diff_ids
}

#[test]
fn a_pushed_image_is_the_original_and_ours_behind_it() {
    let Some(registry) = Registry::start("a push", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    let image = registry.image("team/app:1");
    let report = push(&node, &layout, &image);
    assert_eq!(report["pushed"]["name"], image.as_str());
    let bytes = registry.get("/v2/team/app/manifests/1");
    assert_eq!(report["pushed"]["digest"], digest(&bytes).as_str());
    let index = parse(&bytes);
    assert_eq!((&index["mediaType"], index["manifests"].as_array().unwrap().len()), (&json!(INDEX), 2));

    let (original, ours) = (&index["manifests"][0], &index["manifests"][1]);
    let platform = json!({"architecture": "amd64", "os": "linux"});
    assert_eq!((&original["digest"], &original["platform"]), (&report["digest"], &platform));
    let manifest = registry.get(&format!("/v2/team/app/manifests/{}", text(&original["digest"])));
    let hex = text(&original["digest"]);
    assert_eq!(manifest, fs::read(layout.join("blobs/sha256").join(&hex["sha256:".len()..])).unwrap());
    for layer in parse(&manifest)["layers"].as_array().unwrap() {
        let blob = registry.get(&format!("/v2/team/app/blobs/{}", text(&layer["digest"])));
        assert_eq!(digest(&blob), text(&layer["digest"]));
    }

    assert_eq!(ours["platform"]["os.features"], json!(["erofs"]));
    assert_eq!(report["pushed"]["images"], json!([{"platform": "linux/amd64", "manifest": ours["digest"]}]));
    let diff_ids = check_ours(&node, &registry, "team/app", ours);
    let (manifest, config) = image_of(&registry, "team/app", ours);
    assert_eq!((&config["os.features"], &config["config"]["Cmd"]), (&json!(["erofs"]), &json!(["/bin/true"])));
    let ids = manifest["layers"].as_array().unwrap().iter();
    let ids: Vec<_> = ids.map(|l| text(&l["annotations"]["containerd.io/snapshot/lamina.layer"])).collect();
    assert_eq!(ids, layers(&report));

    // The store knows our manifest, its chain ids and the new name.
    let top = chain_ids(&diff_ids).pop().unwrap();
    for reference in [top, text(&ours["digest"]), text(&report["pushed"]["digest"]), image.clone()] {
        let shown = node.json(&["inspect", &reference]).to_string();
        assert!(ids.iter().all(|id| shown.contains(id)), "{reference}: {shown}");
    }
}

#[test]
fn what_is_pushed_without_another_name_has_the_registrys_in_the_store() {
    let Some(registry) = Registry::start("a push without a name", &Options::default()) else { return };
    let node = Node::default();
    let layout = node.path("layout");
    let source = Image::new(vec![tar(&[("a", b"a")])]).write(&layout, "1");
    let image = registry.image("team/app:1");
    let output = lamina(&node, &node.path("no-logins"), &["convert", &source, "--push", &image]);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(said.contains(&format!("{image}: 1 layer")) && !said.contains("no name"), "{said}");
    assert_eq!(node.run(&["store", "ls"]), format!("image:{image}\n"));
    let listed = node.run(&["store", "ls", "--long"]);
    assert!(
        listed.contains("linux/amd64 (original): ") && listed.contains("linux/amd64 (converted layers): "),
        "{listed}"
    );
}

#[test]
fn a_second_push_sends_nothing_and_gives_the_same_index() {
    let Some(registry) = Registry::start("a second push", &Options::default()) else { return };
    let (one, two) = (Node::default(), Node::default());
    let layout = layout(&one);
    let image = registry.image("app:1");
    let first = push(&one, &layout, &image);
    assert_eq!(first["pushed"]["present"], 0);
    let second = push(&two, &layout, &image);
    assert_eq!(second["pushed"]["digest"], first["pushed"]["digest"]);
    assert_eq!((&second["pushed"]["sent"], &second["pushed"]["bytes_sent"]), (&json!(0), &json!(0)));

    // What was pushed is a source again: its original is converted, and a push of it is the same once more.
    let three = Node::default();
    for platform in ["linux/amd64", "all"] {
        let source = format!("docker://{image}");
        let report = three.json(&["convert", &source, "--platform", platform, "--push", &image]);
        assert_eq!(layers(&report), layers(&first));
        assert_eq!(report["pushed"]["digest"], first["pushed"]["digest"]);
    }
}

#[test]
fn blobs_are_mounted_from_another_repository_of_the_registry() {
    let Some(registry) = Registry::start("a mount", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "source/app", "1");
    let front = Front::start(Some(registry.address), |_| Answer::Pass);
    let (source, target) =
        (format!("docker://{}/source/app:1", front.address), format!("{}/target/app:1", front.address));
    let report = node.json(&["convert", &source, "--push", &target]);
    // A config and two layers of the original; the same of ours is sent.
    assert_eq!((&report["pushed"]["mounted"], &report["pushed"]["sent"]), (&json!(3), &json!(3)));
    let index = parse(&registry.get("/v2/target/app/manifests/1"));
    let (manifest, _) = image_of(&registry, "target/app", &index["manifests"][1]);
    let sizes = manifest["layers"].as_array().unwrap().iter().chain([&manifest["config"]]);
    let ours: u64 = sizes.map(|blob| blob["size"].as_u64().unwrap()).sum();
    let sent: u64 = front.requests().iter().filter(|r| r.method == "PATCH").map(|r| r.length).sum();
    assert_eq!(sent, ours);
}

#[test]
fn uploads_that_break_are_begun_again() {
    let Some(registry) = Registry::start("broken uploads", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    // The first request of each kind fails, and every large upload breaks at its first try.
    let (failed, broken) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
    let front = Front::start(Some(registry.address), move |request| match &*request.method {
        "PATCH" if request.length > 2_000_000 && broken.lock().unwrap().insert(request.length) => {
            Answer::CutRequest(1_000_000)
        }
        method if failed.lock().unwrap().insert(method.to_owned()) => {
            Answer::Reply("503 Service Unavailable", vec![], vec![])
        }
        _ => Answer::Pass,
    });
    let report = push(&node, &layout, &format!("{}/app:1", front.address));
    assert_eq!(layers(&report), expected(&node, &layout));
    let index = parse(&registry.get("/v2/app/manifests/1"));
    check_ours(&node, &registry, "app", &index["manifests"][1]);
}

#[test]
fn an_answer_that_does_not_end_does_not_hold_up_a_push() {
    let Some(registry) = Registry::start("an answer without end", &Options::default()) else { return };
    let node = Node::default();
    let first = AtomicBool::new(true);
    let front = Front::start(Some(registry.address), move |request| {
        match request.method == "PATCH" && first.swap(false, Ordering::Relaxed) {
            true => Answer::Hang("500 Internal Server Error", "{\"errors\":[]}"),
            false => Answer::Pass,
        }
    });
    push(&node, &layout(&node), &format!("{}/app:1", front.address));
    let index = parse(&registry.get("/v2/app/manifests/1"));
    check_ours(&node, &registry, "app", &index["manifests"][1]);
}

#[test]
fn uploads_go_on_where_they_broke_if_the_registry_can() {
    let Some(registry) = Registry::start("uploads that go on", &Options::default()) else { return };
    let node = Node::default();
    let front = Front::start(Some(registry.address), |request| match request.header("content-range") {
        None if request.method == "PATCH" && request.length > 2_000_000 => Answer::Keep(1_000_000),
        Some(range) if range.starts_with("1000000-") => Answer::Keep(700_000),
        _ => Answer::Pass,
    });
    push(&node, &layout(&node), &format!("{}/app:1", front.address));
    let index = parse(&registry.get("/v2/app/manifests/1"));
    check_ours(&node, &registry, "app", &index["manifests"][1]);
    let ranges = front.requests().into_iter().filter(|r| r.method == "PATCH").filter_map(|r| r.header("content-range"));
    let from: Vec<String> = ranges.map(|range| range.split('-').next().unwrap().to_owned()).collect();
    assert_eq!(from, ["1000000", "1700000", "1000000", "1700000"], "the original's large layer, and ours");
}

#[test]
fn a_login_and_tokens_that_end_in_the_middle_do_for_a_push() {
    let options = Options { login: true, ..Options::default() };
    let Some(registry) = Registry::start("a push with a login", &options) else { return };
    let node = Node::default();
    let source = format!("oci:{}", layout(&node).display());
    let target = registry.image("app:1");
    let none = lamina(&node, &node.new_dir("none"), &["convert", &source, "--push", &target]);
    assert_eq!(none.status.code(), Some(1), "{}", stderr(&none));
    assert!(stderr(&none).contains("no credentials"), "{}", stderr(&none));
    let docker = docker_config(&node, "docker", &login(&registry.address.to_string()));
    let output = lamina(&node, &docker, &["convert", &source, "--push", &target]);
    assert!(output.status.success(), "{}", stderr(&output));

    let Some(open) = Registry::start("a push with tokens", &Options::default()) else { return };
    let (front, tokens) = token_registry(&open, 4, String::new());
    let docker = docker_config(&node, "tokens", &login(&front.address.to_string()));
    let output = lamina(&node, &docker, &["convert", &source, "--push", &format!("{}/app:1", front.address)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(tokens.requests().iter().all(|r| r.path.contains("scope=repository%3Aapp%3Apull%2Cpush")));
    let index = parse(&open.get("/v2/app/manifests/1"));
    check_ours(&node, &open, "app", &index["manifests"][1]);
}

/// A layout whose index has images for two platforms and an attestation, as buildx writes it.
fn platforms(node: &Node) -> std::path::PathBuf {
    let directory = node.path("platforms");
    let mut entries = Vec::new();
    for architecture in ["amd64", "arm64"] {
        let layers = vec![tar(&[("shared", b"shared")]), tar(&[("architecture", architecture.as_bytes())])];
        let image = Image { architecture, ..Image::new(layers) };
        image.write(&directory, "x");
        let mut entry = read(&directory.join("index.json"))["manifests"][0].take();
        entry.as_object_mut().unwrap().remove("annotations");
        entry["platform"] = json!({"architecture": architecture, "os": "linux"});
        entries.push(entry);
    }
    let blobs = directory.join("blobs/sha256");
    let put = |bytes: &[u8], media_type: &str| {
        let name = digest(bytes);
        fs::write(blobs.join(&name["sha256:".len()..]), bytes).unwrap();
        json!({"mediaType": media_type, "digest": name, "size": bytes.len()})
    };
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(b"{}", "application/vnd.oci.image.config.v1+json"),
        "layers": [put(b"{\"statement\":1}", "application/vnd.in-toto+json")],
    });
    let mut attestation = put(manifest.to_string().as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    attestation["platform"] = json!({"architecture": "unknown", "os": "unknown"});
    attestation["annotations"] = json!({"vnd.docker.reference.digest": entries[0]["digest"]});
    entries.push(attestation);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries, "annotations": {"a": "b"}});
    let mut root = put(index.to_string().as_bytes(), INDEX);
    root["annotations"] = json!({"org.opencontainers.image.ref.name": "x"});
    fs::write(directory.join("index.json"), json!({"schemaVersion": 2, "manifests": [root]}).to_string()).unwrap();
    directory
}

#[test]
fn other_platforms_and_attestations_stay_as_they_are() {
    let Some(registry) = Registry::start("platforms", &Options::default()) else { return };
    let node = Node::default();
    let layout = platforms(&node);
    let root = text(&read(&layout.join("index.json"))["manifests"][0]["digest"]);
    let source = read(&layout.join("blobs/sha256").join(&root["sha256:".len()..]));
    let convert = |tag: &str, platform: &str| {
        let image = registry.image(&format!("app:{tag}"));
        let source = format!("oci:{}", layout.display());
        let report = node.json(&["convert", &source, "--platform", platform, "--push", &image]);
        let index = parse(&registry.get(&format!("/v2/app/manifests/{tag}")));
        assert_eq!(report["pushed"]["digest"], digest(&registry.get(&format!("/v2/app/manifests/{tag}"))).as_str());
        assert_eq!(index["annotations"], json!({"a": "b"}));
        index
    };
    let one = convert("one", "linux/arm64");
    let entries = one["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 4);
    assert_eq!([&entries[0], &entries[1], &entries[3]], [0, 1, 2].map(|n| &source["manifests"][n]));
    assert_eq!(entries[2]["platform"], json!({"architecture": "arm64", "os": "linux", "os.features": ["erofs"]}));

    let all = convert("all", "all");
    let entries = all["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    assert_eq!([&entries[0], &entries[2], &entries[4]], [0, 1, 2].map(|n| &source["manifests"][n]));
    for ours in [&entries[1], &entries[3]] {
        check_ours(&node, &registry, "app", ours);
    }
    assert_eq!(entries[3], one["manifests"][2]);
    let attestation = text(&entries[4]["digest"]);
    let manifest = parse(&registry.get(&format!("/v2/app/manifests/{attestation}")));
    assert_eq!(
        registry.get(&format!("/v2/app/blobs/{}", text(&manifest["layers"][0]["digest"]))),
        b"{\"statement\":1}"
    );
}

#[test]
fn an_attestation_that_the_registry_lacks_is_left_out_and_one_that_it_fails_to_give_is_a_failure() {
    let Some(registry) = Registry::start("a missing attestation", &Options::default()) else { return };
    let node = Node::default();
    let layout = platforms(&node);
    registry.seed(&layout, "app", "1");
    let root = text(&read(&layout.join("index.json"))["manifests"][0]["digest"]);
    let index = read(&layout.join("blobs/sha256").join(&root["sha256:".len()..]));
    let attestation = text(&index["manifests"][2]["digest"]);
    for (status, code) in [("400 Bad Request", 1), ("404 Not Found", 0)] {
        let lacking = attestation.clone();
        let front = Front::start(Some(registry.address), move |request| match request.path.ends_with(&lacking) {
            true => Answer::Reply(status, vec![], vec![]),
            false => Answer::Pass,
        });
        let image = format!("docker://{}/app:1", front.address);
        let output = node.command(&["convert", &image, "--platform", "all"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(&attestation), "{}", stderr(&output));
        assert_eq!(node.path("store/images").exists(), code == 0);
    }
}

#[test]
fn a_manifest_whose_list_of_manifests_is_null_is_no_index() {
    let Some(registry) = Registry::start("a manifest with a null", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    let mut index = read(&layout.join("index.json"));
    let blob = |digest: &str| layout.join("blobs/sha256").join(&digest["sha256:".len()..]);
    let mut manifest = read(&blob(&text(&index["manifests"][0]["digest"])));
    manifest["manifests"] = Value::Null;
    let bytes = manifest.to_string().into_bytes();
    fs::write(blob(&digest(&bytes)), &bytes).unwrap();
    index["manifests"][0]["digest"] = digest(&bytes).into();
    index["manifests"][0]["size"] = bytes.len().into();
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    push(&node, &layout, &registry.image("app:1"));
    let pushed = parse(&registry.get("/v2/app/manifests/1"));
    let keys: Vec<&String> = pushed.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["manifests", "mediaType", "schemaVersion"]);
    assert_eq!(pushed["manifests"][0]["digest"], digest(&bytes).as_str());
}

#[test]
fn indexes_that_nest_too_deep_are_not_pushed() {
    let Some(registry) = Registry::start("nested indexes", &Options::default()) else { return };
    for (levels, fits) in [(2, true), (3, true), (4, false)] {
        let node = Node::default();
        let layout = platforms(&node);
        let put = |value: &Value| {
            let bytes = value.to_string().into_bytes();
            let name = digest(&bytes);
            fs::write(layout.join("blobs/sha256").join(&name["sha256:".len()..]), &bytes).unwrap();
            json!({"mediaType": INDEX, "digest": name, "size": bytes.len()})
        };
        let root = text(&read(&layout.join("index.json"))["manifests"][0]["digest"]);
        let mut index = read(&layout.join("blobs/sha256").join(&root["sha256:".len()..]));
        let nested = (0..levels).fold(json!([]), |inner, _| {
            json!([put(&json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": inner}))])
        });
        let mut entry = nested[0].clone();
        entry["platform"] = json!({"architecture": "s390x", "os": "linux"});
        index["manifests"].as_array_mut().unwrap().push(entry);
        fs::write(layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [put(&index)]}).to_string())
            .unwrap();
        let (source, image) = (format!("oci:{}", layout.display()), registry.image(&format!("nested:{levels}")));
        // Ours is for another platform: what is converted does not look into it, what is copied does.
        let output = node.lamina(&["convert", &source, "--platform", "linux/amd64", "--push", &image]);
        assert_eq!(output.status.code(), Some(if fits { 0 } else { 3 }), "{levels}: {}", stderr(&output));
    }
}

#[test]
fn what_a_layout_does_not_have_is_left_out_and_told() {
    let Some(registry) = Registry::start("a sparse layout", &Options::default()) else { return };
    let node = Node::default();
    let layout = platforms(&node);
    let root = text(&read(&layout.join("index.json"))["manifests"][0]["digest"]);
    let arm = text(&read(&layout.join("blobs/sha256").join(&root["sha256:".len()..]))["manifests"][1]["digest"]);
    fs::remove_file(layout.join("blobs/sha256").join(&arm["sha256:".len()..])).unwrap();
    let image = registry.image("app:1");
    let source = format!("oci:{}", layout.display());
    let output = node.lamina(&["convert", &source, "--platform", "linux/amd64", "--push", &image]);
    assert!(output.status.success() && stderr(&output).contains(&arm), "{}", stderr(&output));
    let index = parse(&registry.get("/v2/app/manifests/1"));
    assert_eq!(index["manifests"].as_array().unwrap().len(), 3);
}

#[test]
fn only_images_are_pushed_and_only_to_tags() {
    let node = Node::default();
    let source = format!("dir:{}", node.new_dir("tree").display());
    assert!(node.fail(2, &["convert", &source, "--push", "localhost:1/a:1"]).contains("original"));
    let digest = format!("localhost:1/a@{}", digest(b""));
    assert!(node.fail(2, &["convert", "oci:x", "--push", &digest]).contains("tag"));
    assert!(node.fail(2, &["convert", "oci:x", "--name", &digest]).contains("tag"));
}
