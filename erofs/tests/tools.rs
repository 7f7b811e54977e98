//! erofs-utils and erofs-rs as judges.
use std::collections::HashSet;
use std::ffi::OsStr;
use std::process::Command;

use crate::judge::{Files, run, tool};
use crate::sample::{Sample, everything};
use erofs::Kind;
use erofs_rs::EroFS;
use erofs_rs::backend::SliceImage;

/// What fsck.erofs says. Its exit status (1.5) is 0 also where it finds the checksum wrong.
fn fsck(arguments: &[&OsStr]) -> String {
    let output = Command::new("fsck.erofs").arg("-d9").args(arguments).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn is_clean(text: &str) -> bool {
    text.contains("No errors found") && !text.contains("<E>")
}

#[test]
fn fsck_accepts_the_stored_form_and_reads_all_data() {
    if tool("fsck.erofs") {
        let (sample, files) = (everything(), Files::new());
        let flat = files.flat(&sample);
        for arguments in [&[flat.as_os_str()][..], &[OsStr::new("--extract"), flat.as_os_str()]] {
            let text = fsck(arguments);
            assert!(is_clean(&text), "{text}");
        }
    }
}

#[test]
fn fsck_refuses_an_image_with_a_flipped_superblock() {
    if tool("fsck.erofs") {
        let (sample, files) = (everything(), Files::new());
        let mut metadata = sample.write().into_bytes();
        metadata[1024 + 36] ^= 1;
        assert!(!is_clean(&fsck(&[files.put("broken", &[&metadata, &sample.data]).as_os_str()])));
    }
}

#[test]
fn dump_shows_the_superblock_as_it_was_meant() {
    if tool("dump.erofs") {
        let (sample, files) = (everything(), Files::new());
        let text = run("dump.erofs", &[OsStr::new("-s"), files.flat(&sample).as_os_str()]);
        let field = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_once(": ").unwrap().1.trim().to_owned()
        };
        assert_eq!(field("Filesystem blocks"), sample.expect(&sample.write()).image_blocks.to_string());
        let inodes: HashSet<_> = sample.tree.walk().map(|visit| visit.node).collect();
        assert_eq!(field("Filesystem inode count"), inodes.len().to_string());
        assert_eq!(field("Filesystem UUID"), "6c616d69-6e61-2074-6573-742075756964");
        assert_eq!(field("Filesystem features"), "sb_csum mtime chunked_file");
    }
}

#[test]
fn erofs_rs_reads_everything() {
    let sample = everything();
    let flat = [sample.write().bytes(), &sample.data].concat();
    oracle(&sample, &EroFS::new(SliceImage::new(&flat)).unwrap());
}

#[test]
fn erofs_rs_reads_everything_from_two_images() {
    let sample = everything();
    let mut metadata = sample.write().into_bytes();
    erofs::attach_device(&mut metadata).unwrap();
    let images = (SliceImage::new(&metadata), vec![SliceImage::new(&sample.data)]);
    oracle(&sample, &EroFS::new_with_devices(images.0, images.1).unwrap());
}

fn oracle(sample: &Sample, image: &EroFS<SliceImage<'_>>) {
    let mut found = std::collections::BTreeMap::new();
    for entry in image.walk_dir("/").unwrap() {
        let entry = entry.unwrap();
        found.insert(entry.dir_entry.path().as_bytes()[1..].to_vec(), entry.inode);
    }
    assert_eq!(found.len() + 1, sample.tree.walk().count());
    for visit in sample.tree.walk().skip(1) {
        let node = sample.tree.node(visit.node);
        let path = visit.path.escape_ascii().to_string();
        let inode = found[&visit.path];
        assert_eq!(inode.modified_unix(), (node.attributes.mtime, node.attributes.mtime_nsec), "{path}");
        assert_eq!((inode.uid(), inode.gid()), (node.attributes.uid, node.attributes.gid), "{path}");
        assert_eq!(image.xattrs_inode(inode).unwrap(), *node.attributes.xattrs, "{path}");
        match &node.kind {
            Kind::Symlink(target) => assert_eq!(image.read_link_inode(inode).unwrap().as_bytes(), target, "{path}"),
            Kind::Char(major, minor) | Kind::Block(major, minor) => {
                assert_eq!(inode.device(), Some((*major, *minor)), "{path}");
            }
            Kind::File(content) => {
                let file = image.open_inode_file(inode).unwrap();
                for (offset, len) in Sample::probes(content) {
                    let expected = sample.read(content, offset, len);
                    let mut bytes = vec![0; expected.len()];
                    let mut done = 0;
                    while done < bytes.len() {
                        let read = file.read_at(&mut bytes[done..], offset + done as u64).unwrap();
                        assert!(read > 0, "{path}");
                        done += read;
                    }
                    assert!(bytes == expected, "{path} at {offset}");
                }
            }
            _ => {}
        }
    }
}
