//! A node: store, cache, daemons and mounts in a directory of its own, taken down at the end whatever happens.

use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub struct Node {
    dir: tempfile::TempDir,
    daemon: Option<Child>,
    snapshotter: Option<Child>,
}

/// A program of this build, beside the running test's.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let path = profile.join(name);
    assert!(path.exists(), "{} is missing: build it first (cargo build --workspace)", path.display());
    path
}

impl Default for Node {
    fn default() -> Self {
        Self::new("")
    }
}

impl Node {
    /// A node whose configuration has `more` at its end: a whole section, or several.
    pub fn new(more: &str) -> Self {
        Self::with_daemon("", more)
    }

    /// A node with these lines in its `[daemon]` section, and `more` sections.
    pub fn with_daemon(daemon: &str, more: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("lamina").tempdir_in("/tmp").unwrap();
        let at = dir.path().display();
        // The whole suite can be run in another form of the kernel face than the one that is found by trying.
        let face = match std::env::var("LAMINA_TEST_FACE") {
            Ok(face) if !daemon.contains("face") => format!("face = \"{face}\"\n"),
            _ => String::new(),
        };
        let text = format!(
            "[store]\nurl = \"file://{at}/store\"\nadded_latency = \"0s\"\n[cache]\ndir = \"{at}/cache\"\nreserve = \"0%\"\n[daemon]\nrun = \"{at}/run\"\n\
             metrics = \"\"\n{face}{daemon}\n[snapshotter]\nroot = \"{at}/sn\"\naddress = \"{at}/sn.sock\"\nmetrics = \"\"\n{more}\n"
        );
        fs::write(dir.path().join("config.toml"), text).unwrap();
        Self { dir, daemon: None, snapshotter: None }
    }

    /// Changes a text in the configuration; daemons see it at their next start.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        // At once: a worker that starts now must not read half of it.
        let new = self.path("config.new");
        fs::write(&new, text.replace(from, to)).unwrap();
        fs::rename(new, self.config()).unwrap();
    }

    /// Has the configuration name another store than the node's own, with more sections.
    pub fn use_store(&self, url: &str, sections: &str) {
        self.reconfigure(&format!("file://{}", self.path("store").display()), url);
        self.reconfigure("[cache]", &format!("{sections}[cache]"));
    }

    /// A path in the node's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new directory in the node's directory.
    pub fn new_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&path).unwrap();
        path
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("config.toml")
    }

    /// The log of a daemon, so far.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    fn start(&self, name: &str) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.path(&format!("{name}.log"))).unwrap();
        Command::new(program(name))
            .arg("--config")
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Starts laminad and waits until it serves.
    pub fn start_daemon(&mut self) {
        self.daemon = Some(self.start("laminad"));
        self.wait("laminad to serve", |node| node.status().is_some());
    }

    /// Starts lamina-snapshotter and waits for its socket.
    pub fn start_snapshotter(&mut self) {
        self.snapshotter = Some(self.start("lamina-snapshotter"));
        self.wait("the snapshotter's socket", |node| {
            std::os::unix::net::UnixStream::connect(node.path("sn.sock")).is_ok()
        });
    }

    /// Asks laminad to end, and waits for it. Gives whether it ended well.
    pub fn stop_daemon(&mut self) -> bool {
        let mut daemon = self.daemon.take().unwrap();
        terminate(&daemon);
        daemon.wait().unwrap().success()
    }

    /// Kills the holder and its worker: what a crash of the machine's memory would do.
    pub fn kill_daemon(&mut self) {
        let worker = self.status().map(|s| pid(&s));
        self.kill_holder();
        if let Some(worker) = worker {
            let _ = rustix::process::kill_process(worker, rustix::process::Signal::KILL);
        }
    }

    /// Kills the holder alone.
    pub fn kill_holder(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Ends the snapshotter, by SIGKILL when `hard`.
    pub fn stop_snapshotter(&mut self, hard: bool) {
        let mut snapshotter = self.snapshotter.take().unwrap();
        match hard {
            true => snapshotter.kill().unwrap(),
            false => terminate(&snapshotter),
        }
        snapshotter.wait().unwrap();
    }

    /// `lamina`, to be run. Conversions work in the node's directory `work`, where no other test's are.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("lamina"));
        command.env("TMPDIR", self.new_dir("work")).arg("--config").arg(self.config()).args(arguments);
        command
    }

    /// Runs `lamina`.
    pub fn lamina(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs `lamina`, which must succeed, and gives its stdout.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.lamina(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "lamina {arguments:?}: {}: {stderr}\n{}", output.status, self.log("laminad"));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `lamina`, which must exit with `status`, and gives its stderr.
    pub fn fail(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.lamina(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "lamina {arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    /// Runs `lamina --json`, which must succeed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let with: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.run(&with)).unwrap()
    }

    /// The daemon's status, if it answers.
    pub fn status(&self) -> Option<Value> {
        let output = self.lamina(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The metrics page of a daemon that has one, at the address that its log tells.
    pub fn metrics(&self, daemon: &str) -> String {
        let log = self.log(daemon);
        let line = log.lines().rfind(|line| line.contains("metrics are at http://")).unwrap();
        let address = line.split("http://").nth(1).unwrap().split("/metrics").next().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    /// Converts a source and has the result compared with it; gives the report.
    pub fn convert(&self, source: &str, options: &[&str]) -> Value {
        let report = self.json(&[&["convert", source][..], options].concat());
        // Only the tag is an option of both.
        let tag = options.windows(2).find(|pair| pair[0] == "--tag").unwrap_or_default();
        self.run(&[&["verify", source][..], tag].concat());
        report
    }

    /// Converts a directory into a layer tagged `tag`; gives the layer's id.
    pub fn convert_dir(&self, dir: &Path, tag: &str) -> String {
        let report = self.convert(&format!("dir:{}", dir.display()), &["--tag", tag]);
        report["images"][0]["layers"][0]["layer"].as_str().unwrap().to_owned()
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            let logs = || format!("{}\n{}", self.log("laminad"), self.log("lamina-snapshotter"));
            assert!(start.elapsed() < PATIENCE, "waited too long for {what}\n{}", logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The file that says how many of a FUSE mount's requests have no answer yet.
pub fn waiting_file(mount: &Path) -> PathBuf {
    const CONTROL: &str = "/sys/fs/fuse/connections";
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|l| l.split(' ').nth(4) == mount.to_str()).unwrap();
    let minor = line.split(' ').nth(2).unwrap().split_once(':').unwrap().1;
    let file = Path::new(CONTROL).join(minor).join("waiting");
    if !file.exists() {
        // systemd mounts it at boot; where there is none, nobody did.
        let mounted = Command::new("mount").args(["-t", "fusectl", "fusectl", CONTROL]).status();
        assert!(mounted.unwrap().success());
    }
    file
}

/// The worker's process id in a status.
pub fn pid(status: &Value) -> rustix::process::Pid {
    let pid = i32::try_from(status["pid"].as_u64().unwrap()).unwrap();
    rustix::process::Pid::from_raw(pid).unwrap()
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

impl Drop for Node {
    fn drop(&mut self) {
        for mut child in [self.snapshotter.take(), self.daemon.take()].into_iter().flatten() {
            terminate(&child);
            let _ = child.wait();
        }
        // Whatever a failed test left mounted below the directory, newest first.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for target in mounts.lines().rev().filter_map(|l| l.split(' ').nth(4)) {
            if Path::new(target).starts_with(self.dir.path()) {
                let _ = rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH);
            }
        }
        if std::thread::panicking() {
            println!(
                "--- laminad's log\n{}\n--- the snapshotter's log\n{}",
                self.log("laminad"),
                self.log("lamina-snapshotter")
            );
        }
    }
}
