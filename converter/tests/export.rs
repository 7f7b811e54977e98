//! Exports: what comes out shows what went in, converts back to the same layer, and is never half there.

use crate::mounted::{Mounts, run};
use crate::support::{Layout, Store, dir, file, link};
use blobstore::refs::{Stack, TagName};
use converter::model::Model;
use converter::{Error, Exported, Options, Origin, Output, Result, Source, export};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Part of the stream of an export.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn to(origin: &Origin, output: Output) -> Result<Exported> {
    export(origin, output, Arc::new(|_, _| ControlFlow::Continue(()))).await
}

async fn tar_of(origin: &Origin) -> Result<Vec<u8>> {
    let out = Shared::default();
    to(origin, Output::Stream(Box::new(out.clone()))).await?;
    Ok(out.0.lock().unwrap().clone())
}

/// Converts a source under a tag; its stack.
async fn convert(store: &Store, source: Source, tag: &str) -> Stack {
    let tag: TagName = tag.parse().unwrap();
    let options = Options { tag: Some(tag.clone()), ..Options::default() };
    store.convert(&source, &options).await.unwrap();
    store.refs.tag(&tag).await.unwrap().unwrap().stack
}

fn stack(store: &Store, stack: &Stack) -> Origin {
    Origin::Stack(store.refs.store().clone(), stack.clone())
}

/// A directory with a bit of everything.
fn tree(root: &Path) {
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    let noise: Vec<u8> = (0..700_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(root.join("big"), &noise).unwrap();
    std::fs::hard_link(root.join("big"), root.join("d/again")).unwrap();
    std::fs::write(root.join("d/big copy"), &noise).unwrap();
    std::fs::write(root.join("d/\u{f6}\n"), "odd name").unwrap();
    std::fs::write(root.join("l".repeat(255)), "long name").unwrap();
    symlink("t".repeat(300), root.join("link")).unwrap();
    std::fs::set_permissions(root.join("d/e"), std::fs::Permissions::from_mode(0o3751)).unwrap();
    if rustix::process::geteuid().is_root() {
        let (private, null) = (Mode::RUSR, rustix::fs::makedev(1, 3));
        rustix::fs::mknodat(CWD, root.join("null"), FileType::CharacterDevice, private, null).unwrap();
        rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, private, 0).unwrap();
        chown(root.join("d/big copy"), Some(3_000_000), Some(4_000_000_000)).unwrap();
        for (name, value) in [("trusted.t", &b"\0\xff"[..]), ("user.u", b"")] {
            rustix::fs::setxattr(root.join("big"), name, value, XattrFlags::empty()).unwrap();
        }
    }
    let time = Timespec { tv_sec: -7, tv_nsec: 250_000_000 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, root.join("d/e"), &times, rustix::fs::AtFlags::empty()).unwrap();
}

fn same(found: &Model, wanted: &Model) {
    let mut differences = Vec::new();
    found.compare(wanted, ["export", "original"], &mut |path, text| {
        differences.push(format!("/{}: {text}", path.escape_ascii()));
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn not_root() -> bool {
    let not = !rustix::process::geteuid().is_root();
    if not {
        println!("SKIPPED: needs root");
    }
    not
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tar_of_a_layer_converts_back_to_the_same_layer() {
    let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
    tree(temp.path());
    let first = convert(&store, Source::Directory(temp.path().to_owned()), "base/a:1").await;
    let tar = tar_of(&stack(&store, &first)).await.unwrap();
    assert!(tar == tar_of(&Origin::Layer(store.refs.store().clone(), first.layers()[0].clone())).await.unwrap());
    let path = temp.path().join("x.tar");
    std::fs::write(&path, &tar).unwrap();
    let second = convert(&store, Source::Tar(Some(path)), "base/b:1").await;
    assert_eq!(first.layers()[0].layer, second.layers()[0].layer);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tar_of_a_layer_with_holes_converts_back_to_the_same_layer() {
    let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
    let holes = File::create(temp.path().join("holes")).unwrap();
    holes.set_len(3 << 20).unwrap();
    holes.write_all_at(b"in the middle", 1_500_000).unwrap();
    holes.write_all_at(&[7; 10_000], 2_000_001).unwrap();
    File::create(temp.path().join("empty of data")).unwrap().set_len(1 << 40).unwrap();
    let first = convert(&store, Source::Directory(temp.path().to_owned()), "base/a:1").await;
    let tar = tar_of(&stack(&store, &first)).await.unwrap();
    let path = temp.path().join("x.tar");
    std::fs::write(&path, &tar).unwrap();
    let second = convert(&store, Source::Tar(Some(path)), "base/b:1").await;
    assert!(tar == tar_of(&stack(&store, &second)).await.unwrap());
    assert_eq!(first.layers()[0].layer, second.layers()[0].layer);
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_exported_one_by_one_are_the_image_again() {
    let (store, layout) = (Store::new(), Layout::new());
    let layers: [&[_]; 3] = [
        &[
            dir("d", 7),
            file("d/old", b"1"),
            file("gone", b"x"),
            dir("o", 3),
            file("o/hidden", b"y"),
            file("target", b"t"),
        ],
        &[file("d/.wh.old", b""), file(".wh.gone", b""), dir("o", 4), file("o/.wh..wh..opq", b""), file("o/new", b"z")],
        &[file("d/new", b"2"), link("linked", "target")],
    ];
    layout.image(&layers, "linux/amd64", "a");
    let report = store.convert(&layout.source(), &Options::default()).await.unwrap();
    let chain_id = report.images[0].layers[2].chain_id.as_ref().unwrap().parse().unwrap();
    let whole = store.refs.chain(&chain_id).await.unwrap().unwrap().stack;
    let (mut again, mut merged) = (Model::default(), Model::default());
    for layer in whole.layers() {
        let tar = tar_of(&Origin::Layer(store.refs.store().clone(), layer.clone())).await.unwrap();
        again.apply_tar(&tar[..]).unwrap();
    }
    merged.apply_tar(&tar_of(&stack(&store, &whole)).await.unwrap()[..]).unwrap();
    same(&again, &merged);
    assert!(merged.inode(b"o/new").is_some() && merged.inode(b"o/hidden").is_none() && merged.inode(b"gone").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_clean_shows_the_tree_and_does_not_depend_on_its_layers() {
    if not_root() {
        return;
    }
    let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
    let root = temp.path().join("root");
    tree(&root);
    File::create(root.join("holes")).unwrap().write_all_at(b"end", 1 << 20).unwrap();
    let one = convert(&store, Source::Directory(root.clone()), "base/a:1").await;
    let image = temp.path().join("image");
    let exported = to(&stack(&store, &one), Output::Erofs(image.clone())).await.unwrap();
    assert_eq!(exported.bytes_out, std::fs::metadata(&image).unwrap().len());
    let mut mounts = Mounts::default();
    let mut mount = Command::new("mount");
    mount.args(["-t", "erofs", "-o", "loop,ro"]).arg(&image).arg(temp.path().join("mnt"));
    mounts.add(&temp.path().join("mnt"), mount).unwrap();
    let (shown, left_out) = Model::of_directory(&temp.path().join("mnt")).unwrap();
    assert!(left_out.is_empty(), "{left_out:?}");
    same(&shown, &Model::of_directory(&root).unwrap().0);
    match Command::new("fsck.erofs").arg("--help").output() {
        Ok(_) => drop(run(Command::new("fsck.erofs").arg(&image)).unwrap()),
        Err(_) => println!("left out: fsck.erofs, which is erofs-utils'"),
    }
    // The same tree in two layers.
    std::fs::write(temp.path().join("one"), tar_of(&stack(&store, &one)).await.unwrap()).unwrap();
    let base = convert(&store, Source::Tar(Some(temp.path().join("one"))), "base/b:1").await;
    let other = temp.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("more"), "in a layer of its own").unwrap();
    let below = convert(&store, Source::Directory(other), "base/c:1").await;
    let both = below.under(&base);
    let (a, b) = (temp.path().join("a"), temp.path().join("b"));
    to(&stack(&store, &both), Output::Erofs(a.clone())).await.unwrap();
    let merged = tar_of(&stack(&store, &both)).await.unwrap();
    std::fs::write(temp.path().join("both"), merged).unwrap();
    let flat = convert(&store, Source::Tar(Some(temp.path().join("both"))), "base/d:1").await;
    to(&stack(&store, &flat), Output::Erofs(b.clone())).await.unwrap();
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_holds_everything_or_is_not_there() {
    if not_root() {
        return;
    }
    let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
    let root = temp.path().join("root");
    tree(&root);
    File::create(root.join("holes")).unwrap().write_all_at(b"end", 64 << 20).unwrap();
    let origin = stack(&store, &convert(&store, Source::Directory(root.clone()), "base/a:1").await);
    let out = temp.path().join("out");
    to(&origin, Output::Directory(out.clone())).await.unwrap();
    same(&Model::of_directory(&out).unwrap().0, &Model::of_directory(&root).unwrap().0);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(out.join("holes")).unwrap());
    assert!(blocks < 2048, "holes stay holes");
    let error = to(&origin, Output::Directory(out)).await.unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");

    // A file system that is too small: what was there stays, and says so; what was not there is not.
    let small = temp.path().join("small");
    let mut mounts = Mounts::default();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=400k", "tmpfs"]).arg(&small);
    mounts.add(&small, mount).unwrap();
    let error = to(&origin, Output::Directory(small.join("new"))).await.unwrap_err().to_string();
    assert!(error.contains("'big'") || error.contains("'d/big copy'"), "{error}");
    for output in [Output::Tar(small.join("x.tar")), Output::Erofs(small.join("x.erofs"))] {
        to(&origin, output).await.unwrap_err();
    }
    assert_eq!(std::fs::read_dir(&small).unwrap().count(), 0);
    let error = to(&origin, Output::Directory(small.clone())).await.unwrap_err().to_string();
    assert!(error.contains("is unfinished"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_interrupted_leaves_nothing_and_a_device_is_not_replaced() {
    let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
    tree(&temp.path().join("root"));
    let origin = stack(&store, &convert(&store, Source::Directory(temp.path().join("root")), "base/a:1").await);
    let out = temp.path().join("out");
    std::fs::create_dir(&out).unwrap();
    for output in [Output::Tar(out.join("x")), Output::Erofs(out.join("x")), Output::Directory(out.join("x"))] {
        let error = export(&origin, output, Arc::new(|_, _| ControlFlow::Break(()))).await.unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    }
    let error = to(&origin, Output::Tar("/dev/null".into())).await.unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
    // A file that is there is replaced when the new one is whole.
    std::fs::write(out.join("x"), "old").unwrap();
    symlink("x", out.join("link")).unwrap();
    export(&origin, Output::Tar(out.join("link")), Arc::new(|_, _| ControlFlow::Break(()))).await.unwrap_err();
    assert_eq!(std::fs::read(out.join("x")).unwrap(), b"old");
    to(&origin, Output::Tar(out.join("link"))).await.unwrap();
    assert!(std::fs::read(out.join("x")).unwrap() == tar_of(&origin).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tar_does_not_take_what_would_mean_something_else_in_it() {
    for name in [".wh.x", "d/.wh..wh..opq"] {
        let (temp, store) = (tempfile::tempdir().unwrap(), Store::new());
        std::fs::create_dir(temp.path().join("d")).unwrap();
        std::fs::write(temp.path().join(name), "").unwrap();
        let origin = stack(&store, &convert(&store, Source::Directory(temp.path().to_owned()), "base/a:1").await);
        let error = tar_of(&origin).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(name), "{error}");
    }
}
