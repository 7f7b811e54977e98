//! What the tests need of the machine: root, mounts, tools.
use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use std::os::unix::ffi::OsStrExt;

use erofs::{Content, FileType, Kind, Tree};
use tempfile::TempDir;

use crate::sample::Sample;

/// Whether this is root; says loudly if not.
pub fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: needs root to mount");
    }
    root
}

/// Whether a program is there; says loudly if not.
pub fn tool(name: &str) -> bool {
    let found = Command::new(name).arg("-V").output().is_ok();
    if !found {
        eprintln!("SKIPPED: needs {name}");
    }
    found
}

/// Runs a program that must succeed, and gives what it printed.
pub fn run(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}", output.status);
    text
}

/// A directory with an image in it, as files.
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    pub fn new() -> Self {
        Files { dir: tempfile::Builder::new().prefix("erofs-test").tempdir().unwrap() }
    }

    pub fn put(&self, name: &str, parts: &[&[u8]]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, parts.concat()).unwrap();
        path
    }

    /// The flat image: metadata, then data.
    pub fn flat(&self, sample: &Sample) -> PathBuf {
        self.put("flat", &[sample.write().bytes(), &sample.data])
    }

    /// The two files of the device form.
    pub fn pair(&self, sample: &Sample) -> (PathBuf, PathBuf) {
        let mut metadata = sample.write().into_bytes();
        erofs::attach_device(&mut metadata).unwrap();
        (self.put("metadata", &[&metadata]), self.put("data", &[&sample.data]))
    }
}

/// A mount, undone when dropped.
pub struct Mount {
    at: TempDir,
}

impl Mount {
    /// Through mount(8), which makes a loop device.
    pub fn by_loop(image: &Path, options: &str) -> Self {
        let at = TempDir::new().unwrap();
        let arguments = ["-t", "erofs", "-o", options].map(OsStr::new);
        run("mount", &[&arguments[..], &[image.as_os_str(), at.path().as_os_str()]].concat());
        Mount { at }
    }

    /// Through mount(2), which is file-backed from Linux 6.12 on.
    pub fn by_file(image: &Path, options: &str) -> rustix::io::Result<Self> {
        let at = TempDir::new().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(image, at.path(), "erofs", rustix::mount::MountFlags::RDONLY, Some(options.as_c_str()))?;
        Ok(Mount { at })
    }

    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(self.at.path(), rustix::mount::UnmountFlags::empty()) {
            eprintln!("cannot unmount {}: {error}", self.at.path().display());
        }
    }
}

/// A loop device, freed when dropped.
pub struct Loop {
    pub device: String,
}

impl Loop {
    pub fn new(file: &Path) -> Self {
        let arguments = [OsStr::new("--find"), OsStr::new("--show"), OsStr::new("--read-only"), file.as_os_str()];
        Loop { device: run("losetup", &arguments).trim().to_owned() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &[OsStr::new("--detach"), OsStr::new(&self.device)]);
    }
}

/// Compares all that the kernel shows below `mounted` with the sample.
pub fn compare(sample: &Sample, mounted: &Path) {
    let tree = &sample.tree;
    let mut inodes = std::collections::HashMap::new();
    let mut names = vec![0; tree.len()];
    tree.walk().for_each(|visit| names[visit.node.index()] += 1);
    for visit in tree.walk() {
        let path = mounted.join(OsStr::from_bytes(&visit.path));
        let node = tree.node(visit.node);
        let stat = std::fs::symlink_metadata(&path).unwrap();
        let attributes = &node.attributes;
        assert_eq!(stat.mode(), u32::from(node.kind.file_type().mode_bits() | attributes.mode), "{path:?}");
        assert_eq!((stat.uid(), stat.gid()), (attributes.uid, attributes.gid), "{path:?}");
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (attributes.mtime, attributes.mtime_nsec.into()), "{path:?}");
        assert_eq!(*inodes.entry(visit.node).or_insert(stat.ino()), stat.ino(), "{path:?}");
        let subdirectory = |(_, child)| tree.node(child).kind == Kind::Directory;
        let links = match node.kind {
            Kind::Directory => 2 + tree.children(visit.node).filter(|child| subdirectory(*child)).count() as u64,
            _ => names[visit.node.index()],
        };
        assert_eq!(stat.nlink(), links, "{path:?}");
        compare_xattrs(tree, visit.node, &path);
        match &node.kind {
            Kind::Directory => compare_names(tree, visit.node, &path),
            Kind::File(content) => compare_content(sample, content, &path),
            Kind::Symlink(target) => assert_eq!(std::fs::read_link(&path).unwrap().as_os_str().as_bytes(), target),
            Kind::Char(major, minor) | Kind::Block(major, minor) => {
                assert_eq!(stat.file_type().is_char_device(), node.kind.file_type() == FileType::Char);
                assert_eq!(stat.rdev(), rustix::fs::makedev(*major, *minor), "{path:?}");
            }
            Kind::Fifo | Kind::Socket => {}
        }
    }
    let nodes: std::collections::HashSet<_> = inodes.values().collect();
    assert_eq!(nodes.len(), inodes.len(), "an inode for two nodes");
}

fn compare_names(tree: &Tree, directory: erofs::NodeId, path: &Path) {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().as_bytes().to_vec();
    let mut found: Vec<_> = std::fs::read_dir(path).unwrap().map(name).collect();
    found.sort();
    assert!(found.iter().eq(tree.children(directory).map(|(name, _)| name)), "{path:?}");
    assert!(!path.join("no such name").exists() && !path.join("zzz").exists() && !path.join(" ").exists());
}

fn compare_content(sample: &Sample, content: &Content, path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), content.size(), "{path:?}");
    for (offset, len) in Sample::probes(content) {
        let expected = sample.read(content, offset, len);
        let mut found = vec![0xaa; expected.len()];
        file.read_exact_at(&mut found, offset).unwrap();
        assert!(found == expected, "{path:?} at {offset}");
    }
}

fn compare_xattrs(tree: &Tree, node: erofs::NodeId, path: &Path) {
    let expected = &tree.attributes(node).xattrs;
    let mut buffer = vec![0_u8; 1 << 18];
    // The kernel gives no list longer than 64 KiB; then each name is asked for.
    let listed: usize = expected.keys().map(|name| name.len() + 1).sum();
    if listed < 60_000 {
        let len = rustix::fs::llistxattr(path, &mut buffer).unwrap();
        let mut names: Vec<_> = buffer[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        assert!(names.iter().eq(expected.keys()), "{path:?}");
    }
    for (name, value) in expected {
        let name = OsStr::from_bytes(name);
        // The kernel gives no `user.` attributes of anything but files and directories.
        match rustix::fs::lgetxattr(path, name, &mut buffer) {
            Ok(len) => assert!(&buffer[..len] == value, "{path:?}: {name:?}"),
            Err(error) => panic!("{path:?}: {name:?}: {error}"),
        }
    }
}
