//! Debian's docker-registry, on a port and in a directory of its own.

use crate::front::{Answer, Front};
use crate::image::{Image, tar};
use crate::node::Node;
use crate::tree::noise;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

/// A user that [`Options::login`] lets in: name, password, and the password as htpasswd files have it.
pub const USER: (&str, &str, &str) =
    ("robot", "secret", "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a");

/// What the registry asks for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only [`USER`] comes in.
    pub login: bool,
    /// Certificate and key, as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// A registry, ended when it is dropped.
pub struct Registry {
    /// Where it listens.
    pub address: SocketAddr,
    dir: tempfile::TempDir,
    process: Child,
}

/// The program: LAMINA_DOCKER_REGISTRY (`./test` sets it), or the system's. Says aloud when there is none.
pub fn program(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("LAMINA_DOCKER_REGISTRY").map(PathBuf::from);
    let found = named.unwrap_or_else(|| "/usr/bin/docker-registry".into());
    if !found.exists() {
        crate::skipped(test, "docker-registry (./test sets LAMINA_DOCKER_REGISTRY)");
        return None;
    }
    Some(found)
}

impl Registry {
    /// Starts one; `None` after saying so where the program is missing.
    pub fn start(test: &str, options: &Options) -> Option<Self> {
        let program = program(test)?;
        let dir = tempfile::Builder::new().prefix("registry").tempdir_in("/tmp").unwrap();
        let at = dir.path().display();
        let mut config = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {at}/data\n  delete:\n    enabled: true\n"
        );
        if options.login {
            fs::write(dir.path().join("users"), format!("{}:{}\n", USER.0, USER.2)).unwrap();
            config += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {at}/users\n");
        }
        config += "http:\n  addr: 127.0.0.1:0\n";
        if let Some((certificate, key)) = &options.tls {
            config += &format!("  tls:\n    certificate: {}\n    key: {}\n", certificate.display(), key.display());
        }
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let mut process = Command::new(program)
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = loop {
            let line = log.next().expect("the registry ended").unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split([',', '"']).next().unwrap().trim().parse().unwrap();
            }
        };
        std::thread::spawn(move || log.for_each(drop));
        Some(Self { address, dir, process })
    }

    /// The body of an answer to a GET without credentials, which must be good.
    pub fn get(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: {accept}\r\n\r\n", self.address).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        let head = String::from_utf8_lossy(&answer);
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body
    }

    /// `127.0.0.1:PORT/NAME:TAG`
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Puts an image layout's image into the registry's directory, as if somebody had pushed it; its digest.
    pub fn seed(&self, layout: &Path, repository: &str, tag: &str) -> String {
        let root = self.dir.path().join("data/docker/registry/v2");
        let own = root.join("repositories").join(repository);
        let link = |at: &str, digest: &str| {
            let path = own.join(at).join("link");
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, digest).unwrap();
        };
        for blob in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
            let path = blob.unwrap().path();
            let hex = path.file_name().unwrap().to_str().unwrap().to_owned();
            let target = root.join("blobs/sha256").join(&hex[..2]).join(&hex);
            fs::create_dir_all(&target).unwrap();
            fs::copy(&path, target.join("data")).unwrap();
            for kind in ["_layers", "_manifests/revisions"] {
                link(&format!("{kind}/sha256/{hex}"), &format!("sha256:{hex}"));
            }
        }
        let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        let digest = index["manifests"][0]["digest"].as_str().unwrap();
        link(&format!("_manifests/tags/{tag}/current"), digest);
        link(&format!("_manifests/tags/{tag}/index/sha256/{}", digest.strip_prefix("sha256:").unwrap()), digest);
        digest.to_owned()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A layout with an image of two layers, one of them large enough to break in its middle.
pub fn layout(node: &Node) -> PathBuf {
    let large = noise(7, 3 << 20);
    let image = Image::new(vec![tar(&[("etc/base", b"base"), ("data", &large)]), tar(&[("etc/top", b"top")])]);
    let directory = node.path("layout");
    image.write(&directory, "1");
    directory
}

/// The layer ids in a report of `lamina convert --json`.
pub fn layers(report: &Value) -> Vec<String> {
    let layers = report["images"][0]["layers"].as_array().unwrap();
    layers.iter().map(|layer| layer["layer"].as_str().unwrap().to_owned()).collect()
}

/// What the layout's own conversion gives.
pub fn expected(node: &Node, layout: &Path) -> Vec<String> {
    let store = format!("file://{}", node.path("expected").display());
    layers(&node.json(&["--store", &store, "convert", "--again", &format!("oci:{}", layout.display())]))
}

/// `lamina` with the credentials that `docker` (a directory) holds, and no others.
pub fn lamina(node: &Node, docker: &Path, arguments: &[&str]) -> Output {
    let path = format!("{}:{}", docker.display(), std::env::var("PATH").unwrap());
    let mut command = node.command(arguments);
    command.env("DOCKER_CONFIG", docker).env("HOME", "/nonexistent").env("PATH", path);
    for name in ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

/// What a program said on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes Docker's `config.json` into a new directory.
pub fn docker_config(node: &Node, name: &str, config: &Value) -> PathBuf {
    let directory = node.new_dir(name);
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    directory
}

/// A `config.json` with [`USER`] for a host.
pub fn login(host: &str) -> Value {
    json!({"auths": {host: {"username": USER.0, "password": USER.1}}})
}

/// A registry that wants tokens, of which every one opens `uses` requests.
pub fn token_registry(upstream: &Registry, uses: usize, realm: String) -> (Front, Front) {
    let tokens = Front::start(None, |request| {
        let body = json!({"token": format!("token-{}", request.number), "expires_in": 300}).to_string();
        Answer::Reply("200 OK", vec!["Content-Type: application/json".to_owned()], body.into_bytes())
    });
    let realm = if realm.is_empty() { format!("http://{}/token", tokens.address) } else { realm };
    let used = Mutex::new(HashMap::<String, usize>::new());
    let registry = Front::start(Some(upstream.address), move |request| {
        let token = request.header("authorization").filter(|value| value.starts_with("Bearer token-"));
        let count = |token: String| {
            let mut used = used.lock().unwrap();
            let count = used.entry(token).or_default();
            *count += 1;
            *count
        };
        match token.map(count) {
            Some(n) if n <= uses => Answer::Pass,
            _ => Answer::Reply(
                "401 Unauthorized",
                vec![format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"the registry\",scope=\"x\"")],
                vec![],
            ),
        }
    });
    (registry, tokens)
}
