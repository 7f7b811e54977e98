//! Debian's docker-registry, on a port and in a directory of its own.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
