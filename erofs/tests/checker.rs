//! Attacks on the checker, each a change to a good image with the checksum made right again; and the writer's refusals.
use std::fmt::Write as _;

use crate::sample::{Sample, attributes, everything, with_xattrs};
use erofs::format::{Dirent, ExtendedInode, SUPERBLOCK_OFFSET, Superblock};
use erofs::{
    Attributes, CheckError, Content, Image, Inode, Kind, NodeProblem, ReadError, Tree, WriteError, XattrProblem, check,
};

/// Two directories, three files (one of them sparse, one linked), a symlink, xattrs shared and not.
fn small() -> Sample {
    let mut sample = Sample::new();
    let a = sample.directory(Tree::ROOT, "a");
    let b = sample.directory(a, "b");
    let set: [(&str, &[u8]); 2] = [("user.shared", b"a value"), ("user.x", b"1")];
    let file = sample.file(b, "file", with_xattrs(0o644, &set), &[1; 5000]);
    sample.tree.link(Tree::ROOT, b"link", file).unwrap();
    sample.file(b, "other", with_xattrs(0o644, &set[..1]), b"other");
    sample.sparse(b, "sparse", 100_000, &[(50_000, vec![1])]);
    sample.add(b, "symlink", attributes(0o777), Kind::Symlink(b"file".to_vec()));
    sample
}

struct Attack {
    sample: Sample,
    bytes: Vec<u8>,
}

impl Attack {
    fn new() -> Self {
        let sample = small();
        let bytes = sample.write().into_bytes();
        Attack { sample, bytes }
    }

    fn find(&self, path: &str) -> Inode {
        let image = Image::new(&self.bytes).unwrap();
        let step = |inode: Inode, name: &str| {
            image.inode(image.lookup(&inode, name.as_bytes()).unwrap().unwrap().nid).unwrap()
        };
        path.split('/').filter(|name| !name.is_empty()).fold(image.root().unwrap(), step)
    }

    /// Changes an inode.
    fn inode(&mut self, path: &str, change: impl FnOnce(&mut ExtendedInode)) -> &mut Self {
        let offset = self.find(path).nid * 32;
        let mut inode = ExtendedInode::at(&self.bytes, offset).unwrap();
        change(&mut inode);
        self.bytes[offset as usize..][..64].copy_from_slice(&inode.encode());
        self
    }

    /// Changes entry number `index` of an inline directory without xattrs.
    fn entry(&mut self, path: &str, index: usize, change: impl FnOnce(&mut Dirent)) -> &mut Self {
        let offset = self.find(path).nid as usize * 32 + 64 + index * 12;
        let mut dirent = Dirent::at(&self.bytes, offset as u64).unwrap();
        change(&mut dirent);
        self.bytes[offset..][..12].copy_from_slice(&dirent.encode());
        self
    }

    fn superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> &mut Self {
        let mut superblock = Superblock::at(&self.bytes, SUPERBLOCK_OFFSET as u64).unwrap();
        change(&mut superblock);
        self.bytes[SUPERBLOCK_OFFSET..][..128].copy_from_slice(&superblock.encode());
        self
    }

    /// Replaces bytes that occur once.
    fn replace(&mut self, old: &[u8], new: &[u8]) -> &mut Self {
        let places: Vec<_> = (0..self.bytes.len()).filter(|at| self.bytes[*at..].starts_with(old)).collect();
        assert_eq!(places.len(), 1, "{}", old.escape_ascii());
        self.bytes[places[0]..][..new.len()].copy_from_slice(new);
        self
    }

    fn verdict(&mut self) -> Result<(), CheckError> {
        let checksum = erofs::checksum(&self.bytes).to_le_bytes();
        self.bytes[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum);
        check(&self.bytes, &self.sample.expect(&self.sample.write())).map(|_| ())
    }

    /// The verdict, which must be a refusal, as text.
    fn refusal(&mut self) -> String {
        self.verdict().unwrap_err().to_string()
    }
}

#[test]
fn the_good_image_is_accepted() {
    assert_eq!(Attack::new().verdict(), Ok(()));
}

#[test]
fn cycles_and_second_names_of_directories_are_refused() {
    let mut attack = Attack::new();
    let (root, a) = (attack.find("/").nid, attack.find("a").nid);
    // Entries of /a: ".", "..", "b".
    assert!(attack.entry("a", 2, |dirent| dirent.nid = a).refusal().contains("two names"));
    assert!(Attack::new().entry("a", 2, |dirent| dirent.nid = root).refusal().contains("two names"));
    assert!(Attack::new().entry("a", 1, |dirent| dirent.nid = a).refusal().contains("a wrong . or .."));
    assert!(Attack::new().entry("a", 0, |dirent| dirent.nid = root).refusal().contains("a wrong . or .."));
}

#[test]
fn links_are_counted() {
    for path in ["/", "a", "link", "a/b/other"] {
        assert!(Attack::new().inode(path, |inode| inode.i_nlink += 1).refusal().contains("number of links"), "{path}");
        assert!(Attack::new().inode(path, |inode| inode.i_nlink -= 1).refusal().contains("number of links"), "{path}");
    }
}

#[test]
fn names_must_be_sorted_and_valid() {
    for (old, new) in [
        (&b"fileothersparse"[..], &b"pileother"[..]),
        (b"fileothersparse", b"fi/eother"),
        (b"fileothersparse", b"fi\0eother"),
        (b"...alink", b"./.a"),
        (b"symlink", b"symlin\0k"),
    ] {
        assert!(Attack::new().replace(old, new).verdict().is_err(), "{}", new.escape_ascii());
    }
}

#[test]
fn contents_must_lie_in_the_data_space() {
    let blocks = Attack::new().sample.data_blocks() as u32;
    for change in [0_u32, 1, u32::MAX] {
        assert!(Attack::new().inode("link", |inode| inode.i_u = change).verdict().is_err());
    }
    assert!(Attack::new().inode("link", |inode| inode.i_u += blocks - 1).refusal().contains("outside"));
    assert!(Attack::new().inode("link", |inode| inode.i_size = 1 << 62).refusal().contains("outside"));
    assert!(Attack::new().inode("link", |inode| inode.i_size = u64::MAX).verdict().is_err());
    // More chunks than there is room for; other chunk formats.
    assert!(Attack::new().inode("a/b/sparse", |inode| inode.i_size = u64::MAX >> 1).verdict().is_err());
    for format in [0x20, 0x40, 0x1_0000] {
        assert!(Attack::new().inode("a/b/sparse", |inode| inode.i_u |= format).verdict().is_err());
    }
}

#[test]
fn layouts_that_are_not_written_are_refused() {
    for layout in [1_u16, 3, 5, 6, 7] {
        assert!(Attack::new().inode("link", |inode| inode.i_format = 1 | layout << 1).verdict().is_err());
    }
    assert!(Attack::new().inode("link", |inode| inode.i_format &= !1).refusal().contains("compact"));
    assert!(Attack::new().inode("link", |inode| inode.i_format |= 0x10).verdict().is_err());
    assert!(Attack::new().inode("link", |inode| inode.i_format = 1 | 2 << 1).verdict().is_err());
    assert!(Attack::new().inode("a", |inode| inode.i_format = 1 | 4 << 1).verdict().is_err());
    assert!(Attack::new().inode("a", |inode| inode.i_size = 0).verdict().is_err());
    assert!(Attack::new().inode("a/b/symlink", |inode| inode.i_size = 1 << 20).verdict().is_err());
    assert!(Attack::new().inode("a", |inode| inode.i_mode = 0o100_644).verdict().is_err());
    assert!(Attack::new().inode("a", |inode| inode.i_mode = 0).verdict().is_err());
}

#[test]
fn xattrs_must_be_whole_and_allowed() {
    for count in [0_u16, 1, 2, 3, 100, u16::MAX] {
        assert!(Attack::new().inode("link", |inode| inode.i_xattr_icount = count).verdict().is_err(), "{count}");
    }
    assert!(Attack::new().inode("a", |inode| inode.i_xattr_icount = 2).verdict().is_err());
    // The shared one: another prefix, a NUL, a longer value, bytes in the padding.
    for (old, new) in [
        (&b"\x06\x01\x07\0shareda value"[..], &b"\x06\x05"[..]),
        (b"\x06\x01\x07\0shareda value", b"\x06\x01\x07\0sh\0red"),
        (b"\x06\x01\x07\0shareda value", b"\x06\x01\xff\xff"),
        (b"shareda value", b"shareda value\0\0!"),
    ] {
        assert!(Attack::new().replace(old, new).verdict().is_err(), "{}", new.escape_ascii());
    }
}

#[test]
fn overlayfs_attributes_are_refused() {
    let mut sample = Sample::new();
    sample.add(Tree::ROOT, "d", with_xattrs(0o755, &[("trusted.overlay-redirect", b"/etc")]), Kind::Directory);
    let metadata = sample.write();
    let mut bytes = metadata.bytes().to_vec();
    let at = (0..bytes.len()).find(|at| bytes[*at..].starts_with(b"overlay-redirect")).unwrap();
    bytes[at + 7] = b'.';
    let checksum = erofs::checksum(&bytes).to_le_bytes();
    bytes[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum);
    let refusal = check(&bytes, &sample.expect(&metadata)).unwrap_err();
    assert!(matches!(refusal, CheckError::Xattr { problem: XattrProblem::Overlay, .. }), "{refusal}");
}

#[test]
fn nothing_overlaps_and_nothing_hides() {
    // The inode of one file named for another's entry, from within its xattrs.
    let target = Attack::new().find("link").nid + 1;
    assert!(Attack::new().entry("a/b", 3, |dirent| dirent.nid = target).verdict().is_err());
    for nid in [u64::MAX, u64::MAX / 32, 1 << 59, 0, 32] {
        assert!(Attack::new().entry("a/b", 3, |dirent| dirent.nid = nid).verdict().is_err(), "{nid}");
    }
    let mut attack = Attack::new();
    *attack.bytes.last_mut().unwrap() = 1;
    assert!(matches!(attack.verdict(), Err(CheckError::Stray { .. })));
}

#[test]
fn nothing_hides_behind_the_last_name_of_a_directory() {
    // As long as a block to within a few bytes, so that it has a block to itself.
    let mut sample = Sample::new();
    let directory = sample.directory(Tree::ROOT, "d");
    for at in 0..15 {
        sample.file(directory, &format!("{at:0>255}"), attributes(0o644), b"");
    }
    let last = b"the last name";
    sample.file(directory, "the last name", attributes(0o644), b"");
    let metadata = sample.write();
    let mut bytes = metadata.bytes().to_vec();
    let end = (0..bytes.len()).find(|at| bytes[*at..].starts_with(last)).unwrap() + last.len();
    assert_eq!(bytes[end..end.next_multiple_of(4096)], [0; 39], "it has a block to itself");
    bytes[end] = b'x';
    let checksum = erofs::checksum(&bytes).to_le_bytes();
    bytes[SUPERBLOCK_OFFSET + 4..][..4].copy_from_slice(&checksum);
    assert!(check(&bytes, &sample.expect(&metadata)).is_err());
}

#[test]
fn the_superblock_is_checked_to_the_last_field() {
    type Change = fn(&mut Superblock);
    let changes: [Change; 14] = [
        |superblock| superblock.blocks += 1,
        |superblock| superblock.inos += 1,
        |superblock| superblock.root_nid += 1,
        |superblock| superblock.feature_compat |= 4,
        |superblock| superblock.feature_compat = 0,
        |superblock| superblock.feature_incompat = 0,
        |superblock| superblock.feature_incompat |= 8,
        |superblock| superblock.feature_incompat |= 0x20,
        |superblock| superblock.blkszbits = 9,
        |superblock| superblock.xattr_blkaddr = 0,
        |superblock| superblock.xattr_blkaddr = u32::MAX,
        |superblock| superblock.extra_devices = 0,
        |superblock| superblock.packed_nid = 40,
        |superblock| superblock.reserved[3] = 1,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        assert!(Attack::new().superblock(change).verdict().is_err(), "{at}");
    }
}

#[test]
fn a_size_past_the_kernels_limit_is_no_inode() {
    let mut attack = Attack::new();
    let nid = attack.find("link").nid;
    attack.inode("link", |inode| inode.i_size = 1 << 63);
    assert_eq!(Image::new(&attack.bytes).unwrap().inode(nid), Err(ReadError::Corrupt("size of an inode")));
}

#[test]
fn most_single_flips_are_refused_even_with_a_right_checksum() {
    let mut attack = Attack::new();
    let mut accepted = 0;
    for at in 0..attack.bytes.len() {
        attack.bytes[at] ^= 1;
        accepted += usize::from(attack.verdict().is_ok());
        attack.bytes[at] ^= 1;
    }
    // The UUID; of each of 7 inodes 2 bytes of mode, 4 of number, 8 of owner and group, 8 of time, 4 of nanoseconds, 1 or 2
    // of size, some addresses; names, targets and values.
    assert!(accepted < 300, "{accepted} of {}", attack.bytes.len());
}

#[test]
fn metadata_of_another_length_is_refused() {
    let sample = small();
    let metadata = sample.write();
    let (bytes, expect) = (metadata.bytes(), sample.expect(&metadata));
    for len in [0, 1024, 1151, 1279, 4095, bytes.len() - 4096, bytes.len() - 1] {
        assert!(check(&bytes[..len], &expect).is_err(), "{len}");
    }
    assert!(check(&[bytes, &[0; 4096]].concat(), &expect).is_err());
    let other = erofs::Expect { image_blocks: expect.image_blocks + 1, ..expect };
    assert!(matches!(check(bytes, &other), Err(CheckError::Superblock(_))));
}

#[test]
fn attaching_a_device_changes_three_fields_and_no_others() {
    let metadata = everything().write();
    let mut attached = metadata.bytes().to_vec();
    erofs::attach_device(&mut attached).unwrap();
    let superblock = |bytes| Superblock::at(bytes, SUPERBLOCK_OFFSET as u64).unwrap();
    let (before, after) = (superblock(metadata.bytes()), superblock(&attached));
    assert_eq!(u64::from(after.blocks), metadata.first_data_block());
    assert_eq!(after.feature_incompat, before.feature_incompat | 8);
    assert_eq!(after.checksum, erofs::checksum(&attached));
    let restored = Superblock { checksum: after.checksum, blocks: after.blocks, feature_incompat: 12, ..before };
    assert_eq!(after, restored);
    assert_eq!(attached[SUPERBLOCK_OFFSET + 128..], metadata.bytes()[SUPERBLOCK_OFFSET + 128..]);
    let once = attached.clone();
    erofs::attach_device(&mut attached).unwrap();
    assert_eq!(attached, once);
    assert_eq!(erofs::attach_device(&mut [0; 4096]), Err(ReadError::NotErofs("magic")));
}

#[test]
fn the_writer_names_the_path_and_the_attribute() {
    let refuse = |kind: Kind, attributes: Attributes| {
        let mut sample = Sample::new();
        let directory = sample.directory(Tree::ROOT, "dir");
        sample.add(directory, "bad", attributes, kind);
        erofs::write(&sample.tree, 10).unwrap_err()
    };
    let file = || Kind::File(Content::EMPTY);
    let xattr = |name: &str, len| refuse(file(), with_xattrs(0o644, &[(name, &vec![0; len])]));
    let cases = [
        ("system.nfs4_acl", 1, XattrProblem::UnknownPrefix),
        ("user.", 1, XattrProblem::InvalidName),
        ("user.large", 65_536, XattrProblem::ValueTooLong),
        ("user.overlay.opaque", 1, XattrProblem::Overlay),
    ];
    for (name, len, problem) in cases {
        let (path, name) = (b"dir/bad".to_vec(), name.as_bytes().to_vec());
        assert_eq!(xattr(std::str::from_utf8(&name).unwrap(), len), WriteError::Xattr { path, name, problem });
    }
    assert!(xattr("system.x", 1).to_string().starts_with("/dir/bad: attribute system.x: "));
    let value = vec![0; 65_000];
    let many: Vec<_> = ["user.1", "user.2", "user.3", "user.4", "user.5"].map(|name| (name, value.as_slice())).to_vec();
    assert!(matches!(refuse(file(), with_xattrs(0, &many)), WriteError::Xattr { problem: XattrProblem::TooMany, .. }));
    let node = |kind, attributes| match refuse(kind, attributes) {
        WriteError::Node { path, problem } if path == b"dir/bad" => problem,
        other => panic!("{other}"),
    };
    let plain = attributes(0o644);
    let sparse = |chunk_bits, chunks| Kind::File(Content::Sparse { size: 8192, chunk_bits, chunks });
    assert_eq!(node(Kind::Symlink(vec![b'x'; 4096]), plain.clone()), NodeProblem::Target);
    assert_eq!(node(Kind::Symlink(vec![]), plain.clone()), NodeProblem::Target);
    assert_eq!(node(Kind::Char(4096, 0), plain.clone()), NodeProblem::Device);
    assert_eq!(node(Kind::File(Content::Plain { size: 4097, start: 9 }), plain.clone()), NodeProblem::Content);
    assert_eq!(node(sparse(0, vec![Some(10), None]), plain.clone()), NodeProblem::Content);
    assert_eq!(node(sparse(0, vec![None]), plain.clone()), NodeProblem::Chunks);
    assert_eq!(node(sparse(32, vec![None]), plain.clone()), NodeProblem::Chunks);
    assert_eq!(node(file(), Attributes { mode: 0o10_0644, ..plain.clone() }), NodeProblem::Mode);
    assert_eq!(node(file(), Attributes { mtime_nsec: 1_000_000_000, ..plain }), NodeProblem::Time);
    let plain = attributes(0o644);
    assert_eq!(node(file(), Attributes { gid: u32::MAX, ..plain }), NodeProblem::Owner);
    let too_large = erofs::write(&Sample::new().tree, u64::from(u32::MAX));
    assert_eq!(too_large, Err(WriteError::TooLarge { blocks: 1 + u64::from(u32::MAX) }));
}

#[test]
fn values_that_occur_twice_are_stored_once() {
    let mut sample = Sample::new();
    let label = b"system_u:object_r:container_file_t:s0:c1,c2";
    for at in 0..1000 {
        sample.file(Tree::ROOT, &format!("{at}"), with_xattrs(0o644, &[("security.selinux", label)]), b"");
    }
    let bytes = sample.write().into_bytes();
    let copies = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(label)).count();
    assert_eq!(copies, 1);
}

/// A change of the bytes is a change of the format: every layer made before and after has another id. If it is meant, it
/// is a new writer generation.
#[test]
fn the_bytes_of_a_fixed_tree_are_pinned() {
    let metadata = everything().write();
    let mut listing = String::new();
    erofs::dump(&Image::new(metadata.bytes()).unwrap(), &mut listing).unwrap().unwrap();
    let mut digests = String::new();
    for bytes in [metadata.bytes(), listing.as_bytes()] {
        write!(digests, "{} {:#x} ", bytes.len(), crc32c::crc32c(bytes)).unwrap();
    }
    assert_eq!(digests, "1441792 0xe4450d2d 1792680 0xe91b8cc5 ");
}
