//! Inputs that were made to hurt, against the built program: exit status 3 with the layer and the entry named, nothing
//! left behind, and memory bounded: each runs with an address space of two gigabytes, one with four. And the large inputs
//! beside them that are honest, and must work within the same bounds; what an ordinary entry costs has one of its own.

use rustix::fs::{CWD, FileType};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tests::node::program;

/// Address space of a conversion, in KiB.
const ROOM: u64 = 2 << 20;

/// The same where the bound on paths is reached, at half a kilobyte each.
const LARGE_ROOM: u64 = 4 << 20;

/// Bytes of memory for an entry more, at most: a small file with a name and contents of its own. The most is taken while a
/// layer that lies below another is read into memory.
const ENTRY: u64 = 260;

struct Place {
    dir: tempfile::TempDir,
    room: u64,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("lamina-hostile").tempdir_in("/var/tmp").unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::write(dir.path().join("none"), "").unwrap();
        Self { dir, room: ROOM }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Converts in bounded memory, with the work in `work`.
    fn convert(&self, source: &str, work: &Path) -> Output {
        self.convert_with(&["--tag", "toolkit/hostile:1"], source, work)
    }

    fn convert_with(&self, options: &[&str], source: &str, work: &Path) -> Output {
        let script = format!("ulimit -v {}; exec \"$@\"", self.room);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(program("lamina"));
        command.args(["--store", &format!("file://{}", self.path("store").display()), "convert", source]);
        command.args(options).stdin(Stdio::null());
        // What the allocator sets aside for each thread is no use of memory.
        command.env("TMPDIR", work).env("MALLOC_ARENA_MAX", "2").env("LAMINA_CONFIG", self.path("none"));
        command.output().unwrap()
    }

    /// The most memory that a conversion had resident, in bytes. The kernel keeps the maximum until the process ends, so it does not
    /// matter when it is asked.
    fn peak(&self, source: &str) -> u64 {
        let mut command = Command::new(program("lamina"));
        command.args(["--store", &format!("file://{}", self.path("store").display()), "convert", source]);
        command.args(["--tag", "toolkit/peak:1"]).stdin(Stdio::null()).stdout(Stdio::null());
        // Large pieces go back to the kernel when they are freed, whatever their size: what is measured is what is in use.
        command.env("MALLOC_MMAP_THRESHOLD_", (1 << 20).to_string());
        command.env("TMPDIR", self.path("work")).env("LAMINA_CONFIG", self.path("none"));
        let mut child = command.spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let mut peak = 0;
        loop {
            let now = fs::read_to_string(&status).unwrap_or_default();
            let line =
                now.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
            peak = line.map_or(peak, |kib: u64| kib << 10);
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{source}");
                return peak;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// A tar of this content as a zstd stream, which holds large ones in little.
    fn tar(&self, name: &str, fill: impl FnOnce(&mut Tar)) -> String {
        let path = self.path(name);
        let mut zstd = Command::new("zstd").args(["-q", "-1", "-o"]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
        let mut tar = Tar(BufWriter::new(Box::new(zstd.stdin.take().unwrap())));
        fill(&mut tar);
        tar.0.write_all(&[0; 1024]).unwrap();
        drop(tar);
        assert!(zstd.wait().unwrap().success());
        format!("tar:{}", path.display())
    }

    /// Refused, with these words, and nothing is left.
    fn refused(&self, source: &str, says: &[&str]) {
        self.is_refused(&self.convert(source, &self.path("work")), source, says);
    }

    fn is_refused(&self, output: &Output, source: &str, says: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{source}: {said}");
        for word in says {
            assert!(said.contains(word), "{source}: '{word}' is not in: {said}");
        }
        assert!(said.len() < 4096, "{source}: a message of {} bytes", said.len());
        assert!(!self.path("store").join("layers").exists() && !self.path("store").join("refs").exists(), "{source}");
        self.nothing_left(&self.path("work"));
    }

    fn accepted(&self, source: &str) {
        let output = self.convert(source, &self.path("work"));
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        self.nothing_left(&self.path("work"));
    }

    /// Files of a conversion that is over; what it keeps for the next one has a name and a bound.
    fn nothing_left(&self, work: &Path) {
        let mut open = vec![work.to_owned()];
        let mut bytes = 0;
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => open.push(entry.path()),
                    false => bytes += entry.metadata().unwrap().len(),
                }
            }
        }
        assert!(bytes < 64 << 10, "{bytes} bytes are left in {}", work.display());
    }
}

/// A tar on its way out.
struct Tar(BufWriter<Box<dyn Write>>);

impl Tar {
    fn entry(&mut self, name: &[u8], kind: u8, link: &[u8], size: u64) {
        if name.len() > 100 {
            self.entry(b"././@LongLink", b'L', b"", name.len() as u64);
            self.data(name);
        }
        if link.len() > 100 {
            self.entry(b"././@LongLink", b'K', b"", link.len() as u64);
            self.data(link);
        }
        let mut header = [0; 512];
        let short = |bytes: &[u8]| bytes.len().min(100);
        header[..short(name)].copy_from_slice(&name[..short(name)]);
        header[100..107].copy_from_slice(b"0000755");
        header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        header[156] = kind;
        header[157..157 + short(link)].copy_from_slice(&link[..short(link)]);
        header[257..265].copy_from_slice(b"ustar  \0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&header).unwrap();
    }

    fn data(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.write_all(&vec![0; bytes.len().next_multiple_of(512) - bytes.len()]).unwrap();
    }

    fn pax(&mut self, records: &[(&str, &[u8])]) {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length.to_string().len() + rest != length {
                length += 1;
            }
            body.extend_from_slice(format!("{length} {key}=").as_bytes());
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        self.entry(b"pax", b'x', b"", body.len() as u64);
        self.data(&body);
    }
}

fn possible(test: &str) -> bool {
    let zstd = Command::new("zstd").arg("--version").output().is_ok();
    if !zstd {
        tests::skipped(test, "zstd");
    }
    zstd
}

#[test]
fn a_tar_without_an_end_is_refused_where_no_digest_says_that_it_is_whole() {
    let place = Place::new();
    let header = |name: &str| {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let cases = [("empty", Vec::new()), ("one", header("a")), ("two", [header("a"), header("b")].concat())];
    for (name, bytes) in cases {
        fs::write(place.path(name), &bytes).unwrap();
        place.refused(&format!("tar:{}", place.path(name).display()), &[name, "cut short"]);
        fs::write(place.path(name), [bytes, vec![0; 512]].concat()).unwrap();
        place.accepted(&format!("tar:{}", place.path(name).display()));
        fs::remove_dir_all(place.path("store")).unwrap();
    }
    // What `lamina export NAME | lamina convert tar:-` is where there is no such name.
    place.refused("tar:-", &["standard input", "empty"]);
}

#[test]
fn names_and_targets_that_no_file_system_holds_are_refused_by_entry() {
    if !possible("long names") {
        return;
    }
    let place = Place::new();
    let name = [b"dir/".to_vec(), vec![b'n'; 256]].concat();
    let tar = place.tar("name", |tar| tar.entry(&name, b'0', b"", 0));
    place.refused(&tar, &["entry 'dir/nnn", "256 bytes, 255 are possible"]);
    let tar = place.tar("path", |tar| tar.entry(&b"d/".repeat(2100), b'5', b"", 0));
    place.refused(&tar, &["entry 'd/d/d", "4200 bytes, 4095 are possible"]);
    let tar = place.tar("target", |tar| tar.entry(b"dir/link", b'2', &[b't'; 5000], 0));
    place.refused(&tar, &["entry 'dir/link'", "target is too long: 5000 bytes"]);
    let tar = place.tar("hard", |tar| tar.entry(b"dir/hard", b'1', &[b't'; 5000], 0));
    place.refused(&tar, &["entry 'dir/hard'", "hard link target"]);
    let loops = place.tar("loop", |tar| {
        tar.entry(b"a", b'2', b"b", 0);
        tar.entry(b"b", b'2', b"a", 0);
        tar.entry(b"a/f", b'0', b"", 0);
    });
    place.refused(&loops, &["entry 'a'", "more than 40 symlinks"]);
}

#[test]
fn attributes_and_headers_that_are_too_large_are_refused_by_entry() {
    if !possible("large attributes") {
        return;
    }
    let place = Place::new();
    let large = vec![b'v'; 60_000];
    let names: Vec<String> = (0..6).map(|n| format!("SCHILY.xattr.user.n{n}")).collect();
    let tar = place.tar("sum", |tar| {
        tar.pax(&names.iter().map(|name| (name.as_str(), &large[..])).collect::<Vec<_>>());
        tar.entry(b"dir/file", b'0', b"", 0);
    });
    place.refused(&tar, &["dir/file", "attributes"]);
    let tar = place.tar("one", |tar| {
        tar.pax(&[("SCHILY.xattr.user.a", &vec![b'v'; 70_000])]);
        tar.entry(b"dir/file", b'0', b"", 0);
    });
    place.refused(&tar, &["dir/file", "user.a"]);
    let tar = place.tar("header", |tar| tar.pax(&[("comment", &vec![b'c'; 9 << 20])]));
    place.refused(&tar, &["extended headers are too large"]);
    let tar = place.tar("headers", |tar| {
        for at in 0..1000 {
            tar.pax(&[(&format!("k{at}"), &vec![b'c'; 1 << 20])]);
        }
    });
    place.refused(&tar, &["extended headers are too large"]);
    let tar = place.tar("names", |tar| {
        for _ in 0..1000 {
            tar.entry(b"././@LongLink", b'L', b"", 1 << 20);
            tar.data(&vec![b'n'; 1 << 20]);
        }
    });
    place.refused(&tar, &["extended headers are too large"]);
}

#[test]
fn a_small_tar_of_deep_paths_does_not_fill_the_memory() {
    if !possible("deep paths") {
        return;
    }
    let place = Place { room: LARGE_ROOM, ..Place::new() };
    // Two thousand directories each, none of which another entry has.
    let tar = place.tar("deep", |tar| {
        for at in 0..3000 {
            tar.entry(&[format!("{at:04}/").into_bytes(), b"d/".repeat(2040)].concat(), b'5', b"", 0);
        }
    });
    place.refused(&tar, &["layer", "entry '2", "more than 4194304 paths"]);
    // The same by the targets of links, none of whose directories an entry names.
    let tar = place.tar("targets", |tar| {
        for at in 0..3000 {
            tar.entry(
                format!("l{at:04}").as_bytes(),
                b'2',
                &[format!("{at:04}/").into_bytes(), b"d/".repeat(2040)].concat(),
                0,
            );
            tar.entry(format!("l{at:04}/x").as_bytes(), b'0', b"", 0);
        }
    });
    place.refused(&tar, &["layer", "entry 'l2", "more than 4194304 paths"]);
    // Many names in one deep directory: hard links that lead nowhere, and links with something below.
    let small = Place { room: 1 << 20, ..Place::new() };
    let deep = b"d/".repeat(2040);
    let tar = small.tar("hard-links", |tar| {
        (0..10_000).for_each(|at| tar.entry(&[&deep[..], format!("{at}").as_bytes()].concat(), b'1', b"x", 0));
    });
    small.refused(&tar, &["layer", "hard link to 'x'"]);
    let tar = small.tar("links", |tar| {
        for at in 0..10_000 {
            let link = [&deep[..], format!("l{at}").as_bytes()].concat();
            tar.entry(&link, b'2', b".", 0);
            tar.entry(&[&link[..], format!("/{at}").as_bytes()].concat(), b'0', b"", 0);
        }
    });
    small.accepted(&tar);
    // As deep as it goes, within all bounds, through links and with a mark at the end.
    let tar = place.tar("honest", |tar| {
        for at in 0..20 {
            tar.entry(&[format!("{at:04}/").into_bytes(), b"d/".repeat(2040)].concat(), b'5', b"", 0);
        }
        tar.entry(&[&b"0000/"[..], &b"d/".repeat(2040), b".wh.x"].concat(), b'0', b"", 0);
    });
    place.accepted(&tar);
}

#[test]
fn an_image_of_many_small_layers_over_a_deep_directory_does_not_fill_disk_or_memory() {
    let place = Place { room: 1 << 20, ..Place::new() };
    // Each relies on nineteen hundred directories, whose paths it lists: four megabytes.
    let image = |numbers: std::ops::Range<usize>| {
        let layer = |number| tests::image::layer(&[&format!("{}f{number}", "d/".repeat(1900))]);
        let lowest = tests::image::layer(&[&"d/".repeat(1900)]);
        tests::image::Image::new([vec![lowest], numbers.map(layer).collect()].concat())
    };
    let source = image(0..100).write(&place.path("many"), "example.com/many:1");
    place.refused(&source, &["layer sha256:", "take too much from the trees below them", "67108864 bytes"]);
    let few = place.path("few");
    let source = image(0..3).write(&few, "example.com/few:1");
    place.accepted(&source);
    fs::remove_dir_all(place.path("store")).unwrap();
    // Those of several images count together.
    let mut manifests = Vec::new();
    for (first, architecture) in [(0, "amd64"), (10, "arm64")] {
        let image = tests::image::Image { architecture, ..image(first..first + 10) };
        image.write(&few, "example.com/few:1");
        let index: serde_json::Value = serde_json::from_slice(&fs::read(few.join("index.json")).unwrap()).unwrap();
        let mut manifest = index["manifests"][0].clone();
        manifest["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
        manifests.push(manifest);
    }
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).to_string();
    let top = blob(&few, INDEX, index.as_bytes());
    fs::write(few.join("index.json"), format!("{{\"schemaVersion\":2,\"manifests\":[{top}]}}")).unwrap();
    let output = place.convert_with(&["--platform", "all"], &source, &place.path("work"));
    place.is_refused(&output, &source, &["layer sha256:", "take too much from the trees below them"]);
}

#[test]
fn sparse_maps_that_ask_for_endless_zeros_are_refused_by_entry() {
    if !possible("sparse maps") {
        return;
    }
    let place = Place::new();
    let far = |size: &'static str, map: &'static str| {
        move |tar: &mut Tar| {
            tar.pax(&[("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", map.as_bytes())]);
            tar.entry(b"dir/sparse", b'0', b"", 2);
            tar.data(b"xy");
        }
    };
    let tar = place.tar("far", far("4611686018427387904", "0,1,4611686018427387903,1"));
    place.refused(&tar, &["entry 'dir/sparse'", "too far apart"]);
    let tar = place.tar("beyond", far("100", "0,1,9223372036854775807,1"));
    place.refused(&tar, &["entry 'dir/sparse'", "reaches past its size"]);
    let tar = place.tar("many", |tar| {
        let map = "0,0,".repeat(1_000_000) + "0,2";
        tar.pax(&[("GNU.sparse.size", b"2"), ("GNU.sparse.map", map.as_bytes())]);
        tar.entry(b"dir/sparse", b'0', b"", 2);
        tar.data(b"xy");
        let pieces: Vec<String> = (0..300_000).map(|at| format!("{},0", at * 4096)).collect();
        for _ in 0..20 {
            tar.pax(&[("GNU.sparse.size", b"4000000000"), ("GNU.sparse.map", pieces.join(",").as_bytes())]);
            tar.entry(b"dir/other", b'0', b"", 0);
        }
    });
    place.accepted(&tar);
}

#[test]
fn documents_that_are_too_large_or_too_deep_are_refused() {
    let place = Place::new();
    let layout = place.path("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    for (index, says) in [
        ("[".repeat(1 << 20), "invalid document"),
        ("{\"manifests\":".repeat(1 << 16), "invalid document"),
        (format!("{{\"manifests\":[{}]}}", " ".repeat(9 << 20)), "larger than 8388608 bytes"),
        ("{\"manifests\":[{\"digest\":\"sha256:00\",\"size\":18446744073709551615}]}".to_owned(), "digest"),
    ] {
        fs::write(layout.join("index.json"), index).unwrap();
        let output = Command::new(program("lamina"))
            .args(["--store", &format!("file://{}", place.path("store").display()), "convert"])
            .arg(format!("oci:{}", layout.display()))
            .env("LAMINA_CONFIG", place.path("none"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_pipe_in_a_layout_is_refused_and_not_waited_for() {
    let place = Place::new();
    let layout = place.path("layout");
    fs::create_dir(&layout).unwrap();
    rustix::fs::mknodat(CWD, layout.join("index.json"), FileType::Fifo, 0o600.into(), 0).unwrap();
    let output = place.convert(&format!("oci:{}", layout.display()), &place.path("work"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("index.json is not a regular file"), "{said}");
}

/// Puts a blob into a layout; its descriptor.
fn blob(layout: &Path, media_type: &str, bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let hex: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(layout.join("blobs/sha256").join(&hex), bytes).unwrap();
    format!(r#"{{"mediaType":"{media_type}","digest":"sha256:{hex}","size":{}}}"#, bytes.len())
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

#[test]
fn images_of_too_many_documents_layers_or_files_are_refused() {
    let place = Place::new();
    let layout = place.path("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let refused = |top: &str, says: &str| {
        fs::write(layout.join("index.json"), format!("{{\"manifests\":[{top}]}}")).unwrap();
        let mut command = Command::new(program("lamina"));
        command.args(["--store", &format!("file://{}", place.path("store").display()), "convert", "--platform", "all"]);
        command.arg(format!("oci:{}", layout.display())).env("TMPDIR", place.path("work"));
        let output = command.env("LAMINA_CONFIG", place.path("none")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains(says), "{said}");
    };
    let config = blob(&layout, "application/vnd.oci.image.config.v1+json", br#"{"rootfs":{"diff_ids":[]}}"#);
    let large = |at: usize| format!(r#"{{"config":{config},"layers":[],"x":"{at}{}"}}"#, "x".repeat(8_000_000));
    let manifests: Vec<String> = (0..9).map(|at| blob(&layout, MANIFEST, large(at).as_bytes())).collect();
    let index = blob(&layout, INDEX, format!("{{\"manifests\":[{}]}}", manifests.join(",")).as_bytes());
    refused(&index, "documents have more than 67108864 bytes");
    let mut nested = blob(&layout, MANIFEST, format!(r#"{{"config":{config},"layers":[]}}"#).as_bytes());
    for _ in 0..6 {
        nested = blob(&layout, INDEX, format!("{{\"manifests\":[{nested}]}}").as_bytes());
    }
    refused(&nested, "nest too deep");
    let layer = blob(&layout, "application/vnd.oci.image.layer.v1.tar", b"");
    let layers = vec![layer; 513].join(",");
    refused(
        &blob(&layout, MANIFEST, format!(r#"{{"config":{config},"layers":[{layers}]}}"#).as_bytes()),
        "513 layers, 512",
    );
    let archive = place.path("archive.tar");
    let mut tar = Tar(BufWriter::new(Box::new(fs::File::create(&archive).unwrap())));
    (0..=1 << 17).for_each(|at| tar.entry(format!("{at}").as_bytes(), b'0', b"", 0));
    drop(tar);
    let output = place.convert(&format!("oci-archive:{}", archive.display()), &place.path("work"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("more than 131072 files"), "{said}");
}

#[test]
fn large_and_odd_inputs_that_are_honest_work_in_the_same_room() {
    if !possible("large inputs") {
        return;
    }
    let place = Place::new();
    let links = place.tar("links", |tar| {
        // A chain whose end comes last, and as many names of one file.
        for at in 0..100_000 {
            tar.entry(format!("chain/{at}").as_bytes(), b'1', format!("chain/{}", at + 1).as_bytes(), 0);
        }
        tar.entry(b"chain/100000", b'0', b"", 4);
        tar.data(b"data");
        for at in 0..100_000 {
            tar.entry(format!("names/{at}").as_bytes(), b'1', b"chain/100000", 0);
        }
    });
    place.accepted(&links);
    let many =
        place.tar("many", |tar| (0..300_000).for_each(|at| tar.entry(format!("d/{at}").as_bytes(), b'0', b"", 0)));
    place.accepted(&many);
    let whiteouts = place.tar("whiteouts", |tar| {
        (0..300_000).for_each(|at| tar.entry(format!("d/.wh.{at}").as_bytes(), b'0', b"", 0));
    });
    place.accepted(&whiteouts);
    let through = place.tar("through", |tar| {
        // Each below a link of its own, and all of them below one.
        tar.entry(b"l", b'2', b"d", 0);
        for at in 0..50_000 {
            tar.entry(format!("d/{at}").as_bytes(), b'2', b"../t", 0);
            tar.entry(format!("d/{at}/{at}").as_bytes(), b'0', b"", 0);
            tar.entry(format!("l/{at}.f").as_bytes(), b'0', b"", 0);
        }
    });
    place.accepted(&through);
    let zeros = place.tar("zeros", |tar| {
        tar.entry(b"zeros", b'0', b"", 512 << 20);
        let block = vec![0; 1 << 20];
        (0..512).for_each(|_| tar.0.write_all(&block).unwrap());
    });
    place.accepted(&zeros);
}

#[test]
fn memory_grows_by_some_hundred_bytes_an_entry() {
    if !possible("memory an entry") {
        return;
    }
    let place = Place::new();
    let fill = |tar: &mut Tar, count: u64| {
        for at in 0..count {
            let contents = format!("{at}");
            tar.entry(format!("d{}/file-number-{at:08}", at / 100).as_bytes(), b'0', b"", contents.len() as u64);
            tar.data(contents.as_bytes());
        }
    };
    let stream = |count: u64| place.tar(&format!("{count}.zst"), |tar| fill(tar, count));
    let in_place = |count: u64| {
        let path = place.path(&format!("{count}.tar"));
        let mut tar = Tar(BufWriter::new(Box::new(fs::File::create(&path).unwrap())));
        fill(&mut tar, count);
        tar.0.write_all(&[0; 1024]).unwrap();
        format!("tar:{}", path.display())
    };
    // What lies below a layer is in memory beside it, and read into it at once.
    let below = |count: u64| {
        let lower = fs::read(in_place(count).trim_start_matches("tar:")).unwrap();
        let image = tests::image::Image::new(vec![lower, tests::image::layer(&["d0/other"])]);
        image.write(&place.path(&format!("{count}")), "example.com/peak:1")
    };
    // Both fill all buffers.
    let (few, many) = (60_000, 160_000);
    let kinds: [(&str, &dyn Fn(u64) -> String); 3] = [("stream", &stream), ("in place", &in_place), ("below", &below)];
    for (kind, source) in kinds {
        let (few_peak, many_peak) = (place.peak(&source(few)), place.peak(&source(many)));
        let entry = many_peak.saturating_sub(few_peak) / (many - few);
        assert!(entry < ENTRY, "{kind}: {entry} bytes an entry: {few_peak} and {many_peak} in all");
    }
}

/// The arrays of these 400,000 entries take more than 200 MB.
#[test]
fn large_arrays_take_no_memory_that_the_kernel_cannot_take_back() {
    if !possible("large arrays in files") {
        return;
    }
    let place = Place::new();
    if let Err(error) = spill::to(&place.path("work")) {
        return eprintln!("SKIPPED: large arrays in files: needs /var/tmp on ext4, XFS or an overlay of them: {error}");
    }
    let tar = place.tar("many", |tar| {
        for at in 0..400_000 {
            tar.entry(format!("d{}/{at:0>247}", at / 100).as_bytes(), b'0', b"", 0);
        }
    });
    // Of maps it bounds those that only swap could take back.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -d 190000; exec \"$@\"", "sh"]).arg(program("lamina"));
    command.args(["--store", &format!("file://{}", place.path("store").display()), "convert", &tar]);
    command.args(["--tag", "toolkit/many:1", "--jobs", "2"]).stdin(Stdio::null());
    command.env("MALLOC_ARENA_MAX", "2").env("TOKIO_WORKER_THREADS", "2");
    command.env("TMPDIR", place.path("work")).env("LAMINA_CONFIG", place.path("none"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    place.nothing_left(&place.path("work"));
}

#[test]
fn a_full_disk_is_a_failure_that_leaves_nothing() {
    if !tests::possible("a full disk") || !possible("a full disk") {
        return;
    }
    let place = Place::new();
    let small = place.path("small");
    fs::create_dir(&small).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "none"]).arg(&small).status().unwrap();
    assert!(mount.success());
    let zeros = place.tar("large", |tar| {
        tar.entry(b"large", b'0', b"", 64 << 20);
        let noise: Vec<u8> = (0..1 << 18).flat_map(|n: u32| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        (0..64).for_each(|_| tar.0.write_all(&noise).unwrap());
    });
    let output = place.convert(&zeros, &small);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let left = Command::new("du").args(["-sk", "--apparent-size"]).arg(&small).output().unwrap();
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left"), "{said}");
    let left = String::from_utf8(left.stdout).unwrap();
    assert!(left.split('\t').next().unwrap().parse::<u64>().unwrap() < 64, "left: {left}");
    assert!(!place.path("store").join("layers").exists());
}
