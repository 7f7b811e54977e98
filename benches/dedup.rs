//! How many bytes of a store are chunks that lie in several layers: what layers that refer to chunks of others would save.
//!
//! Two sets, each in a store of its own, both over the quickstart's image: a layer of Python packages, twice, of which one
//! requirement changed in between; and ten layers with different small sets of packages, as ten images over one base have
//! them. The packages are installed by pip from PyPI, anew each time, so that times in compiled files differ as they do in
//! builds; the first set also without compiled files, as builds have it that are reproducible. And one image collapsed:
//! how many chunks of the collapsed layer are those of its layers. In the test pass made-up trees take the packages' place.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::image;
use benches::{target, tiny};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::node::Node;
use tests::tree::{noise, write};

const COMMON: &[&str] =
    &["pandas==2.2.1", "scikit-learn==1.4.1.post1", "requests==2.31.0", "flask==3.0.2", "pyyaml==6.0.1"];
const CHANGED: [&str; 2] = ["numpy==1.26.3", "numpy==1.26.4"];

/// One list an image.
const SETS: [&[&str]; 10] = [
    &["requests==2.31.0", "flask==3.0.2"],
    &["flask==3.0.2", "sqlalchemy==2.0.28", "psycopg2-binary==2.9.9"],
    &["numpy==1.26.4", "pandas==2.2.1"],
    &["numpy==1.26.4", "matplotlib==3.8.3"],
    &["requests==2.31.0", "pyyaml==6.0.1", "jinja2==3.1.3"],
    &["fastapi==0.110.0", "uvicorn==0.28.0"],
    &["numpy==1.26.4", "scipy==1.12.0"],
    &["pandas==2.2.1", "openpyxl==3.1.2", "requests==2.31.0"],
    &["django==5.0.3", "gunicorn==21.2.0"],
    &["requests==2.31.0", "beautifulsoup4==4.12.3", "lxml==5.1.0"],
];

/// Installs packages into a tree as an image has them.
fn install(root: &Path, packages: &[&str], compile: bool) {
    let into = root.join("usr/local/lib/python3.11/dist-packages");
    if tiny() {
        for package in packages {
            let seed = hash_of(package);
            (0..20).for_each(|n| write(&into.join(format!("{package}/{n}.py")), noise(seed + n, 3000)));
        }
        return;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-warn-conflicts", "--target"])
        .arg(&into);
    pip.arg(if compile { "--compile" } else { "--no-compile" }).arg("--root-user-action=ignore");
    assert!(pip.args(packages).stdout(Stdio::null()).status().unwrap().success(), "pip install {packages:?}");
}

/// A number that is a text's.
fn hash_of(text: &str) -> u64 {
    text.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(1_099_511_628_211) ^ u64::from(byte))
}

/// A store of a base image and a layer for each set of packages: what `lamina store du` says of the layers alone, and of
/// all.
fn measure(base: &Path, sets: &[Vec<&str>], compile: bool) -> (Value, Value) {
    let node = Node::default();
    for (number, packages) in sets.iter().enumerate() {
        // On the disk that holds the clone, not on what /tmp may be.
        let tree = tempfile::tempdir_in(base.parent().unwrap()).unwrap();
        install(tree.path(), packages, compile);
        node.convert_dir(tree.path(), &format!("toolkit/set:{number}"));
    }
    let alone = node.json(&["store", "du"]);
    node.run(&["convert", &format!("oci:{}", base.display()), "--name", "bench.local/base:1"]);
    (alone, node.json(&["store", "du"]))
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap()
}

fn show(what: &str, du: &Value) {
    let (bytes, repeated) = (number(du, "bytes"), number(du, "repeated_chunk_bytes"));
    println!(
        "{what:<62} {:>3} layers {:>8.1} MB, repeated chunks {:>7.1} MB: {:>4.1} %",
        number(du, "layers"),
        bytes / 1e6,
        repeated / 1e6,
        100.0 * repeated / bytes
    );
}

/// How many bytes of the layer that an image is collapsed to are chunks of its layers.
fn collapse(base: &Path) -> Value {
    let node = Node::default();
    let report = node.json(&["convert", &format!("oci:{}", base.display()), "--collapse", "3GiB"]);
    let found = report["images"][0]["collapsed"]["layers"][0].clone();
    if found.is_object() {
        let (out, same) = (number(&found, "bytes_out"), number(&found, "bytes_same"));
        println!(
            "{:<62} {:>3} layers {:>8.1} MB, collapsed {:>8.1} MB, of which equal chunks {:>4.1} %",
            "the base image collapsed",
            found["from"].as_array().unwrap().len(),
            number(&found, "bytes_in") / 1e6,
            out / 1e6,
            100.0 * same / out
        );
    }
    found
}

fn main() {
    if !tests::possible("dedup") {
        return;
    }
    let base = image("python-image");
    let changed: Vec<Vec<&str>> = CHANGED.iter().map(|numpy| [COMMON, &[*numpy]].concat()).collect();
    let sets: Vec<Vec<&str>> = SETS.iter().map(|set| set.to_vec()).collect();
    let mut figures = json!({});
    for (what, sets, compile) in [
        ("one requirement changed", &changed, true),
        ("one requirement changed, nothing compiled", &changed, false),
        ("ten images over one base", &sets, true),
    ] {
        let (alone, all) = measure(&base, sets, compile);
        show(&format!("{what}, the layers that differ"), &alone);
        show(&format!("{what}, with the base"), &all);
        assert!(number(&all, "bytes") > number(&alone, "bytes"));
        figures[what] = json!({"alone": alone, "with the base": all});
    }
    figures["collapsed"] = collapse(&base);
    let file = target().join("bench/dedup.json");
    fs::write(&file, serde_json::to_string_pretty(&figures).unwrap()).unwrap();
    println!("figures: {}", file.display());
}
