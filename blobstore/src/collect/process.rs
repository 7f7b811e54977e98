//! Which process this is, for others that want to know whether it still runs.

use crate::pause::random;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// A process, among all there are: where its number means something, and the number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Process {
    /// Boot of a kernel and namespace of process numbers; empty: not known.
    place: String,
    pid: u32,
}

impl Process {
    pub(super) fn this() -> Self {
        Self { place: place().unwrap_or_default(), pid: std::process::id() }
    }

    /// Whether it could be seen from here, and is not there.
    pub(super) fn is_gone_here(&self) -> bool {
        let here = !self.place.is_empty() && Some(&self.place) == place().as_ref();
        here && has_ended(&Path::new("/proc").join(self.pid.to_string()))
    }
}

/// Whether a process is not there, or does nothing any more: one that nobody waits for stays in the table.
fn has_ended(process: &Path) -> bool {
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return !process.exists() };
    // Behind the name, which may hold anything, is the state.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    // Other threads can outlive the first.
    state == Some('Z') && fs::read_dir(process.join("task")).is_ok_and(|threads| threads.count() == 1)
}

fn place() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// This machine's name, with nothing in it that could not stand in a key.
pub(super) fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    name.chars().take(60).map(kept).collect()
}

/// The name of a holder on this node that no other has: not another machine, not one that was copied, not another daemon here.
/// `place` is what tells apart those of one machine. It is another one after a reboot; leases of the old name end. (Who
/// writes profiles keeps its name: [`crate::profile::node_name`].)
pub fn holder_name(place: &str) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_else(|_| random().to_string());
    let hash = blake3::hash(format!("{} {boot} {place}", host()).as_bytes());
    format!("{}-{}", host(), hash.to_hex().split_at(16).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_gone_when_it_has_ended_waited_for_or_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process { pid: child.id(), ..Process::this() };
        assert!(!process.is_gone_here() && !Process::this().is_gone_here());
        child.kill().unwrap();
        while !process.is_gone_here() {
            std::thread::yield_now();
        }
        assert!(Path::new("/proc").join(child.id().to_string()).exists(), "nobody has waited for it");
        child.wait().unwrap();
        assert!(process.is_gone_here());
        let elsewhere = Process { place: "another machine".to_owned(), ..process };
        assert!(!elsewhere.is_gone_here(), "nobody can tell");
    }
}
