//! Random stacks of layers: what the kernel shows of a conversion is what the model makes of the tars, an export shows it
//! too and converts back to it.
//!
//! Whiteouts, opaque marks, changes of type, hard links in and across layers, the same path twice, implied directories, odd
//! names, holes, attributes, devices. LAMINA_PROPTEST=N runs N stacks instead of a few. Needs root, zstd, and a kernel with
//! EROFS and overlayfs.

use crate::mounted::{Mounts, mount, run};
use blobstore::refs::{Digest, Refs, TagName, layer_key};
use blobstore::store;
use converter::model::Model;
use converter::{Options, Origin, Output, Source, convert, export};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[derive(Debug, Clone)]
enum What {
    Directory,
    File(Vec<u8>),
    /// Size and pieces: offset, length, byte.
    Sparse(u64, Vec<(u64, u64, u8)>),
    Symlink(Vec<u8>),
    /// To one of the paths that came before, here or below.
    Link(Index),
    /// Type, major, minor.
    Device(u8, u32, u32),
    Fifo,
    Whiteout,
    Opaque,
}

#[derive(Debug, Clone)]
struct Attributes {
    mode: u32,
    ids: (u32, u32),
    mtime: (i64, u32),
    xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Entry {
    path: Vec<u8>,
    what: What,
    attributes: Attributes,
}

/// Few paths, so that entries meet; some names that are hard to carry.
fn path(leaves: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    const DIRECTORIES: [&[u8]; 8] = [b"", b"a/", b"a/b/", b"c \n=/", b"a/b/d\xff/", b"c \n=/\xc3\xb6/", b"b/", b"a/x/"];
    (select(&DIRECTORIES[..]), select(leaves)).prop_map(|(directory, leaf)| [directory, leaf].concat())
}

const LEAVES: &[&[u8]] = &[b"a", b"b", b"x", b"file", b"other", b"n\xfe", &[b'l'; 255]];
const LINKS: &[&[u8]] = &[b"file", b"other", b"link", b"n\xfe"];

fn attributes() -> impl Strategy<Value = Attributes> {
    let id = || prop_oneof![3 => 0..1000_u32, 1 => 0..u32::MAX];
    let seconds =
        prop_oneof![3 => 0..2_000_000_000_i64, 1 => -5..5_i64, 1 => -100_000_000_000_000..100_000_000_000_000_i64];
    let nanos = prop_oneof![1 => Just(0), 1 => 0..1_000_000_000_u32];
    let name = (select(&["trusted.", "security.x", "user."][..]), "[a-c]{1,2}").prop_map(|(a, b)| format!("{a}{b}"));
    let xattrs = prop_oneof![4 => Just(BTreeMap::new()), 1 => btree_map(name, vec(any::<u8>(), 0..300), 0..4)];
    (0..=0o7777_u32, (id(), id()), (seconds, nanos), xattrs).prop_map(|(mode, ids, mtime, xattrs)| Attributes {
        mode,
        ids,
        mtime,
        xattrs,
    })
}

fn file() -> impl Strategy<Value = What> {
    let size = prop_oneof![2 => 0..20_usize, 1 => select(vec![4095, 4096, 4097, 300_000])];
    let plain = (size, any::<u8>()).prop_map(|(size, seed)| {
        What::File((0..size).map(|at| if at % 5 == 0 { seed } else { (at / 7) as u8 }).collect())
    });
    let piece = (0..40_u64, 1..9_000_u64, any::<u8>());
    let sparse = (vec(piece, 0..4), 0..10_000_u64).prop_map(|(pieces, more)| {
        let mut at = 0;
        let mut placed = Vec::new();
        for (gap, length, byte) in pieces {
            at += gap * 1000;
            placed.push((at, length, byte));
            at += length;
        }
        What::Sparse(at + more, placed)
    });
    prop_oneof![3 => plain, 1 => sparse]
}

fn entry() -> impl Strategy<Value = Entry> {
    let device = (select(&[b'3', b'4'][..]), 0..3_u32, 0..3_u32)
        .prop_map(|(kind, major, minor)| What::Device(kind, major, minor));
    let any_place = prop_oneof![
        6 => Just(What::Directory),
        6 => file(),
        3 => any::<Index>().prop_map(What::Link),
        1 => device,
        1 => Just(What::Fifo),
        3 => Just(What::Whiteout),
        2 => Just(What::Opaque),
    ];
    let target = prop_oneof![Just(b"file".to_vec()), Just(b"/a/b".to_vec()), vec(1..=255_u8, 1..200)];
    let placed = prop_oneof![
        12 => (path(LEAVES), any_place),
        1 => (path(LINKS), target.prop_map(What::Symlink)),
        1 => (Just(b"".to_vec()), Just(What::Directory)),
    ];
    (placed, attributes()).prop_map(|((path, what), mut attributes)| {
        // Linux shows attributes for users on files and directories only.
        if !matches!(what, What::File(_) | What::Sparse(..) | What::Directory) {
            attributes.xattrs.retain(|name, _| !name.starts_with("user."));
        }
        Entry { path, what, attributes }
    })
}

/// The layers as tars.
fn tars(stack: &[Vec<Entry>]) -> Vec<Vec<u8>> {
    let mut linkable: Vec<Vec<u8>> = Vec::new();
    let mut tars = Vec::new();
    for layer in stack {
        let mut tar = Vec::new();
        for entry in layer {
            let target = match &entry.what {
                What::Link(_) if linkable.is_empty() => continue,
                What::Link(index) => index.get(&linkable).clone(),
                _ => Vec::new(),
            };
            append(&mut tar, entry, &target);
            if !matches!(entry.what, What::Directory | What::Whiteout | What::Opaque) {
                linkable.push(entry.path.clone());
            }
        }
        tar.extend([0; 1024]);
        tars.push(tar);
    }
    tars
}

fn append(tar: &mut Vec<u8>, entry: &Entry, target: &[u8]) {
    let name = entry.path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
    let path = match entry.what {
        What::Whiteout => [&entry.path[..name], b".wh.", &entry.path[name..]].concat(),
        What::Opaque => [&entry.path[..name], b".wh..wh..opq"].concat(),
        _ if entry.path.is_empty() => b"./".to_vec(),
        _ => entry.path.clone(),
    };
    let Attributes { mode, ids, mtime: (seconds, nanos), xattrs } = &entry.attributes;
    let time = match (*seconds, *nanos) {
        (seconds, 0) => seconds.to_string(),
        (seconds, nanos) if seconds < 0 => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
        (seconds, nanos) => format!("{seconds}.{nanos:09}"),
    };
    let mut records: Vec<(String, Vec<u8>)> = [("uid", ids.0.to_string()), ("gid", ids.1.to_string()), ("mtime", time)]
        .map(|(k, v)| (k.into(), v.into()))
        .into();
    records.extend(xattrs.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), value.clone())));
    let (kind, link, device, data) = match &entry.what {
        What::Directory => (b'5', Vec::new(), (0, 0), Vec::new()),
        What::File(data) => (b'0', Vec::new(), (0, 0), data.clone()),
        What::Sparse(size, pieces) => {
            for (key, value) in [("major", "1".to_owned()), ("minor", "0".to_owned()), ("realsize", size.to_string())] {
                records.push((format!("GNU.sparse.{key}"), value.into()));
            }
            records.push(("GNU.sparse.name".into(), path.clone()));
            (b'0', Vec::new(), (0, 0), sparse(pieces))
        }
        What::Symlink(target) => (b'2', target.clone(), (0, 0), Vec::new()),
        What::Link(_) => (b'1', target.to_vec(), (0, 0), Vec::new()),
        What::Device(kind, major, minor) => (*kind, Vec::new(), (*major, *minor), Vec::new()),
        What::Fifo => (b'6', Vec::new(), (0, 0), Vec::new()),
        What::Whiteout | What::Opaque => (b'0', Vec::new(), (0, 0), Vec::new()),
    };
    records.push(("path".into(), path));
    if !link.is_empty() {
        records.push(("linkpath".into(), link));
    }
    block(tar, b'x', 0o644, (0, 0), &records.iter().flat_map(record).collect::<Vec<u8>>());
    block(tar, kind, *mode, device, &data);
}

fn sparse(pieces: &[(u64, u64, u8)]) -> Vec<u8> {
    let mut data = format!("{}\n", pieces.len()).into_bytes();
    for (offset, length, _) in pieces {
        data.extend(format!("{offset}\n{length}\n").bytes());
    }
    data.resize(data.len().next_multiple_of(512), 0);
    pieces.iter().for_each(|&(_, length, byte)| data.extend(vec![byte; length as usize]));
    data
}

fn record((key, value): &(String, Vec<u8>)) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| rest + length.to_string().len() == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn block(tar: &mut Vec<u8>, kind: u8, mode: u32, device: (u32, u32), data: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[0] = b'n';
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(data.len() as u64);
    header.set_device_major(device.0).unwrap();
    header.set_device_minor(device.1).unwrap();
    header.set_cksum();
    tar.extend(header.as_bytes());
    tar.extend(data);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// An OCI image layout of these layers.
fn layout(directory: &Path, tars: &[Vec<u8>]) -> Source {
    std::fs::create_dir_all(directory.join("blobs/sha256")).unwrap();
    let put = |bytes: &[u8], kind: &str| {
        let digest = Digest::of(bytes).to_string();
        std::fs::write(directory.join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
        format!(r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{digest}","size":{}}}"#, bytes.len())
    };
    let layers: Vec<_> = tars.iter().map(|tar| put(tar, "layer.v1.tar")).collect();
    let diff_ids: Vec<_> = tars.iter().map(|tar| format!("\"{}\"", Digest::of(tar))).collect();
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        diff_ids.join(",")
    );
    let config = put(config.as_bytes(), "config.v1+json");
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","));
    let manifest = put(manifest.as_bytes(), "manifest.v1+json");
    std::fs::write(directory.join("index.json"), format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#)).unwrap();
    Source::Oci { directory: directory.to_owned(), reference: None }
}

struct Store {
    directory: PathBuf,
    work: TempDir,
    refs: Refs,
    runtime: Runtime,
}

impl Store {
    fn new(directory: PathBuf) -> Self {
        let refs = Refs::new(store::open(&format!("file://{}", directory.display())).unwrap());
        Self { directory, work: tempfile::tempdir().unwrap(), refs, runtime: Runtime::new().unwrap() }
    }

    /// Converts what must be convertible and be right; gives the tar of what it shows.
    fn round(&self, tar: &Path, tag: &str) -> Vec<u8> {
        let tag: TagName = tag.parse().unwrap();
        let options = Options { tag: Some(tag.clone()), ..Options::default() };
        self.runtime.block_on(async {
            convert(&self.refs, &Source::Tar(Some(tar.to_owned())), self.work.path(), &options).await.unwrap();
            let stack = self.refs.tag(&tag).await.unwrap().unwrap().stack;
            self.export(stack).await
        })
    }

    async fn export(&self, stack: blobstore::refs::Stack) -> Vec<u8> {
        let path = self.directory.with_extension("tar");
        let origin = Origin::Stack(self.refs.store().clone(), stack);
        export(&origin, Output::Tar(path.clone()), Arc::new(|_, _| ControlFlow::Continue(()))).await.unwrap();
        std::fs::read(path).unwrap()
    }
}

fn same(what: &str, found: &Model, model: &Model) -> Result<(), TestCaseError> {
    let mut differences = Vec::new();
    found.compare(model, [what, "model"], &mut |path, text| {
        differences.push(format!("/{}: {text}", path.escape_ascii()))
    });
    prop_assert!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// Whether the stack was converted; it may be one that nobody could unpack.
fn judge(stack: &[Vec<Entry>]) -> Result<bool, TestCaseError> {
    let temp = tempfile::tempdir().unwrap();
    let tars = tars(stack);
    let source = layout(&temp.path().join("image"), &tars);
    let store = Store::new(temp.path().join("store"));
    let mut model = Model::default();
    let expected = tars.iter().try_for_each(|tar| model.apply_tar(&tar[..]));
    let options = Options { platforms: "linux/amd64".parse().unwrap(), ..Options::default() };
    let report = match (store.runtime.block_on(convert(&store.refs, &source, store.work.path(), &options)), expected) {
        (Ok(report), Ok(())) => report,
        (Err(a), Err(b)) => {
            prop_assert!(a.is_refusal() && b.is_refusal(), "{a}, {b}");
            return Ok(false);
        }
        (a, b) => return Err(TestCaseError::fail(format!("converted: {:?}, model: {b:?}", a.map(drop)))),
    };
    let chain_id = report.images[0].layers.last().unwrap().chain_id.as_ref().unwrap().parse().unwrap();
    let stack = store.runtime.block_on(store.refs.chain(&chain_id)).unwrap().unwrap().stack;

    let mut mounts = Mounts::default();
    let files: Vec<_> = stack.layers().iter().map(|entry| store.directory.join(layer_key(&entry.layer))).collect();
    let work = temp.path().join("mounts");
    let root = mount(&files, &work, &mut mounts).map_err(TestCaseError::fail)?;
    let (shown, left_out) = Model::of_directory(&root).unwrap();
    prop_assert!(left_out.is_empty(), "{left_out:?}");
    same("mount", &shown, &model)?;
    drop(mounts);

    let exported = store.runtime.block_on(store.export(stack));
    let mut again = Model::default();
    again.apply_tar(&exported[..]).unwrap();
    same("export", &again, &model)?;
    let file = temp.path().join("exported.tar");
    std::fs::write(&file, &exported).unwrap();
    let round = store.round(&file, "base/round:1");
    prop_assert!(round == exported, "an export of an export is another one");
    Ok(true)
}

#[test]
fn the_kernel_and_an_export_show_what_the_model_says_of_random_stacks() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: needs root to mount");
    }
    if run(Command::new("zstd").arg("--version")).is_err() {
        return println!("SKIPPED: needs zstd");
    }
    let cases = std::env::var("LAMINA_PROPTEST").map_or(60, |n| n.parse().unwrap());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let converted = std::cell::Cell::new(0);
    let stacks = vec(vec(entry(), 0..16), 1..5);
    let result = runner.run(&stacks, |stack| {
        converted.set(converted.get() + u32::from(judge(&stack)?));
        Ok(())
    });
    println!("{} of {cases} stacks could be converted", converted.get());
    result.unwrap_or_else(|e| panic!("{e}"));
    assert!(converted.get() > cases / 3);
}
