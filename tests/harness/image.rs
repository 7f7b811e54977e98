//! OCI image layouts made on the spot, honest or not.

use crate::tree::noise;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// `sha256:…` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// Chain ids of these diff ids, bottom to top.
pub fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chains: Vec<String> = Vec::new();
    for diff in diff_ids {
        let chain = match chains.last() {
            None => diff.clone(),
            Some(parent) => digest(format!("{parent} {diff}").as_bytes()),
        };
        chains.push(chain);
    }
    chains
}

/// A tar of regular files, in the given order.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A tar of entries: `name/` a directory, `name -> target` a symlink, `name = target` a hard link, else a file; what comes
/// after `:` is the owner, and makes contents differ.
pub fn layer(entries: &[&str]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let (entry, owner) = entry.split_once(':').unwrap_or((entry, "0"));
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o751);
        header.set_uid(owner.parse().unwrap());
        header.set_gid(7);
        header.set_mtime(1_600_000_000 + header.uid().unwrap());
        header.set_size(0);
        let (name, target) = match (entry.split_once(" -> "), entry.split_once(" = ")) {
            (Some((name, target)), _) => (name, Some((target, tar::EntryType::Symlink))),
            (_, Some((name, target))) => (name, Some((target, tar::EntryType::Link))),
            _ => (entry, None),
        };
        if let Some((target, kind)) = target {
            header.set_entry_type(kind);
            builder.append_link(&mut header, name, target).unwrap();
        } else if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, name, &b""[..]).unwrap();
        } else {
            let seed: u64 = owner.parse().unwrap();
            let content =
                if name.contains(".wh.") { Vec::new() } else { noise(seed, 1000 + (seed as usize % 7) * 9000) };
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, &content[..]).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// An image being made: layers as tars, and what it says of itself.
pub struct Image {
    /// The layers' tars, bottom to top.
    pub layers: Vec<Vec<u8>>,
    /// What the config claims; honest unless changed.
    pub diff_ids: Vec<String>,
    /// Annotations of each layer's descriptor.
    pub annotations: Vec<Value>,
    /// What it runs on, beside Linux.
    pub architecture: &'static str,
}

impl Image {
    /// An honest image of these layers.
    pub fn new(layers: Vec<Vec<u8>>) -> Self {
        let diff_ids = layers.iter().map(|l| digest(l)).collect();
        let annotations = layers.iter().map(|_| json!({})).collect();
        Self { layers, diff_ids, annotations, architecture: "amd64" }
    }

    /// Chain ids as the config claims them.
    pub fn chain_ids(&self) -> Vec<String> {
        chain_ids(&self.diff_ids)
    }

    /// Writes it as an OCI layout at `dir` with the reference name `name`; gives the SOURCE for `lamina convert`.
    pub fn write(&self, dir: &Path, name: &str) -> String {
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let put = |bytes: &[u8]| -> Value {
            let digest = digest(bytes);
            fs::write(blobs.join(digest.strip_prefix("sha256:").unwrap()), bytes).unwrap();
            json!({"digest": digest, "size": bytes.len()})
        };
        let mut layers = Vec::new();
        for (tar, annotations) in self.layers.iter().zip(&self.annotations) {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(tar).unwrap();
            let mut descriptor = put(&gzip.finish().unwrap());
            descriptor["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
            descriptor["annotations"] = annotations.clone();
            layers.push(descriptor);
        }
        let config = json!({
            "architecture": self.architecture, "os": "linux", "config": {"Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
        });
        let mut config = put(config.to_string().as_bytes());
        config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": layers,
        });
        let mut manifest = put(manifest.to_string().as_bytes());
        manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
        manifest["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        fs::write(dir.join("index.json"), index.to_string()).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        format!("oci:{}", dir.display())
    }
}

/// Where a layer file lies in a directory store.
pub fn layer_file(store: &Path, id: &str) -> PathBuf {
    store.join("layers").join(&id[..2]).join(id)
}
