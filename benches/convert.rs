//! How fast an image is converted, as whole processes: wall time, processor time, peak memory, and what comes out.
//!
//! One tree of Debian, Python and gcc as a tar, a gzipped tar and a directory; Lamina writes it durably into a new store.
//! The peers do the least that has to be done with it: `zstd -3` on all processors compresses the tar, `gzip -dc` inflates it,
//! `mkfs.erofs` makes an image of the directory, without a sync but for one of them. Everything is in the page cache before.
//! `LAMINA_BENCH_TAR=FILE` takes another tar.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::images::{image, shell, succeed, unpack};
use benches::process::{Cost, cost};
use benches::{Report, Row, median, target, tiny};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::node::program;

const ROUNDS: usize = 7;
const BASELINE: &str = "zstd -3, all processors, tar";

/// The tree in its three forms.
struct Input {
    tar: PathBuf,
    gzip: PathBuf,
    tree: PathBuf,
}

/// A process that makes something of the input, in a directory that is new each time.
struct Contender<'a> {
    name: &'static str,
    /// Gives the command for an output directory.
    command: Box<dyn Fn(&Path) -> Command + 'a>,
}

fn prepare(work: &Path) -> Input {
    let (tar, gzip, tree) = (work.join("tar"), work.join("tar.gz"), work.join("tree"));
    fs::create_dir(&tree).unwrap();
    match std::env::var_os("LAMINA_BENCH_TAR") {
        Some(given) => {
            fs::copy(given, &tar).unwrap();
            succeed(&mut shell(r#"tar -xpf "$1" -C "$2" --numeric-owner"#, &[&tar, &tree]));
        }
        None => {
            unpack(&image("python-image"), &tree);
            succeed(&mut shell(r#"tar -cf "$1" -C "$2" --numeric-owner --sort=name ."#, &[&tar, &tree]));
        }
    }
    succeed(&mut shell(r#"gzip -n -6 <"$1" >"$2""#, &[&tar, &gzip]));
    // Written now, and not while something is measured.
    succeed(&mut shell(r#"sync -f "$1""#, &[&tar]));
    Input { tar, gzip, tree }
}

fn lamina<'a>(name: &'static str, kind: &'a str, from: &'a Path, options: &'a [&'a str]) -> Contender<'a> {
    let command = move |out: &Path| {
        let mut command = Command::new(program("lamina"));
        command.env("TMPDIR", out).arg("-q").arg("--store").arg(format!("file://{}/store", out.display()));
        command.args(["convert", &format!("{kind}:{}", from.display()), "--tag", "base/bench:1"]).args(options);
        command
    };
    Contender { name, command: Box::new(command) }
}

fn peer<'a>(name: &'static str, script: &'static str, from: &'a Path) -> Contender<'a> {
    Contender { name, command: Box::new(move |out| shell(script, &[from, &out.join("out")])) }
}

fn contenders(input: &Input) -> Vec<Contender<'_>> {
    let Input { tar, gzip, tree } = input;
    vec![
        peer(BASELINE, r#"exec zstd -q -3 -T0 "$1" -o "$2""#, tar),
        peer("the same, synced as a layer is", r#"zstd -q -3 -T0 "$1" -o "$2" && exec sync "$2""#, tar),
        lamina("Lamina, tar", "tar", tar, &[]),
        lamina("Lamina, tar, level 9", "tar", tar, &["--level", "9"]),
        peer("gzip -dc, tar.gz", r#"gzip -dc "$1" | wc -c"#, gzip),
        lamina("Lamina, tar.gz", "tar", gzip, &[]),
        peer("mkfs.erofs, directory", r#"exec mkfs.erofs "$2" "$1""#, tree),
        lamina("Lamina, directory", "dir", tree, &[]),
    ]
}

/// Bytes of the files in a directory.
fn size(at: &Path) -> u64 {
    let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| if e.file_type().unwrap().is_dir() { size(&e.path()) } else { e.metadata().unwrap().len() }).sum()
}

fn row(name: &str, costs: &[Cost], bytes: u64) -> Row {
    let figure = |of: fn(&Cost) -> f64| median(&costs.iter().map(of).collect::<Vec<_>>());
    let mut notes = vec![
        ("CPU s".to_owned(), format!("{:.2}", figure(|cost| cost.cpu))),
        ("peak MB".to_owned(), format!("{:.0}", figure(|cost| cost.peak))),
    ];
    if bytes > 0 {
        notes.push(("MB out".to_owned(), format!("{:.1}", bytes as f64 / 1e6)));
    }
    let seconds = costs.iter().map(|cost| cost.seconds).collect();
    Row { task: "convert".to_owned(), name: name.to_owned(), seconds, notes }
}

fn main() {
    for needed in ["zstd", "gzip", "mkfs.erofs"] {
        if Command::new(needed).arg("--help").output().is_err() {
            println!("SKIPPED: convert needs {needed}");
            return;
        }
    }
    if !tests::possible("convert") {
        return;
    }
    // On the disk that holds the clone, not on what /tmp may be.
    let bench = target().join("bench");
    fs::create_dir_all(&bench).unwrap();
    let work = tempfile::tempdir_in(bench).unwrap();
    let input = prepare(work.path());
    let contenders = contenders(&input);
    let mut costs = vec![Vec::new(); contenders.len()];
    let mut bytes = vec![0; contenders.len()];
    for _ in 0..if tiny() { 1 } else { ROUNDS } {
        for (i, contender) in contenders.iter().enumerate() {
            let out = tempfile::tempdir_in(work.path()).unwrap();
            costs[i].push(cost(&mut (contender.command)(out.path())));
            bytes[i] = size(out.path());
        }
    }
    let mut report = Report::new("convert", BASELINE);
    for (i, contender) in contenders.iter().enumerate() {
        report.rows.push(row(contender.name, &costs[i], bytes[i]));
    }
    report.finish();
}
