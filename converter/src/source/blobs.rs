//! The blobs of an image: files of a layout's directory, or of a tar file that is read in place; or a registry's.

use super::document::{DOCUMENT_MAX, Descriptor, LayerBlob};
use super::hashing::Hashing;
use super::stream::compression;
use crate::error::{Error, Result, show};
use crate::limits::MEMBERS;
use crate::registry::Repository;
use crate::tar::{Kind, Reader, TreePath};
use blobstore::refs::Digest;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tokio::runtime::Handle;

/// Where an image's documents and layers are.
#[derive(Debug, Clone)]
pub enum Blobs {
    /// In a directory.
    Directory(PathBuf),
    /// In a tar file: offset and length of each regular file in it.
    Archive {
        /// The tar file.
        file: PathBuf,
        /// Its files, by their clean path.
        members: HashMap<String, (u64, u64)>,
    },
    /// In a registry. Its documents are fetched by the thread that asks for them, which must not be one of the runtime's
    /// own.
    Registry {
        /// Where in it.
        repository: Repository,
        /// Whose tasks fetch.
        runtime: Handle,
    },
}

impl Blobs {
    /// The files of a tar file.
    pub fn archive(path: &Path) -> Result<Self> {
        let failed = |e| Error::failed(path.display().to_string(), e);
        let file = open_regular(path).map_err(failed)?.ok_or_else(|| {
            Error::refused(format!(
                "{} is not a regular file: an archive is read in place, more than once",
                path.display()
            ))
        })?;
        let mut file = io::BufReader::new(file);
        if let Some(name) = compression(file.fill_buf().map_err(failed)?) {
            let what = format!("{} is compressed by {name}: decompress it first, it is read in place", path.display());
            return Err(Error::refused(what));
        }
        let mut reader = Reader::new(Counting { inner: file, at: 0 });
        let (mut members, mut links) = (HashMap::new(), Vec::new());
        while let Some(entry) = reader.next_entry()? {
            match entry.kind {
                Kind::File(shape) if shape.map.is_none() => {
                    members.insert(show(&entry.path.to_bytes()), (reader.input().at, shape.size));
                }
                Kind::HardLink(target) => links.push((entry.path, Some(target))),
                Kind::Symlink(target) => {
                    let parent = entry.path.split().map(|(parent, _)| parent.to_vec()).unwrap_or_default();
                    let target = [&TreePath::from(parent).to_bytes()[..], b"/", &target].concat();
                    links.push((entry.path, TreePath::clean(&target).ok()));
                }
                _ => {}
            }
            if members.len() + links.len() > MEMBERS {
                return Err(Error::refused(format!("{}: more than {MEMBERS} files", path.display())));
            }
        }
        follow(&mut members, links);
        Ok(Self::Archive { file: path.to_owned(), members })
    }

    /// A document of the layout that no digest names, such as `index.json`.
    pub(super) fn named(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let reader = self.open(name)?.stream;
        reader.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(|e| Error::stream(name, e))?;
        match bytes.len() as u64 > DOCUMENT_MAX {
            true => Err(Error::refused(format!("{name} is larger than {DOCUMENT_MAX} bytes"))),
            false => Ok(bytes),
        }
    }

    /// Whether there is a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(directory) => directory.join(name).exists(),
            Self::Archive { members, .. } => members.contains_key(name),
            Self::Registry { .. } => false,
        }
    }

    /// Lets a file of an archive also be the blob with this digest, which is not verified; its size.
    pub(super) fn alias(&mut self, name: &str, digest: &Digest) -> Result<u64> {
        let Self::Archive { members, .. } = self else { return Err(missing(name)) };
        let place = *members.get(name).ok_or_else(|| missing(name))?;
        members.insert(blob_path(digest), place);
        Ok(place.1)
    }

    /// Digest of a file.
    pub(super) fn digest(&self, name: &str) -> Result<Digest> {
        let (digest, _) = Hashing::new(self.open(name)?.stream).finish().map_err(|e| Error::stream(name, e))?;
        Ok(digest)
    }

    /// By what a file is compressed.
    pub(super) fn compression(&self, name: &str) -> Result<Option<&'static str>> {
        let mut file = io::BufReader::new(self.open(name)?.stream);
        Ok(compression(file.fill_buf().map_err(|e| Error::stream(name, e))?))
    }

    /// A document, verified.
    pub(crate) fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let digest = document_digest(descriptor)?;
        let bytes = match self {
            Self::Registry { repository, runtime } => {
                runtime.block_on(repository.document(&digest, &descriptor.media_type))?
            }
            _ => self.named(&blob_path(&digest))?,
        };
        checked(descriptor, &digest, bytes)
    }

    /// The same of a document that may be missing.
    pub(super) fn document_if_there(&self, descriptor: &Descriptor) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Registry { repository, runtime } => {
                let digest = document_digest(descriptor)?;
                let bytes = runtime.block_on(repository.document_if_there(&digest, &descriptor.media_type))?;
                bytes.map(|bytes| checked(descriptor, &digest, bytes)).transpose()
            }
            // What is not there has no size that could be too large.
            _ if !self.has(&blob_path(&descriptor.digest()?)) => Ok(None),
            _ => self.document(descriptor).map(Some),
        }
    }

    /// A layer's blob, not verified.
    pub fn blob(&self, layer: &LayerBlob) -> Result<OpenBlob> {
        match self {
            Self::Registry { .. } => self.blob_from(&layer.digest, layer.size, 0).map(OpenBlob::from),
            _ => self.open(&blob_path(&layer.digest)),
        }
    }

    /// A blob of `size` bytes from the byte `at` on, not verified.
    pub(crate) fn blob_from(&self, digest: &Digest, size: u64, at: u64) -> Result<Box<dyn Read + Send>> {
        match self {
            Self::Registry { repository, runtime } => Ok(Box::new(repository.blob(digest, size, at, runtime.clone()))),
            _ => {
                let mut reader = self.open(&blob_path(digest))?.stream;
                let passed = io::copy(&mut Read::by_ref(&mut reader).take(at), &mut io::sink());
                passed.map_err(|e| Error::failed(digest.to_string(), e))?;
                Ok(reader)
            }
        }
    }

    /// Whether a blob comes from elsewhere when it is read again: what was read came from a registry's mirror, and was refused
    /// with this error.
    pub(crate) fn has_elsewhere(&self, digest: &Digest, error: &Error) -> bool {
        match self {
            Self::Registry { repository, .. } => error.is_refusal() && repository.blames_mirrors(digest, error),
            _ => false,
        }
    }

    /// Whether a blob is known not to be there: what a registry has is not known before it is asked.
    pub(crate) fn lacks(&self, digest: &Digest) -> bool {
        !matches!(self, Self::Registry { .. }) && !self.has(&blob_path(digest))
    }

    fn open(&self, name: &str) -> Result<OpenBlob> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(name);
                match open_regular(&path) {
                    Ok(Some(file)) => {
                        OpenBlob::part(file, 0, u64::MAX).map_err(|e| Error::failed(path.display().to_string(), e))
                    }
                    Ok(None) => Err(Error::refused(format!("{} is not a regular file", path.display()))),
                    Err(e) if e.kind() == io::ErrorKind::NotFound && directory.is_dir() => {
                        Err(missing(&path.display().to_string()))
                    }
                    Err(e) => Err(Error::failed(path.display().to_string(), e)),
                }
            }
            Self::Archive { file: path, members } => {
                let Some(&(offset, length)) = members.get(name) else { return Err(missing(name)) };
                let failed = |e| Error::failed(path.display().to_string(), e);
                OpenBlob::part(File::open(path).map_err(failed)?, offset, length).map_err(failed)
            }
            Self::Registry { .. } => Err(missing(name)),
        }
    }
}

/// A blob's bytes, to be read once; and where they are, if they can be read again there.
pub struct OpenBlob {
    /// The bytes.
    pub stream: Box<dyn Read + Send>,
    /// Where they are in a regular file.
    pub place: Option<Place>,
}

/// Bytes of a file.
#[derive(Debug)]
pub struct Place {
    /// The file.
    pub file: File,
    /// The first byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
}

impl OpenBlob {
    /// So many bytes of a file from `at` on, or what it has of them; a pipe or a device can be read once only, and from its
    /// start.
    pub fn part(mut file: File, at: u64, length: u64) -> io::Result<Self> {
        let found = file.metadata()?;
        let place = match found.is_file() {
            true => Some(Place { file: file.try_clone()?, start: at, end: at.saturating_add(length).min(found.len()) }),
            false => None,
        };
        if at > 0 {
            file.seek(SeekFrom::Start(at))?;
        }
        Ok(Self { stream: Box::new(file.take(length)), place })
    }
}

impl From<Box<dyn Read + Send>> for OpenBlob {
    fn from(stream: Box<dyn Read + Send>) -> Self {
        Self { stream, place: None }
    }
}

/// Gives links in an archive the place of what they lead to: `docker save` keeps equal layers once. Links to links lead as
/// far as their order has it.
fn follow(members: &mut HashMap<String, (u64, u64)>, links: Vec<(TreePath, Option<TreePath>)>) {
    for (path, target) in links {
        let place = target.and_then(|target| members.get(&show(&target.to_bytes())).copied());
        if let Some(place) = place {
            members.insert(show(&path.to_bytes()), place);
        }
    }
}

/// A file of a layout, or an archive, if it is a regular one: a layout can be unpacked from anywhere, and a pipe in it would be
/// waited for.
fn open_regular(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_wait).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

/// The digest of a document that is not too large.
fn document_digest(descriptor: &Descriptor) -> Result<Digest> {
    let digest = descriptor.digest()?;
    match descriptor.size > DOCUMENT_MAX {
        true => Err(Error::refused(format!("{digest}: a document of {} bytes is too large", descriptor.size))),
        false => Ok(digest),
    }
}

/// A document's bytes, if they are what its descriptor says.
fn checked(descriptor: &Descriptor, digest: &Digest, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let found = Digest::of(&bytes);
    match bytes.len() as u64 == descriptor.size && found == *digest {
        true => Ok(bytes),
        false => Err(Error::refused(format!(
            "digest mismatch: blob {digest} has {} bytes with the digest {found}",
            bytes.len()
        ))),
    }
}

fn missing(name: &str) -> Error {
    Error::refused(format!("{name} is missing: not a complete image layout or archive"))
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Knows how far it has read.
#[derive(Debug)]
struct Counting<R> {
    inner: R,
    at: u64,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_may_be_missing_may_be_of_any_size_then() {
        let layout = tempfile::tempdir().unwrap();
        let blobs = Blobs::Directory(layout.path().to_owned());
        let digest = Digest::of(b"a document");
        let text = |size: u64| format!(r#"{{"mediaType": "a/b", "digest": "{digest}", "size": {size}}}"#);
        let descriptor = |size| serde_json::from_str::<Descriptor>(&text(size)).unwrap();
        assert!(blobs.document_if_there(&descriptor(DOCUMENT_MAX + 1)).unwrap().is_none());
        let path = layout.path().join(blob_path(&digest));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"a document").unwrap();
        assert!(blobs.document_if_there(&descriptor(DOCUMENT_MAX + 1)).unwrap_err().is_refusal());
        assert_eq!(blobs.document_if_there(&descriptor(10)).unwrap().unwrap(), b"a document");
    }
}
