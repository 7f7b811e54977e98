//! One tree, packed by every tar program that is here and in each of its formats, is one layer.
//!
//! What a format cannot say (times under a second, long names, attributes) is left out of the tree where it is asked.

use crate::support::Store;
use converter::{Options, Source};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A tree that every format can hold; all times are whole seconds.
fn tree(root: &Path) {
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/f"), "text").unwrap();
    std::fs::hard_link(root.join("a/f"), root.join("a/b/g")).unwrap();
    symlink("../a", root.join("a/l")).unwrap();
    std::fs::write(root.join("a/empty"), "").unwrap();
    std::fs::write(root.join("large"), vec![b'x'; 100_000]).unwrap();
    run(Command::new("find").arg(root).args(["-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"])).unwrap();
}

/// More: a name of 150 bytes below a path of 200, and a file with holes.
fn more(root: &Path) {
    let deep = root.join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("n".repeat(150)), "long").unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(3_000_000).unwrap();
    for piece in 0..40 {
        sparse.write_all_at(b"data", piece * 70_000).unwrap();
    }
    run(Command::new("find").arg(root).args(["-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"])).unwrap();
}

/// A program's output; `Err` is what it said, or that it is not here.
fn run(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn here(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: {program} is not there");
    }
    found
}

/// The layer of a tar; its id.
async fn layer(tar: &Path) -> Result<String, String> {
    let report = Store::new().convert(&Source::Tar(Some(tar.to_owned())), &Options::default()).await;
    report.map(|report| report.images[0].layers[0].layer.clone()).map_err(|e| e.to_string())
}

struct Ways {
    place: tempfile::TempDir,
}

impl Ways {
    fn new(make: &[fn(&Path)]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        std::fs::create_dir(&root).unwrap();
        make.iter().for_each(|make| make(&root));
        Self { place }
    }

    fn root(&self) -> PathBuf {
        self.place.path().join("root")
    }

    /// Packs the tree by a command whose last arguments are given, and converts it.
    async fn layer(&self, command: &str) -> String {
        let tar = self.place.path().join("x.tar");
        let script = format!("cd {} && {command} > {}", self.root().display(), tar.display());
        run(Command::new("sh").args(["-c", &script])).unwrap();
        layer(&tar).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }
}

const PYTHON: &str = "python3 -c 'import sys, tarfile; t = tarfile.open(fileobj=sys.stdout.buffer, mode=\"w|\", format=tarfile.FORMAT); t.add(\".\"); t.close()'";

#[tokio::test]
async fn every_program_and_format_gives_one_layer() {
    if !here("tar") {
        return;
    }
    let ways = Ways::new(&[tree]);
    let want = ways.layer("tar --sort=name --format=gnu -c .").await;
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        let id = ways.layer(&format!("tar --sort=name --format={format} -c .")).await;
        assert_eq!(id, want, "tar --format={format}");
    }
    assert_eq!(ways.layer("tar -G -c .").await, want, "an incremental archive");
    assert_eq!(ways.layer("tar -V label --sort=name -c .").await, want, "a labelled one");
    if here("bsdtar") {
        for format in ["pax", "paxr", "ustar", "gnutar", "v7"] {
            let id = ways.layer(&format!("bsdtar --format={format} -c .")).await;
            assert_eq!(id, want, "bsdtar --format={format}");
        }
    }
    if here("busybox") {
        assert_eq!(ways.layer("busybox tar -c .").await, want, "busybox tar");
    }
    if here("cpio") {
        assert_eq!(ways.layer("find . | cpio -o -H ustar --quiet").await, want, "cpio -H ustar");
        assert_eq!(ways.layer("find . | cpio -o -H tar --quiet").await, want, "cpio -H tar");
    }
    if here("python3") {
        for format in ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"] {
            assert_eq!(ways.layer(&PYTHON.replace("FORMAT", format)).await, want, "Python {format}");
        }
    }
}

#[tokio::test]
async fn long_names_and_holes_are_the_same_in_every_format_that_has_them() {
    if !here("tar") {
        return;
    }
    let ways = Ways::new(&[tree, more]);
    let want = ways.layer("tar --sort=name --format=gnu --sparse -c .").await;
    for version in ["0.0", "0.1", "1.0"] {
        let id = ways.layer(&format!("tar --format=posix --sparse --sparse-version={version} -c .")).await;
        assert_eq!(id, want, "sparse version {version}");
    }
    assert_eq!(ways.layer("tar --format=oldgnu --sparse -c .").await, want, "oldgnu");
    if here("bsdtar") {
        assert_eq!(ways.layer("bsdtar --format=pax --read-sparse -c .").await, want, "bsdtar pax");
    }
    let whole = ways.layer("tar --format=gnu -c .").await;
    assert_eq!(ways.layer("tar --format=posix -c .").await, whole, "posix");
    if here("python3") {
        for format in ["GNU_FORMAT", "PAX_FORMAT"] {
            assert_eq!(ways.layer(&PYTHON.replace("FORMAT", format)).await, whole, "Python {format}");
        }
    }
}

#[tokio::test]
async fn appended_tars_are_one_and_what_follows_the_end_is_told() {
    let ways = Ways::new(&[tree]);
    if !here("tar") {
        return;
    }
    let (parts, whole) =
        ("tar -cf ../1.tar a && tar -cf ../2.tar large && tar -Af ../1.tar ../2.tar && cat ../1.tar", "tar -c a large");
    assert_eq!(ways.layer(parts).await, ways.layer(whole).await);
    let tar = ways.place.path().join("x.tar");
    let mut file = std::fs::File::options().append(true).open(&tar).unwrap();
    file.write_all(b"not zero").unwrap();
    let report = Store::new().convert(&Source::Tar(Some(tar)), &Options::default()).await.unwrap();
    assert!(report.images[0].layers[0].warnings[0].contains("behind the end of the tar"));
}

#[tokio::test]
async fn compressed_tars_are_read_or_refused_by_name() {
    let ways = Ways::new(&[tree]);
    let want = ways.layer("tar --sort=name -c .").await;
    for program in ["gzip", "zstd"] {
        if here(program) {
            assert_eq!(ways.layer(&format!("tar --sort=name -c . | {program} -c")).await, want, "{program}");
        }
    }
    for program in ["bzip2", "xz"] {
        if here(program) {
            let tar = ways.place.path().join("y.tar");
            let script = format!("tar -c -C {} . | {program} -c > {}", ways.root().display(), tar.display());
            run(Command::new("sh").args(["-c", &script])).unwrap();
            let error = layer(&tar).await.unwrap_err();
            assert!(error.contains(&format!("compressed by {program}")), "{error}");
        }
    }
}

/// A docker-archive, made by Python from the parts that differ between writers.
const SAVED: &str = r#"
import gzip, hashlib, io, json, sys, tarfile
form, out = sys.argv[1], sys.argv[2]
def layer(name, text):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name); info.size = len(text); info.mtime = 1700000000
        tar.addfile(info, io.BytesIO(text))
    return buffer.getvalue()
layers = [layer("a", b"one"), layer("b", b"two"), layer("a", b"one")]
digest = lambda data: hashlib.sha256(data).hexdigest()
config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(l) for l in layers]}}).encode()
files, links, names = {}, {}, []
for number, data in enumerate(layers):
    if form == "compressed":
        name = f"sha256:{digest(data)}.tar.gz"
        files[name] = gzip.compress(data, mtime=0)
    else:
        name = f"{number}/layer.tar"
        if form == "symlink" and number == 2:
            links[name] = "../0/layer.tar"
        else:
            files[name] = data
        files[f"{number}/VERSION"] = b"1.0"
    names.append(name)
files["config.json"] = config
files["repositories"] = b'{"x":{"1":"2"}}'
files["manifest.json"] = json.dumps([{"Config": "config.json", "RepoTags": ["x:1"], "Layers": names}]).encode()
with tarfile.open(out, "w") as tar:
    for name, data in files.items():
        info = tarfile.TarInfo(name); info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    for name, target in links.items():
        info = tarfile.TarInfo(name); info.type = tarfile.SYMTYPE; info.linkname = target
        tar.addfile(info)
"#;

#[tokio::test]
async fn archives_of_all_who_write_docker_archives_give_the_same_layers() {
    if !here("python3") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("x.tar");
    let mut all = Vec::new();
    for form in ["plain", "symlink", "compressed"] {
        run(Command::new("python3").args(["-c", SAVED, form]).arg(&archive)).unwrap();
        let source = Source::DockerArchive { file: archive.clone(), reference: None };
        let options = Options { platforms: "all".parse().unwrap(), ..Options::default() };
        let report = Store::new().convert(&source, &options).await.unwrap_or_else(|e| panic!("{form}: {e}"));
        let layers: Vec<String> = report.images[0].layers.iter().map(|layer| layer.layer.clone()).collect();
        all.push(layers);
    }
    assert!(all[0].len() == 3 && all[0][0] == all[0][2]);
    assert!(all.iter().all(|layers| *layers == all[0]), "{all:?}");
    let compressed = place.path().join("x.tar.gz");
    let mut gzip = Command::new("gzip");
    gzip.arg("-c").stdin(std::fs::File::open(&archive).unwrap()).stdout(std::fs::File::create(&compressed).unwrap());
    assert!(gzip.stderr(Stdio::null()).status().unwrap().success());
    let source = Source::DockerArchive { file: compressed, reference: None };
    let error = Store::new().convert(&source, &Options::default()).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("compressed by gzip: decompress it first"), "{error}");
}
