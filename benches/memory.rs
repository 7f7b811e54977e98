//! What conversion takes of memory for many files, and what it costs to have little: one layer of small files, converted with all
//! the memory of the machine and in a control group of 256 MB. What arrays there are beyond 64 MiB lie in files of the work
//! directory (`spill`), whose pages count as resident as long as the kernel leaves them in memory.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use benches::process::{Cost, cost};
use benches::{Report, Row, median, target, tiny};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::node::program;

const ROUNDS: usize = 3;
const FILES: [u32; 3] = [500_000, 1_500_000, 4_000_000];
const LIMIT: &str = "256000000";
const BASELINE: &str = "Lamina";
const LIMITED: &str = "Lamina, in 256 MB";

/// A control group for memory, of the first or the second generation, as long as it lives.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let name = format!("lamina-bench-{}", std::process::id());
        let generations = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        generations.into_iter().find_map(|(root, limit)| {
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            // The control files of a group are there from the start; none is made.
            let limited =
                File::options().write(true).open(group.0.join(limit)).and_then(|mut f| f.write_all(LIMIT.as_bytes()));
            limited.ok().map(|()| group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A tar of as many files, a thousand a directory.
fn write(at: &Path, files: u32) {
    let mut tar = BufWriter::with_capacity(1 << 20, File::create(at).unwrap());
    let mut entry = |name: String, kind: tar::EntryType, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.write_all(header.as_bytes()).unwrap();
        tar.write_all(content).unwrap();
        tar.write_all(&[0; 512][..content.len().next_multiple_of(512) - content.len()]).unwrap();
    };
    for n in 0..files {
        let directory = format!("usr/lib/d{:05}/", n / 1000);
        if n % 1000 == 0 {
            entry(directory.clone(), tar::EntryType::Directory, b"");
        }
        entry(format!("{directory}file-{n:07}.txt"), tar::EntryType::Regular, format!("{n}\n").as_bytes());
    }
    tar.write_all(&[0; 1024]).unwrap();
    tar.into_inner().unwrap().sync_all().unwrap();
}

fn convert(work: &Path, tar: &Path, group: Option<&Group>) -> Cost {
    let out = tempfile::tempdir_in(work).unwrap();
    let script = if group.is_some() { r#"echo $$ >"$0/cgroup.procs" && exec "$@""# } else { r#"exec "$@""# };
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(group.map_or(Path::new("sh"), |group| &group.0)).arg(program("lamina"));
    command.env("TMPDIR", out.path()).arg("-q").arg("--store").arg(format!("file://{}/store", out.path().display()));
    command.args(["convert", &format!("tar:{}", tar.display()), "--tag", "base/bench:1"]);
    cost(&mut command)
}

fn main() {
    if !tests::possible("memory") {
        return;
    }
    let Some(group) = Group::new() else {
        println!("SKIPPED: memory needs a control group");
        return;
    };
    // On the disk that holds the clone, not on what /tmp may be.
    let bench = target().join("bench");
    fs::create_dir_all(&bench).unwrap();
    let work = tempfile::tempdir_in(bench).unwrap();
    let tar = work.path().join("tar");
    let (files, rounds) = if tiny() { (&[2000][..], 1) } else { (&FILES[..], ROUNDS) };
    let mut report = Report::new("memory", BASELINE);
    for files in files {
        write(&tar, *files);
        let contenders = [(BASELINE, None), (LIMITED, Some(&group))];
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (costs, (_, group)) in costs.iter_mut().zip(&contenders) {
                costs.push(convert(work.path(), &tar, *group));
            }
        }
        for (costs, (name, _)) in costs.iter().zip(contenders) {
            let peaks: Vec<f64> = costs.iter().map(|cost| cost.peak).collect();
            report.rows.push(Row {
                task: format!("{files} files"),
                name: name.to_owned(),
                seconds: costs.iter().map(|cost| cost.seconds).collect(),
                notes: vec![("peak MB".to_owned(), format!("{:.0}", median(&peaks)))],
            });
        }
    }
    report.finish();
}
