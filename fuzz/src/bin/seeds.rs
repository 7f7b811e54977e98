//! Writes the seeds that no other program can make: `seeds DIR` fills DIR/erofs, DIR/index, DIR/stream, DIR/oci and
//! DIR/profile. Those of `tar` are made by `tar-seeds`, with the tar programs of the machine.

// Instrumented like the targets, so it needs what their instrumentation calls.
use libfuzzer_sys as _;

use blobstore::layer::{Flags, Front, Options, Section, Writer};
use erofs::{Attributes, BLOCK, Content, Kind, Node, NodeId, Tree};
use std::path::Path;

fn main() -> std::io::Result<()> {
    let place = std::env::args().nth(1).expect("a directory");
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let directory = Path::new(&place).join(target);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join(name), bytes)
    };
    for (name, tree) in trees() {
        let metadata = erofs::write(&tree, DATA_BLOCKS).expect("a tree");
        put("erofs", name, metadata.bytes())?;
        for (kind, chunks) in [("none", &[][..]), ("some", &[1, 2, 1])] {
            put("index", &format!("{name}-{kind}"), &[&[0], &layer(metadata.bytes(), chunks)[..]].concat())?;
        }
    }
    for (name, text) in STREAMS {
        put("stream", name, text.as_bytes())?;
    }
    for (name, text) in DOCUMENTS {
        put("oci", name, &text.replace(['\n', ' '], "").replace('~', "\u{0}").bytes().map(apart).collect::<Vec<_>>())?;
    }
    for (name, profile) in lamina_fuzz::profiles() {
        put("profile", name, &[&[6], &profile[..]].concat())?;
        put("profile", &format!("{name}-as-it-is"), &[&[5], &profile[..]].concat())?;
    }
    for (name, list) in LISTS {
        put("profile", name, format!("l{list}").as_bytes())?;
    }
    for (number, name) in NAMES.iter().enumerate() {
        put("oci", &format!("name-{number}"), format!("n{name}").as_bytes())?;
    }
    Ok(())
}

/// Blocks of the data space that the trees' files lie in.
const DATA_BLOCKS: u64 = 40;

fn trees() -> Vec<(&'static str, Tree)> {
    let plain = |mode| Attributes { mode, mtime: 1_700_000_000, ..Attributes::default() };
    let with = |attributes: &[(&str, &[u8])]| {
        let xattrs = attributes.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect();
        Attributes { xattrs, ..plain(0o755) }
    };
    let add = |tree: &mut Tree, parent: NodeId, name: &str, attributes: Attributes, kind: Kind| {
        tree.add(parent, name.as_bytes(), Node { attributes, kind }).expect("a name")
    };
    let empty = Tree::new(plain(0o755));
    let mut small = Tree::new(with(&[("user.root", b"yes")]));
    let d = add(&mut small, Tree::ROOT, "d", with(&[("trusted.overlay.opaque", b"y")]), Kind::Directory);
    let f = add(&mut small, d, "f", plain(0o644), Kind::File(Content::Plain { size: 5000, start: 3 }));
    small.link(Tree::ROOT, b"link", f).expect("a link");
    let chunks = vec![Some(10), None, Some(20)];
    let sparse = Content::Sparse { size: 11_000, chunk_bits: 0, chunks };
    add(&mut small, d, "sparse", with(&[("user.a", b"1"), ("security.capability", &[1; 20])]), Kind::File(sparse));
    add(&mut small, d, "same", with(&[("user.a", b"1")]), Kind::File(Content::EMPTY));
    add(&mut small, Tree::ROOT, "s", plain(0o777), Kind::Symlink(b"d/f".to_vec()));
    add(&mut small, Tree::ROOT, "null", plain(0o666), Kind::Char(1, 3));
    add(&mut small, Tree::ROOT, "gone", plain(0), Kind::Char(0, 0));
    add(&mut small, Tree::ROOT, "block", plain(0o600), Kind::Block(8, 1));
    add(&mut small, Tree::ROOT, "fifo", plain(0o600), Kind::Fifo);
    let mut wide = Tree::new(plain(0o755));
    for at in 0..40 {
        add(&mut wide, Tree::ROOT, &format!("{at:0>200}"), plain(0o644), Kind::File(Content::EMPTY));
    }
    add(&mut wide, Tree::ROOT, "long", plain(0o777), Kind::Symlink(vec![b'l'; 4090]));
    let mut deep = Tree::new(plain(0o755));
    let mut at = Tree::ROOT;
    for _ in 0..20 {
        at = add(&mut deep, at, "d", plain(0o755), Kind::Directory);
    }
    vec![("empty", empty), ("small", small), ("wide", wide), ("deep", deep)]
}

fn layer(metadata: &[u8], chunks: &[usize]) -> Vec<u8> {
    let assumes = br#"[{"path":"a","kind":"absent"}]"#.to_vec();
    let sections = [Section { kind: 3, must_understand: false, bytes: assumes }];
    let front = Front { metadata, flags: Flags::ROOT_OPAQUE, sections: &sections, chunks: chunks.len() as u32 };
    let path = lamina_fuzz::scratch().join("layer");
    let out = std::fs::File::create(&path).expect("a file");
    let mut writer = Writer::new(&Options { level: 1, threads: 1 }, &front, out).expect("a writer");
    for (number, blocks) in (0..).zip(chunks) {
        writer.push(vec![number; blocks * BLOCK]).expect("a chunk");
    }
    writer.finish().expect("a layer");
    std::fs::read(path).expect("the layer")
}

/// Between documents stands a byte that no text has; `~` in the texts below, by way of a NUL.
fn apart(byte: u8) -> u8 {
    if byte == 0 { 0xff } else { byte }
}

const STREAMS: [(&str, &str); 5] = [
    ("gzip", "gone|two||three"),
    ("zstd", "zone|two||three"),
    ("damaged-gzip", "2one|two and some more text"),
    ("damaged-zstd", "1one|two and some more text"),
    ("raw", "r\u{1f}not gzip"),
];

const LISTS: [(&str, &str); 3] = [
    ("list", "# a start\n/d/g\nz\n\nb\nd/g\nnot/there\n"),
    ("list-of-all", "z\nd/g\nd/f\nd/e\nb\na"),
    ("list-of-nothing", "\n#\n/\n"),
];

const DOCUMENTS: [(&str, &str); 9] = [
    (
        "layout",
        r#"l{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"@1","size":#1,
        "annotations":{"org.opencontainers.image.ref.name":"a:1"}}]}~
        {"schemaVersion":2,"config":{"digest":"@2","size":#2},"layers":[
        {"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"@3","size":#3}]}~
        {"architecture":"amd64","os":"linux","config":{"Env":["A=b"]},"rootfs":{"diff_ids":["@3"]}}~tar"#,
    ),
    (
        "platforms",
        r#"l{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"@1","size":#1}]}~
        {"manifests":[{"digest":"@2","size":#2,"platform":{"os":"linux","architecture":"amd64","variant":"v2"}},
        {"digest":"@3","size":#3,"platform":{"os":"unknown","architecture":"unknown"}}]}~
        {"config":{"digest":"@4","size":#4},"layers":[]}~
        {"config":{"digest":"@4","size":#4},"layers":[]}~
        {"architecture":"amd64","os":"linux","rootfs":{"diff_ids":[]}}"#,
    ),
    (
        "saved",
        r#"d[{"Config":"1","RepoTags":["a:1"],"Layers":["2"]}]~
        {"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["@2"]}}~tar"#,
    ),
    ("chain", r#"e{"chain_id":"@","stack":[]}"#),
    (
        "diff",
        r#"e{"diff_id":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","candidates":[{"layer":
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","head":1,"size":2,"format":1,"generation":1,
        "root_opaque":false,"assumes":[{"path":"a","kind":"directory","mode":493,"uid":0,"gid":0,"xattrs":[{"name":
        "user.a","value_b64":"/w=="}]},{"path_b64":"/w==","kind":"absent"},{"path":"","kind":"moon"}]}]}"#,
    ),
    (
        "image",
        r#"e{"name":"docker.io/library/a:1","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}"#,
    ),
    ("tag", r#"e{"kind":"base","name":"a","version":"1","stack":[],"environment":["A=b"]}"#),
    (
        "manifest",
        r#"e{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","platform":{"os":"linux",
        "architecture":"arm64"},"config":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","chains":[]}"#,
    ),
    ("revoked", r#"e{"layer":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","reason":"x"}"#),
];

const NAMES: [&str; 8] = [
    "docker.io/library/a:1@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "[::1]:5000/a/b_c.d-e:t",
    "layer:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "tag:toolkit/a/b:1.2",
    "file:/a/b",
    "oci:dir:ref",
    "linux/arm64/v8",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
];
