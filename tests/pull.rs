//! `lamina pull` of an image for many platforms, of which the store has one, into a containerd of our own.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tests::image::{Image, digest, tar};
use tests::node::Node;

const NAME: &str = "many.local/image:1";

/// A containerd in the node's directory, with the snapshotter as a plugin.
struct Containerd<'a> {
    node: &'a Node,
    process: Child,
}

impl<'a> Containerd<'a> {
    fn start(node: &'a Node) -> Self {
        let at = node.path("containerd").display().to_string();
        let unused = [
            "grpc.v1.cri",
            "snapshotter.v1.aufs",
            "snapshotter.v1.btrfs",
            "snapshotter.v1.devmapper",
            "snapshotter.v1.zfs",
        ];
        let unused: Vec<_> = unused.iter().map(|plugin| format!("\"io.containerd.{plugin}\"")).collect();
        let text = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\ndisabled_plugins = [{}]\n[grpc]\naddress = \"{at}.sock\"\n\
             [proxy_plugins.lamina]\ntype = \"snapshot\"\naddress = \"{}\"\n",
            unused.join(","),
            node.path("sn.sock").display()
        );
        let config = node.path("containerd.toml");
        fs::write(&config, text).unwrap();
        let log = fs::File::create(node.path("containerd.log")).unwrap();
        let process = Command::new("containerd").arg("--config").arg(config).stdout(Stdio::null()).stderr(log).spawn();
        let containerd = Self { node, process: process.unwrap() };
        node.wait("containerd", |_| containerd.ctr(&["version"]).is_ok());
        containerd
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("ctr");
        let output = command.arg("--address").arg(self.node.path("containerd.sock")).args(arguments).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(format!("ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Puts a document into a layout; its descriptor.
fn put(layout: &Path, document: &Value) -> Value {
    let bytes = document.to_string();
    let digest = digest(bytes.as_bytes());
    fs::write(layout.join("blobs").join(digest.replace(':', "/")), &bytes).unwrap();
    json!({"mediaType": document["mediaType"], "digest": digest, "size": bytes.len()})
}

/// A layout of an index of an index: of two manifests, one does not say that it is for this machine, the other is for
/// another and not there.
fn layout(at: &Path) -> String {
    let source = Image::new(vec![tar(&[("etc/a", b"lower")]), tar(&[("etc/b", b"upper")])]).write(at, NAME);
    let top: Value = serde_json::from_slice(&fs::read(at.join("index.json")).unwrap()).unwrap();
    let mut ours = top["manifests"][0].clone();
    ours.as_object_mut().unwrap().remove("annotations");
    let mut theirs = ours.clone();
    theirs["digest"] = digest(b"not there").into();
    theirs["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = |manifests: Value| json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests});
    let inner = put(at, &index(json!([theirs, ours])));
    let mut outer = put(at, &index(json!([theirs, inner])));
    outer["annotations"] = json!({"org.opencontainers.image.ref.name": NAME});
    fs::write(at.join("index.json"), json!({"schemaVersion": 2, "manifests": [outer]}).to_string()).unwrap();
    source
}

#[test]
fn a_node_needs_its_own_platform_of_an_image_and_keeps_it_through_garbage_collection() {
    if !tests::possible("pull") {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) || Command::new("containerd").arg("--version").output().is_err() {
        return tests::skipped("pull", "containerd, and amd64");
    }
    let mut node = Node::default();
    let source = layout(&node.path("image"));
    let error = node.fail(3, &["convert", &source, "--platform", "all"]);
    assert!(error.contains("missing"), "{error}");
    node.run(&["convert", &source]);
    node.start_daemon();
    node.start_snapshotter();
    let containerd = Containerd::start(&node);
    node.run(&["pull", NAME, "--address", node.path("containerd.sock").to_str().unwrap()]);
    // Two indexes, a manifest, a config.
    let blobs = || containerd.ctr(&["content", "ls", "-q"]).unwrap().lines().count();
    assert_eq!(blobs(), 4);
    containerd.ctr(&["content", "prune", "references"]).unwrap();
    assert_eq!(blobs(), 4);
    // What a container of the image sees; none is run.
    containerd.ctr(&["containers", "create", "--snapshotter", "lamina", NAME, "one", "/bin/true"]).unwrap();
    let target = node.new_dir("mnt");
    let mount = containerd.ctr(&["snapshots", "--snapshotter", "lamina", "mounts", target.to_str().unwrap(), "one"]);
    assert!(Command::new("sh").args(["-c", &mount.unwrap()]).status().unwrap().success());
    for (name, text) in [("etc/a", "lower"), ("etc/b", "upper")] {
        assert_eq!(fs::read_to_string(target.join(name)).unwrap(), text);
    }
    assert!(Command::new("umount").arg(&target).status().unwrap().success());
    containerd.ctr(&["containers", "rm", "one"]).unwrap();
}
