//! Image layouts and stores in temporary directories.

use blobstore::refs::{Digest, Refs, StackEntry, layer_key};
use blobstore::store;
use converter::{Comparison, Options, Report, Result, Source};
use erofs::{Content, Image};
use std::io::Read;
use std::path::Path;
use tempfile::{NamedTempFile, TempDir};

/// A tar entry: name, type, owner, data or link target.
pub(crate) struct Item(String, tar::EntryType, u64, Vec<u8>);

pub(crate) fn file(name: &str, data: &[u8]) -> Item {
    Item(name.to_owned(), tar::EntryType::Regular, 0, data.to_vec())
}

pub(crate) fn dir(name: &str, uid: u64) -> Item {
    Item(format!("{name}/"), tar::EntryType::Directory, uid, Vec::new())
}

pub(crate) fn link(name: &str, target: &str) -> Item {
    Item(name.to_owned(), tar::EntryType::Link, 0, target.into())
}

pub(crate) fn tar(items: &[Item]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for Item(name, kind, uid, data) in items {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_uid(*uid);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        let is_link = *kind == tar::EntryType::Link;
        header.set_size(if is_link { 0 } else { data.len() as u64 });
        match is_link {
            true => builder.append_link(&mut header, name, std::str::from_utf8(data).unwrap()).unwrap(),
            false => builder.append_data(&mut header, name, &data[..]).unwrap(),
        }
    }
    builder.into_inner().unwrap()
}

/// An OCI image layout under construction.
pub(crate) struct Layout {
    directory: TempDir,
    gzip: bool,
    edit: Option<(String, String)>,
}

impl Layout {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
        Self { directory, gzip: false, edit: None }
    }

    /// Layers will be compressed.
    pub(crate) fn gzip(mut self) -> Self {
        self.gzip = true;
        self
    }

    /// The config will have a text replaced.
    pub(crate) fn edit_config(mut self, find: &str, put: &str) -> Self {
        self.edit = Some((find.to_owned(), put.to_owned()));
        self
    }

    pub(crate) fn source(&self) -> Source {
        Source::Oci { directory: self.directory.path().to_owned(), reference: None }
    }

    /// A layout of one image under a reference name.
    pub(crate) fn image(&self, layers: &[&[Item]], platform: &str, name: &str) {
        let manifest = self.manifest(layers, platform);
        self.top(&self.descriptor(&manifest, MANIFEST, None), name);
    }

    /// Adds a manifest; its digest.
    pub(crate) fn manifest(&self, layers: &[&[Item]], platform: &str) -> String {
        let (mut diff_ids, mut descriptors) = (Vec::new(), Vec::new());
        for layer in layers {
            let tar = tar(layer);
            diff_ids.push(format!("\"{}\"", Digest::of(&tar)));
            let blob = if self.gzip { gzip(&tar) } else { tar };
            let kind = if self.gzip { "tar+gzip" } else { "tar" };
            descriptors.push(self.descriptor(
                &self.blob(&blob),
                &format!("application/vnd.oci.image.layer.v1.{kind}"),
                None,
            ));
        }
        let (os, architecture) = platform.split_once('/').unwrap();
        let mut config = format!(
            r#"{{"os":"{os}","architecture":"{architecture}","config":{{"Env":["A=b"]}},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
            diff_ids.join(",")
        );
        if let Some((find, put)) = &self.edit {
            assert!(config.contains(find));
            config = config.replace(find, put);
        }
        let config = self.descriptor(&self.blob(config.as_bytes()), "application/vnd.oci.image.config.v1+json", None);
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{config},"layers":[{}]}}"#,
            descriptors.join(",")
        );
        self.blob(manifest.as_bytes())
    }

    /// A layout of one index over manifests, under a reference name.
    pub(crate) fn index(&self, manifests: &[(&str, &str)], name: &str) {
        self.top(&self.descriptor(&self.nested(manifests), INDEX, None), name);
    }

    /// Adds an index over manifests with their platforms, or none where that is empty, and over other indexes
    /// (`index`); its digest.
    pub(crate) fn nested(&self, manifests: &[(&str, &str)]) -> String {
        let descriptor = |(digest, platform): &(&str, &str)| match *platform {
            "index" => self.descriptor(digest, INDEX, None),
            platform => self.descriptor(digest, MANIFEST, Some(platform).filter(|platform| !platform.is_empty())),
        };
        let list: Vec<_> = manifests.iter().map(descriptor).collect();
        let index = format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{}]}}"#, list.join(","));
        self.blob(index.as_bytes())
    }

    /// Adds what BuildKit attaches to an image: a manifest whose layer is no tar; its digest, and all its documents.
    pub(crate) fn attestation(&self) -> (String, Vec<String>) {
        let config = self
            .blob(br#"{"architecture":"unknown","os":"unknown","rootfs":{"type":"layers","diff_ids":["sha256:00"]}}"#);
        let statement = self.blob(br#"{"_type":"https://in-toto.io/Statement/v0.1"}"#);
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
            self.descriptor(&config, "application/vnd.oci.image.config.v1+json", None),
            self.descriptor(&statement, "application/vnd.in-toto+json", None)
        );
        let manifest = self.blob(manifest.as_bytes());
        (manifest.clone(), vec![manifest, config])
    }

    /// Removes a blob.
    pub(crate) fn remove(&self, digest: &str) {
        std::fs::remove_file(self.path(digest)).unwrap();
    }

    /// Puts other bytes where a blob is.
    pub(crate) fn replace(&self, digest: &str, bytes: &[u8]) -> std::path::PathBuf {
        std::fs::write(self.path(digest), bytes).unwrap();
        self.path(digest)
    }

    /// Changes a byte of every manifest.
    pub(crate) fn damage_manifest(&self) {
        for entry in std::fs::read_dir(self.directory.path().join("blobs/sha256")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            if bytes.starts_with(b"{\"schemaVersion\"") {
                let text = String::from_utf8(bytes).unwrap();
                std::fs::write(path, text.replace("schemaVersion\":2", "schemaVersion\":3")).unwrap();
            }
        }
    }

    /// The layout as a tar file.
    pub(crate) fn archive(&self) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        let mut builder = tar::Builder::new(file.as_file());
        builder.append_dir_all(".", self.directory.path()).unwrap();
        builder.finish().unwrap();
        drop(builder);
        file
    }

    fn top(&self, descriptor: &str, name: &str) {
        let annotations = format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{name}"}}}}"#);
        let descriptor = format!("{}{annotations}", descriptor.strip_suffix('}').unwrap());
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{descriptor}]}}"#);
        std::fs::write(self.directory.path().join("index.json"), index).unwrap();
    }

    fn blob(&self, bytes: &[u8]) -> String {
        let digest = Digest::of(bytes);
        std::fs::write(self.path(&digest.to_string()), bytes).unwrap();
        digest.to_string()
    }

    fn path(&self, digest: &str) -> std::path::PathBuf {
        self.directory.path().join("blobs").join(digest.replace(':', "/"))
    }

    fn descriptor(&self, digest: &str, media_type: &str, platform: Option<&str>) -> String {
        let size = std::fs::metadata(self.path(digest)).unwrap().len();
        let platform = platform.map_or(String::new(), |platform| {
            let mut parts = platform.split('/');
            let (os, architecture) = (parts.next().unwrap(), parts.next().unwrap());
            let variant = parts.next().map_or(String::new(), |variant| format!(r#","variant":"{variant}""#));
            format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"{variant}}}"#)
        });
        format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size}{platform}}}"#)
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::bufread::GzEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut out).unwrap();
    out
}

/// A store in a temporary directory.
pub(crate) struct Store {
    directory: TempDir,
    work: TempDir,
    pub(crate) refs: Refs,
}

impl Store {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let refs = Refs::new(store::open(&format!("file://{}", directory.path().display())).unwrap());
        Self { directory, work: tempfile::tempdir().unwrap(), refs }
    }

    /// Converts with a work directory of this store's own: what other tests have under way is not to be found.
    pub(crate) async fn convert(&self, source: &Source, options: &Options) -> Result<Report> {
        self.convert_in(self.work.path(), source, options).await
    }

    pub(crate) async fn convert_in(&self, work: &Path, source: &Source, options: &Options) -> Result<Report> {
        let amd64 = "linux/amd64".parse().unwrap();
        let host = converter::Platforms::default();
        let platforms = if options.platforms == host { amd64 } else { options.platforms.clone() };
        converter::convert(&self.refs, source, work, &Options { platforms, ..options.clone() }).await
    }

    /// What is converted of a source, compared with it.
    pub(crate) async fn compare(&self, source: &Source, options: &Options) -> Result<Comparison> {
        let Options { platforms, registries, tag, .. } = options;
        converter::compare(&self.refs, source, platforms, registries, tag.as_ref()).await
    }

    /// The top layer of the first image.
    pub(crate) async fn top(&self, report: &Report) -> StackEntry {
        let chain_id = report.images[0].layers.last().unwrap().chain_id.clone().unwrap();
        let chain = self.refs.chain(&chain_id.parse().unwrap()).await.unwrap().unwrap();
        chain.stack.into_layers().pop().unwrap()
    }

    /// Names of what lies in the work directory of its conversions, but for the directories that always do.
    pub(crate) fn left_in_work(&self) -> Vec<String> {
        let mut files = Vec::new();
        collect(self.work.path(), &mut files);
        files
    }

    /// Every file of the store with its content, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        collect(self.directory.path(), &mut files);
        files.sort();
        files
    }

    /// The tree of a layer, marks and all.
    pub(crate) fn tree(&self, layer: &StackEntry) -> erofs::Tree {
        let (image, metadata) = self.image(layer);
        erofs::read_tree(&Image::new(&image[..metadata]).unwrap()).unwrap()
    }

    /// A layer's image, and how much of it is metadata.
    fn image(&self, layer: &StackEntry) -> (Vec<u8>, usize) {
        let stored = std::fs::read(self.directory.path().join(layer_key(&layer.layer))).unwrap();
        let image = zstd::decode_all(&stored[..]).unwrap();
        let index = blobstore::layer::Index::parse(stored.into()).unwrap();
        (image, index.metadata_len() as usize)
    }

    /// A plain file of a layer, by way of the decompressed image.
    pub(crate) fn read(&self, layer: &StackEntry, path: &[u8]) -> Vec<u8> {
        let (image, metadata) = self.image(layer);
        let parsed = Image::new(&image[..metadata]).unwrap();
        let mut inode = parsed.root().unwrap();
        for part in path.split(|&b| b == b'/') {
            let entry = parsed.lookup(&inode, part).unwrap().unwrap();
            inode = parsed.inode(entry.nid).unwrap();
        }
        let Content::Plain { size, start } = parsed.content(&inode).unwrap() else { panic!("not a plain file") };
        let start = ((parsed.first_data_block() + start) * 4096) as usize;
        image[start..start + size as usize].to_vec()
    }
}

fn collect(directory: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, files),
            false => files.push(format!("{} {}", path.display(), Digest::of(&std::fs::read(&path).unwrap()))),
        }
    }
}
