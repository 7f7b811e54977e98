//! Mirrors of registries: asked first, believed nothing, and told of by name.

// Tests fail by panicking.
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tests::front::{Answer, Front, Request};
use tests::node::Node;
use tests::registry::{Options, Registry, expected, layers, layout, stderr};
use tests::tree::noise;

/// The bytes of the layer's blob that a request is for, out of a layout; none where it is for something else.
fn blob(layout: &Path, request: &Request) -> Option<Vec<u8>> {
    let (_, hex) = request.path.rsplit_once("/blobs/sha256:")?;
    let bytes = fs::read(layout.join("blobs/sha256").join(hex)).unwrap();
    bytes.starts_with(&[0x1f, 0x8b]).then_some(bytes)
}

/// What a mirror can do to a blob: its name, what it answers, and what is said of it.
type Fault = (&'static str, fn(Vec<u8>) -> Answer, &'static str);

fn ok(body: Vec<u8>) -> Answer {
    Answer::Reply("200 OK", vec![], body)
}

const FAULTS: [Fault; 8] = [
    ("a bit", |_| Answer::Flip, "digest mismatch"),
    ("other bytes", |blob| ok(noise(1, blob.len())), "digest mismatch"),
    ("another compression", |blob| ok([b"BZh9", &blob[4..]].concat()), "bzip2"),
    ("a shorter answer", |blob| ok(blob[1..].to_vec()), "are expected"),
    ("a longer answer", |blob| ok([blob, vec![0]].concat()), "are expected"),
    ("bytes that end early", |blob| Answer::Bare(blob[..blob.len() - 1].to_vec()), "ended after"),
    ("bytes that go on", |blob| Answer::Bare([blob, vec![0; 100_000]].concat()), "has more than its"),
    ("nothing", |_| Answer::CutAnswer(0), "passed over"),
];

/// Sets mirrors of a host.
fn mirrors(node: &Node, host: &Front, mirrors: &[&Front]) {
    let text = fs::read_to_string(node.config()).unwrap();
    let mirrors: Vec<String> = mirrors.iter().map(|front| format!("\"http://{}\"", front.address)).collect();
    let section = format!("[registry.\"{}\"]\nmirrors = [{}]\n", host.address, mirrors.join(", "));
    fs::write(node.config(), format!("{}\n{section}", text.split("[registry").next().unwrap())).unwrap();
}

#[test]
fn mirrors_are_asked_first_and_passed_over_when_they_fail() {
    let Some(registry) = Registry::start("mirrors", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "cache/app", "1");
    let broken = Front::start(None, |_| Answer::Reply("500 Internal Server Error", vec![], vec![]));
    let mirror = Front::start(Some(registry.address), |_| Answer::Pass);
    // Nothing listens there: it is never needed.
    let section = format!(
        "[registry.\"127.0.0.1:1\"]\nmirrors = [\"http://{}\", \"http://{}/cache\"]\n[cache]",
        broken.address, mirror.address
    );
    node.reconfigure("[cache]", &section);
    let report = node.json(&["convert", "docker://127.0.0.1:1/app:1"]);
    assert_eq!(report["name"], "127.0.0.1:1/app:1");
    assert_eq!(layers(&report), expected(&node, &layout));
    assert!(!broken.requests().is_empty());
    assert!(mirror.requests().iter().all(|r| r.path.starts_with("/v2/cache/app/")));
}

#[test]
fn wrong_bytes_of_a_mirror_are_told_of_and_asked_of_the_next() {
    let Some(registry) = Registry::start("a faulty mirror", &Options::default()) else { return };
    for (name, fault, says) in FAULTS {
        let node = Node::default();
        let layout = layout(&node);
        registry.seed(&layout, "app", "1");
        let of = layout.clone();
        let faulty = Front::start(Some(registry.address), move |request| match blob(&of, request) {
            Some(bytes) => fault(bytes),
            None => Answer::Pass,
        });
        let good = Front::start(Some(registry.address), |_| Answer::Pass);
        let origin = Front::start(Some(registry.address), |_| Answer::Pass);
        mirrors(&node, &origin, &[&faulty, &good]);
        let source = format!("docker://{}/app:1", origin.address);
        let output = node.lamina(&["convert", "--json", &source]);
        let said = stderr(&output);
        assert!(output.status.success(), "{name}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(layers(&report), expected(&node, &layout), "{name}");
        // The second layer is so small that its end is seen first.
        let asked: Vec<String> =
            good.requests().iter().map(|r| r.path.rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(asked.len(), 2, "{name}: {asked:?}");
        for digest in asked {
            let names = |line: &str| line.contains(&digest) && line.contains(&faulty.address.to_string());
            let says = |line: &str| line.contains(says) || line.contains("digest mismatch");
            assert!(said.lines().any(|line| names(line) && says(line)), "{name}, {digest}: {said}");
        }
        assert!(origin.requests().is_empty(), "{name}: {:?}", origin.requests());
        // Whoever compares is told the same, and gets the same.
        let compared = node.json(&["verify", &source]);
        assert_eq!((&compared["count"], &compared["layers"]), (&json!(0), &json!(2)), "{name}");
    }
}

#[test]
fn what_is_wrong_with_all_mirrors_comes_from_the_registry_and_is_refused_when_that_is_wrong_too() {
    let Some(registry) = Registry::start("faulty mirrors", &Options::default()) else { return };
    for (name, fault, says) in FAULTS.into_iter().take(7) {
        for origin_is_right in [true, false] {
            let node = Node::default();
            let layout = layout(&node);
            registry.seed(&layout, "app", "1");
            let faulty = |wrong: bool| {
                let of = layout.clone();
                Front::start(Some(registry.address), move |request| match blob(&of, request) {
                    Some(bytes) if wrong => fault(bytes),
                    _ => Answer::Pass,
                })
            };
            let (one, two, origin) = (faulty(true), faulty(true), faulty(!origin_is_right));
            mirrors(&node, &origin, &[&one, &two]);
            let output = node.lamina(&["convert", &format!("docker://{}/app:1", origin.address)]);
            let said = stderr(&output);
            if origin_is_right {
                assert!(output.status.success(), "{name}: {said}");
            } else if says == "ended after" {
                // What ends early may go on: that is tried, and then it has failed.
                assert_eq!(output.status.code(), Some(1), "{name}: {said}");
            } else {
                assert_eq!(output.status.code(), Some(3), "{name}: {said}");
                assert!(!node.path("store").exists(), "{name}");
            }
            for mirror in [&one, &two] {
                let warned = said.lines().filter(|line| line.contains(&mirror.address.to_string()));
                assert!(warned.count() >= 1, "{name}: {said}");
            }
        }
    }
}

#[test]
fn a_connection_that_breaks_goes_on_at_another_mirror() {
    let Some(registry) = Registry::start("broken mirrors", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    let of = layout.clone();
    let half = Front::start(Some(registry.address), move |request| match blob(&of, request) {
        // The first half, and then not there any more.
        Some(_) if request.header("range").is_none() => Answer::CutAnswer(1_000_000),
        Some(_) => Answer::Reply("404 Not Found", vec![], vec![]),
        None => Answer::Pass,
    });
    let origin = Front::start(Some(registry.address), |_| Answer::Pass);
    mirrors(&node, &origin, &[&half]);
    let report = node.json(&["convert", &format!("docker://{}/app:1", origin.address)]);
    assert_eq!(layers(&report), expected(&node, &layout));
    let ranges: Vec<String> = origin.requests().iter().filter_map(|r| r.header("range")).collect();
    assert_eq!(ranges, ["bytes=1000000-"]);
}

#[test]
fn what_is_pushed_from_a_faulty_mirror_comes_from_the_next() {
    let Some(registry) = Registry::start("a push from a mirror", &Options::default()) else { return };
    let Some(target) = Registry::start("a push from a mirror", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    // The store has the layers: only the push reads the blobs.
    node.run(&["convert", &format!("oci:{}", layout.display())]);
    let faulty = Front::start(Some(registry.address), |request| match request.path.contains("/blobs/") {
        true => Answer::Flip,
        false => Answer::Pass,
    });
    let origin = Front::start(Some(registry.address), |_| Answer::Pass);
    mirrors(&node, &origin, &[&faulty]);
    let output =
        node.lamina(&["convert", &format!("docker://{}/app:1", origin.address), "--push", &target.image("app:1")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("digest mismatch"), "{}", stderr(&output));
    let pulled = node.json(&["convert", "--again", &format!("docker://{}", target.image("app:1"))]);
    assert_eq!(layers(&pulled), expected(&node, &layout));
}

#[test]
fn a_registry_that_lies_about_a_size_is_refused_at_once() {
    let Some(registry) = Registry::start("a size that is wrong", &Options::default()) else { return };
    let node = Node::default();
    let layout = layout(&node);
    registry.seed(&layout, "app", "1");
    let lying = Front::start(Some(registry.address), move |request| match blob(&layout, request) {
        Some(bytes) if bytes.len() > 1_000_000 => ok(bytes[..1_000_000].to_vec()),
        _ => Answer::Pass,
    });
    let error = node.fail(3, &["convert", &format!("docker://{}/app:1", lying.address)]);
    assert!(error.contains("sent as 1000000 bytes") && !node.path("store").exists(), "{error}");
    assert_eq!(lying.requests().iter().filter(|r| r.path.contains("/blobs/")).count(), 2, "a config, and a layer once");
}
