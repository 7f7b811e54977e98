//! The corpus of layer unpacking cases: each image is converted into a store of its own, its stack is decompressed with
//! the plain `zstd` tool, mounted by the kernel, laid one over the other by overlayfs, and compared with the tree that a
//! right tool shows. No code of ours reads the layers here. Each image is collapsed too, and its second stack must show
//! the same tree.
//!
//! The corpus is `tests/cases` of the repository, or the directory in LAMINA_CASES. LAMINA_CASE=NAME runs one case.
//! Needs root, python3, zstd and a kernel with EROFS and overlayfs.

use crate::mounted::{Mounts, mount, run};
use blobstore::refs::{Refs, Stack, layer_key};
use blobstore::store;
use converter::{Options, Source, convert};
use std::path::{Path, PathBuf};
use std::process::Command;

fn corpus() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases");
    let named = std::env::var_os("LAMINA_CASES").map(PathBuf::from);
    [named, Some(ours)].into_iter().flatten().find(|path| path.join("build_cases.py").exists())
}

/// Converts one case; the layer files of its stacks, bottom to top, or why it was refused.
fn converted(layout: &Path, store_dir: &Path) -> Result<Vec<Vec<PathBuf>>, String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let refs = Refs::new(store::open(&format!("file://{}", store_dir.display())).unwrap());
        let source = Source::Oci { directory: layout.to_owned(), reference: Some("case".to_owned()) };
        let options = Options { collapse: Some(3 << 30), ..Options::default() };
        let work = tempfile::tempdir().unwrap();
        let report = convert(&refs, &source, work.path(), &options).await.map_err(|e| {
            assert!(e.is_refusal(), "not a refusal: {e}");
            assert!(
                !store_dir.join("refs").exists() && !store_dir.join("layers").exists(),
                "something was left behind"
            );
            e.to_string()
        })?;
        let top = report.images[0].layers.last().unwrap().chain_id.clone().unwrap();
        let chain = refs.chain(&top.parse().unwrap()).await.unwrap().unwrap();
        let files =
            |stack: &Stack| stack.layers().iter().map(|entry| store_dir.join(layer_key(&entry.layer))).collect();
        // An image of one layer has nothing to collapse.
        let collapsed = chain.collapsed.filter(|stack| *stack != chain.stack);
        Ok([&chain.stack].into_iter().chain(&collapsed).map(files).collect())
    })
}

fn case(name: &str, layout: &Path, expect: &Path, checker: &Path) -> Result<(), String> {
    let temp = tempfile::tempdir().unwrap();
    let check = |arguments: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut check = Command::new("python3");
        run(check.arg(checker).args(arguments.iter().map(|argument| argument.as_ref()))).map(drop)
    };
    match converted(layout, &temp.path().join("store")) {
        Ok(stacks) => stacks.iter().enumerate().try_for_each(|(number, layers)| {
            let mut mounts = Mounts::default();
            let root = mount(layers, &temp.path().join(format!("stack{number}")), &mut mounts)?;
            check(&[&root, &expect, &"--deep"]).map_err(|e| format!("stack {number}: {e}"))
        }),
        Err(refusal) => {
            println!("{name}: refused: {refusal}");
            let log = temp.path().join("log");
            std::fs::write(&log, refusal).unwrap();
            check(&[&"--refused", &log, &expect])
        }
    }
}

#[test]
fn every_case_shows_the_right_tree_or_is_refused() {
    let Some(corpus) = corpus() else { return println!("SKIPPED: needs the corpus of cases (LAMINA_CASES)") };
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: needs root to mount");
    }
    if ["python3", "zstd"].iter().any(|tool| run(Command::new(tool).arg("--version")).is_err()) {
        return println!("SKIPPED: needs python3 and zstd");
    }
    let built = tempfile::tempdir().unwrap();
    run(Command::new("python3").arg(corpus.join("build_cases.py")).arg(built.path())).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(built.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let only = std::env::var_os("LAMINA_CASE");
    let (mut passed, mut failures) = (0, Vec::new());
    for name in names.iter().filter(|name| only.as_ref().is_none_or(|only| only == *name)) {
        let name = name.to_str().unwrap();
        let expect = corpus.join("expect").join(format!("{name}.json"));
        match case(name, &built.path().join(name), &expect, &corpus.join("check_tree.py")) {
            Ok(()) => passed += 1,
            Err(why) => failures.push(format!("{name}: {why}")),
        }
    }
    println!("{passed} cases passed, {} failed", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(passed >= if only.is_some() { 1 } else { 100 }, "{passed} cases passed: where are the others?");
}
