//! An S3 server, on a port and in a directory of its own: s3s-fs, as `tests/s3` builds it.

use blobstore::store::{S3Settings, Settings};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The key that it lets in, and its secret.
pub const KEY: (&str, &str) = ("TESTKEY", "test/secret+key");

/// A name below which buckets may stand in the host's name.
pub const DOMAIN: &str = "s3.test";

/// A server, ended when it is dropped.
pub struct S3 {
    /// Where it listens.
    pub address: SocketAddr,
    dir: tempfile::TempDir,
    process: Child,
}

/// The program: LAMINA_TEST_S3 (`./test` sets it), or what `cargo build` in `tests/s3` made. Says aloud when there is none.
fn program(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("LAMINA_TEST_S3").map(PathBuf::from);
    let built = |profile| Path::new(env!("CARGO_MANIFEST_DIR")).join("s3/target").join(profile).join("lamina-test-s3");
    let found = named.into_iter().chain(["release", "debug"].map(built)).find(|path| path.exists());
    if found.is_none() {
        crate::skipped(test, "an S3 server (./test builds one; or cargo build in tests/s3)");
    }
    found
}

impl S3 {
    /// Starts one with the buckets `bucket` and `other`; `None` after saying so where the program is missing.
    pub fn start(test: &str) -> Option<Self> {
        let program = program(test)?;
        let dir = tempfile::Builder::new().prefix("s3").tempdir_in("/tmp").unwrap();
        for bucket in ["bucket", "other"] {
            fs::create_dir(dir.path().join(bucket)).unwrap();
        }
        let mut process =
            Command::new(program).arg(dir.path()).args([KEY.0, KEY.1, DOMAIN]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().expect("the S3 server's address");
        Some(Self { address, dir, process })
    }

    /// The file in which it keeps an object.
    pub fn file(&self, bucket: &str, key: &str) -> PathBuf {
        self.dir.path().join(bucket).join(key)
    }

    /// How many files of parts it keeps, of uploads that came to no end.
    pub fn parts(&self) -> usize {
        let names = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().contains("part")).count()
    }

    /// Settings to use it with.
    pub fn settings(&self) -> Settings {
        settings(self.address)
    }
}

/// Settings for an endpoint without TLS that lets [`KEY`] in.
pub fn settings(address: SocketAddr) -> Settings {
    let s3 = S3Settings {
        endpoint: Some(format!("http://{address}")),
        allow_http: true,
        access_key_id: Some(KEY.0.to_owned()),
        secret_access_key: Some(KEY.1.into()),
        ..S3Settings::default()
    };
    Settings { s3, ..Settings::default() }
}

/// The same as the configuration's section.
pub fn section(address: SocketAddr) -> String {
    format!(
        "[store.s3]\nendpoint = \"http://{address}\"\nallow_http = true\naccess_key_id = \"{}\"\nsecret_access_key = \"{}\"\n",
        KEY.0, KEY.1
    )
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
