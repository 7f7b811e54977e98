//! A containerd of the test's own: any version, in a directory of its own.

use crate::node::Node;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// What a container says last.
const END: &str = "that is all";

/// A shell's script for [`Containerd::show`].
pub fn shown(script: &str) -> String {
    format!("{script}; echo {END}; read -r _")
}

/// Running, until it is dropped.
pub struct Containerd {
    programs: PathBuf,
    socket: PathBuf,
    namespace: String,
    process: Child,
}

/// Which containerd, and how.
pub struct Setup<'a> {
    /// Of its directory below the node's.
    pub name: &'a str,
    /// Where it, its shim and ctr are.
    pub programs: &'a Path,
    /// What comes first in its PATH.
    pub tools: &'a Path,
    /// Version of its configuration.
    pub version: u8,
    /// Further sections of that.
    pub more: &'a str,
}

impl Containerd {
    /// Starts one, and waits until it answers.
    pub fn start(node: &Node, setup: &Setup<'_>) -> Self {
        let Setup { name, programs, tools, version, more } = *setup;
        let at = node.new_dir(name);
        let socket = at.join("containerd.sock");
        let config = format!(
            "version = {version}\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.images\", \
             \"io.containerd.cri.v1.runtime\", \"io.containerd.internal.v1.opt\", \"io.containerd.internal.v1.tracing\", \
             \"io.containerd.snapshotter.v1.devmapper\"]\n[grpc]\naddress = \"{}\"\n{more}",
            socket.display(),
            at = at.display(),
        );
        fs::write(at.join("config.toml"), config).unwrap();
        let log = fs::File::create(node.path(&format!("{name}.log"))).unwrap();
        let process = Command::new(programs.join("containerd"))
            .arg("--config")
            .arg(at.join("config.toml"))
            .env("PATH", path(tools, programs))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        // A name of its own: runc's state is kept by namespace, for all of the machine.
        let namespace = format!("lamina-{}-{name}", std::process::id());
        let started = Self { programs: programs.to_owned(), socket, namespace, process };
        node.wait("containerd", |_| started.ctr(&["version"]).status.success());
        started
    }

    /// Makes an image of the node's store known to it.
    pub fn pull(&self, node: &Node, image: &str) {
        let socket = self.socket.to_str().unwrap();
        node.run(&["pull", image, "--address", socket, "--namespace", &self.namespace]);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("ctr"));
        command.arg("--address").arg(&self.socket).args(["--namespace", &self.namespace]).args(arguments);
        command
    }

    /// Runs its `ctr`.
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs its `ctr` with a container of a script by [`shown`], and gives what that shows. The container ends when all of it is
    /// here: of what one says just before it ends, containerd 1.6 can lose the last.
    pub fn show(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        let mut ctr = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(ctr.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said: String = lines.take_while(|line| line != END).map(|line| line + "\n").collect();
        // One that has ended reads nothing.
        let _ = ctr.stdin.take().unwrap().write_all(b"\n");
        let output = ctr.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctr {arguments:?}: {}: {stderr}\n{said}", output.status);
        said
    }

    /// Runs its `ctr`, which must succeed; gives its stdout.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.ctr(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctr {arguments:?}: {}: {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

fn path(tools: &Path, programs: &Path) -> String {
    format!("{}:{}:{}", tools.display(), programs.display(), std::env::var("PATH").unwrap())
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
        let _ = fs::remove_dir(Path::new("/run/containerd/runc").join(&self.namespace));
    }
}
