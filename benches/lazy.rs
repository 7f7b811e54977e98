//! Comparisons of what begins cold, and Lamina as a contender in them.

use crate::away::{Away, STORE};
use crate::{Report, Row, drop_caches, median};
use blobstore::layer::Index;
use blobstore::profile::Profile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tests::node::Node;

/// The name under which the image that is compared is converted.
pub const IMAGE: &str = "bench.local/image:1";

/// Lines of `[fetch]`: each chunk that is read is a request, and there are no others.
pub const NOTHING_AHEAD: &str = "readahead = 0\nneighbours = false\ncoalesce = 0\nhedge = \"off\"\n";

/// Lines of `[profile]`: a run leaves nothing to the next one.
const NO_PROFILE: &str = "record = \"off\"\nreplay = 0\n";

/// The same of a directory.
const LAYER: &str = "base/bench:1";

/// Something with a tree in it that can be made cold and mounted.
pub trait Contender {
    /// What the report calls it.
    fn name(&self) -> String;
    /// Makes everything cold and gives the root of the tree.
    fn begin(&mut self) -> PathBuf;
    /// Unmounts; gives what is to be noted of this run.
    fn end(&mut self) -> Vec<(String, f64)>;
}

/// Times a task, which is given the root of the tree: in each round every contender runs it once, from cold. The report gets
/// a row for each, with the medians of what it noted.
pub fn compare(
    report: &mut Report,
    task: &str,
    contenders: &mut [Box<dyn Contender>],
    rounds: usize,
    run: impl Fn(&Path),
) {
    let mut seconds = vec![Vec::new(); contenders.len()];
    let mut noted: Vec<Vec<Vec<(String, f64)>>> = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for (i, contender) in contenders.iter_mut().enumerate() {
            let root = contender.begin();
            let start = Instant::now();
            run(&root);
            seconds[i].push(start.elapsed().as_secs_f64());
            noted[i].push(contender.end());
        }
    }
    for ((contender, seconds), noted) in contenders.iter().zip(seconds).zip(noted) {
        let note = |n: usize| {
            let values: Vec<f64> = noted.iter().map(|round| round[n].1).collect();
            (noted[0][n].0.clone(), format!("{:.1}", median(&values)))
        };
        let notes = (0..noted[0].len()).map(note).collect();
        report.rows.push(Row { task: task.to_owned(), name: contender.name(), seconds, notes });
    }
}

/// A tree as files on the disk.
pub struct Ext4(pub PathBuf);

impl Ext4 {
    /// The tree that Lamina shows, copied.
    pub fn copied(from: &mut Lamina, to: &Path) -> Self {
        let source = from.begin();
        let status = Command::new("cp").args(["-a", "--one-file-system"]).arg(source).arg(to).status();
        assert!(status.unwrap().success());
        from.end();
        Self(to.to_owned())
    }
}

impl Contender for Ext4 {
    fn name(&self) -> String {
        "ext4, local".to_owned()
    }

    fn begin(&mut self) -> PathBuf {
        drop_caches();
        self.0.clone()
    }

    fn end(&mut self) -> Vec<(String, f64)> {
        Vec::new()
    }
}

/// An image converted into a store with latency, nothing of it local: each run has a new cache and a new daemon.
pub struct Lamina {
    node: Node,
    /// Where the store's objects lie, as files.
    store: PathBuf,
    /// The server of the store, if it has one.
    away: Option<Away>,
    name: String,
    reference: &'static str,
    watch: Option<InFlight>,
    at_once: bool,
}

impl Lamina {
    /// Converts a layout with the given options, into a store whose every request then takes `latency`.
    pub fn new(name: String, layout: &Path, options: &[&str], latency: &str) -> Self {
        Self::with_fetch(name, layout, options, latency, "")
    }

    /// As [`Lamina::new`], with these lines in the section `[fetch]` of the configuration.
    pub fn with_fetch(name: String, layout: &Path, options: &[&str], latency: &str, fetch: &str) -> Self {
        let source = format!("oci:{}", layout.display());
        Self::of([&["convert", &source, "--name", IMAGE][..], options].concat(), name, IMAGE, latency, fetch)
    }

    /// Converts a layout into a bucket that is then `latency` away; `None` after saying so where there is no S3 server.
    pub fn in_bucket(name: &str, layout: &Path, latency: Duration) -> Option<Self> {
        let source = format!("oci:{}", layout.display());
        Self::of_bucket(&["convert", &source, "--name", IMAGE], name, IMAGE, "", latency)
    }

    /// The same of a directory as a layer of its own, with lines of `[fetch]`.
    pub fn directory_in_bucket(name: &str, directory: &Path, fetch: &str, latency: Duration) -> Option<Self> {
        let source = format!("dir:{}", directory.display());
        Self::of_bucket(&["convert", &source, "--tag", LAYER], name, LAYER, fetch, latency)
    }

    fn of_bucket(
        convert: &[&str],
        name: &str,
        reference: &'static str,
        fetch: &str,
        latency: Duration,
    ) -> Option<Self> {
        let away = Away::start(name, latency)?;
        let node = Self::node(fetch);
        node.use_store(STORE, &away.near());
        node.run(convert);
        node.reconfigure(&away.near(), &away.far());
        let store = away.files();
        Some(Self { node, store, away: Some(away), name: name.to_owned(), reference, watch: None, at_once: false })
    }

    fn node(fetch: &str) -> Node {
        Node::new(&format!("[fetch]\n{fetch}[profile]\n{NO_PROFILE}"))
    }

    fn of(convert: Vec<&str>, name: String, reference: &'static str, latency: &str, fetch: &str) -> Self {
        let node = Self::node(fetch);
        node.run(&convert);
        node.reconfigure("added_latency = \"0s\"", &format!("added_latency = \"{latency}\""));
        let store = node.path("store");
        Self { node, store, away: None, name, reference, watch: None, at_once: false }
    }

    /// Lets what is timed begin at once when it is mounted: what is fetched ahead has no time that a container would not
    /// give it.
    pub fn at_once(mut self) -> Self {
        self.at_once = true;
        self
    }

    /// Records a start of a program that is run in the tree, as the node `recorder`; starts are replayed from now on, and
    /// recorded no more.
    pub fn record(&mut self, run: impl Fn(&Path)) {
        self.node.reconfigure(NO_PROFILE, "record = \"store\"\nreplay = 0\nquiet = \"1s\"\nnode = \"recorder\"\n");
        let profiles = self.store.join("node/profiles");
        let root = self.begin();
        run(&root);
        let files = || fs::read_dir(&profiles).map_or(0, Iterator::count);
        // All layers' recordings of a start end together.
        self.node.wait("a profile", |_| files() > 0);
        std::thread::sleep(Duration::from_secs(1));
        self.end();
        self.node.reconfigure("record = \"store\"\nreplay = 0\n", "record = \"off\"\n");
        self.node.reconfigure("node = \"recorder\"", "node = \"reader\"");
    }

    /// Converts the layout anew with what its recorded start read first, and records a start of that.
    pub fn lay_out(&mut self, layout: &Path, run: impl Fn(&Path)) {
        let list = self.node.path("list");
        fs::write(&list, self.node.run(&["inspect", IMAGE, "--profile"])).unwrap();
        let source = format!("oci:{}", layout.display());
        let convert = ["convert", &source, "--name", IMAGE, "--again", "--profile", list.to_str().unwrap()];
        match &self.away {
            None => drop(self.node.run(&convert)),
            Some(away) => {
                self.node.reconfigure(&away.far(), &away.near());
                self.node.run(&convert);
                self.node.reconfigure(&away.near(), &away.far());
            }
        }
        fs::remove_dir_all(self.store.join("node")).unwrap();
        self.node.reconfigure("node = \"reader\"", "node = \"recorder\"");
        self.node.reconfigure("record = \"off\"\nquiet = \"1s\"\nnode = \"recorder\"\n", NO_PROFILE);
        self.record(run);
    }

    /// Gives the store's profiles, each with the index of its layer, for something else in their place.
    pub fn change_profiles(&mut self, change: impl Fn(&Index, Profile) -> Profile) {
        for layer in fs::read_dir(self.store.join("node/profiles")).unwrap() {
            let layer = layer.unwrap();
            let id = layer.file_name().into_string().unwrap();
            let file = self.store.join("layers").join(&id[..2]).join(&id);
            let index = Index::of_file(&fs::File::open(file).unwrap()).unwrap();
            let path = layer.path().join("recorder");
            let profile = Profile::decode(&fs::read(&path).unwrap(), &index).unwrap();
            fs::write(path, change(&index, profile).encode()).unwrap();
        }
    }

    /// Bytes of the layer files in the store.
    fn stored(&self) -> u64 {
        fn bytes(at: &Path) -> u64 {
            let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
            entries
                .map(|e| if e.file_type().unwrap().is_dir() { bytes(&e.path()) } else { e.metadata().unwrap().len() })
                .sum()
        }
        bytes(&self.store.join("layers"))
    }
}

impl Contender for Lamina {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn begin(&mut self) -> PathBuf {
        self.node.start_daemon();
        let target = self.node.new_dir("mnt");
        if self.at_once {
            drop_caches();
        }
        self.node.run(&["mount", self.reference, target.to_str().unwrap()]);
        if !self.at_once {
            drop_caches();
        }
        self.watch = Some(InFlight::watch(&self.node.path("run/dev")));
        target
    }

    fn end(&mut self) -> Vec<(String, f64)> {
        let (mean, most) = self.watch.take().unwrap().finish();
        let status = self.node.status().unwrap();
        self.node.run(&["umount", self.node.path("mnt").to_str().unwrap()]);
        assert!(self.node.stop_daemon());
        fs::remove_dir_all(self.node.path("cache")).unwrap();
        vec![
            ("MB stored".to_owned(), self.stored() as f64 / 1e6),
            ("MB fetched".to_owned(), status["fetched_bytes"].as_f64().unwrap() / 1e6),
            ("requests".to_owned(), status["fetches"].as_f64().unwrap()),
            ("in flight, mean".to_owned(), mean),
            ("in flight, most".to_owned(), most),
        ]
    }
}

/// Counts the requests that wait for the daemon, every half millisecond.
struct InFlight {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

impl InFlight {
    fn watch(devices: &Path) -> Self {
        let waiting = tests::node::waiting_file(devices);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let text = fs::read_to_string(&waiting).unwrap_or_default();
                seen.push(text.trim().parse().unwrap_or(0.0));
                std::thread::sleep(Duration::from_micros(500));
            }
            seen
        });
        Self { stop, thread }
    }

    /// Mean over the moments when any waited, and the most.
    fn finish(self) -> (f64, f64) {
        self.stop.store(true, Ordering::Relaxed);
        let mut seen = self.thread.join().unwrap();
        seen.retain(|n| *n > 0.0);
        let most = seen.iter().copied().fold(0.0, f64::max);
        (seen.iter().sum::<f64>() / seen.len().max(1) as f64, most)
    }
}
