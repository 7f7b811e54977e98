//! Images for tests: a tree together with the data space that its files lie in.
use erofs::{Attributes, BLOCK, Content, Expect, Kind, Metadata, Node, NodeId, RareMap, Tree};

pub struct Sample {
    pub tree: Tree,
    pub data: Vec<u8>,
}

pub fn attributes(mode: u16) -> Attributes {
    Attributes { mode, uid: 0, gid: 0, mtime: 1_700_000_000, mtime_nsec: 0, xattrs: RareMap::new() }
}

pub fn with_xattrs(mode: u16, xattrs: &[(&str, &[u8])]) -> Attributes {
    let xattrs = xattrs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect();
    Attributes { xattrs, ..attributes(mode) }
}

/// Bytes that are not the same anywhere.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| step()).collect()
}

impl Sample {
    pub fn new() -> Self {
        Sample { tree: Tree::new(attributes(0o755)), data: Vec::new() }
    }

    pub fn add(&mut self, parent: NodeId, name: &str, attributes: Attributes, kind: Kind) -> NodeId {
        self.tree.add(parent, name.as_bytes(), Node { attributes, kind }).unwrap()
    }

    pub fn directory(&mut self, parent: NodeId, name: &str) -> NodeId {
        self.add(parent, name, attributes(0o755), Kind::Directory)
    }

    pub fn file(&mut self, parent: NodeId, name: &str, attributes: Attributes, bytes: &[u8]) -> NodeId {
        let content = match bytes {
            [] => Content::EMPTY,
            bytes => Content::Plain { size: bytes.len() as u64, start: self.store(bytes) },
        };
        self.add(parent, name, attributes, Kind::File(content))
    }

    /// A file that is zero but for the ranges given.
    pub fn sparse(&mut self, parent: NodeId, name: &str, size: u64, ranges: &[(u64, Vec<u8>)]) -> NodeId {
        let extents: Vec<_> = ranges.iter().map(|(offset, bytes)| (*offset, bytes.len() as u64)).collect();
        let layout = Content::sparse(size, &extents);
        let starts: Vec<u64> = layout
            .pieces
            .iter()
            .map(|piece| {
                let mut bytes = vec![0; piece.len as usize];
                for (offset, range) in ranges {
                    for (at, byte) in range.iter().enumerate() {
                        if let Some(place) = (offset + at as u64).checked_sub(piece.offset).filter(|at| *at < piece.len)
                        {
                            bytes[place as usize] = *byte;
                        }
                    }
                }
                self.store(&bytes)
            })
            .collect();
        self.add(parent, name, attributes(0o644), Kind::File(layout.content(starts)))
    }

    /// Puts bytes into the data space and gives their block.
    pub fn store(&mut self, bytes: &[u8]) -> u64 {
        let start = self.data_blocks();
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(BLOCK), 0);
        start
    }

    pub fn data_blocks(&self) -> u64 {
        (self.data.len() / BLOCK) as u64
    }

    pub fn write(&self) -> Metadata {
        let mut metadata = erofs::write(&self.tree, self.data_blocks()).unwrap();
        metadata.set_uuid(*b"lamina test uuid");
        metadata
    }

    pub fn expect(&self, metadata: &Metadata) -> Expect {
        let first_data_block = metadata.first_data_block();
        Expect { image_blocks: first_data_block + self.data_blocks(), first_data_block }
    }

    /// What a read of a file must give.
    pub fn read(&self, content: &Content, offset: u64, len: u64) -> Vec<u8> {
        let end = (offset + len).min(content.size());
        let data = |at: u64| self.data[at as usize];
        let byte = |at: u64| match content {
            Content::Plain { start, .. } => data(start * BLOCK as u64 + at),
            Content::Sparse { chunk_bits, chunks, .. } => {
                let chunk = (BLOCK as u64) << chunk_bits;
                chunks[(at / chunk) as usize].map_or(0, |start| data(start * BLOCK as u64 + at % chunk))
            }
        };
        (offset..end).map(byte).collect()
    }

    /// Ranges of a file worth reading, as offset and length: all of a small one.
    pub fn probes(content: &Content) -> Vec<(u64, u64)> {
        const PROBE: u64 = 40_000;
        let size = content.size();
        if size <= 1 << 20 {
            return vec![(0, size)];
        }
        let places = [0, 1 << 16, size / 3, size / 2, (1 << 32) - 5000, size.saturating_sub(PROBE)];
        places.into_iter().filter(|place| *place < size).map(|place| (place, PROBE)).collect()
    }
}

/// One of everything that a file system can hold.
pub fn everything() -> Sample {
    let mut sample = Sample::new();
    let root = Tree::ROOT;
    let odd =
        Attributes { mtime: -1_000_000, mtime_nsec: 999_999_999, ..with_xattrs(0o1777, &[("user.root", b"yes")]) };
    sample.tree.set_attributes(root, &odd);
    files(&mut sample);
    links_and_devices(&mut sample);
    xattrs(&mut sample);
    let deep = (0..50).fold(root, |parent, _| sample.directory(parent, "deeper"));
    sample.file(deep, "bottom", attributes(0o600), b"bottom");
    let sorted = sample.directory(root, "names before and after the dots");
    for name in ["!", "-", "...", "..a", ".a", "0", "\u{e4}", "~"] {
        sample.file(sorted, name, attributes(0o644), name.as_bytes());
    }
    for count in [14, 15, 16, 17, 31, 200, 3000] {
        let directory = sample.directory(root, &format!("{count} entries"));
        for at in 0..count {
            sample.file(directory, &format!("{at:0>200}"), attributes(0o644), b"");
        }
    }
    sample
}

fn files(sample: &mut Sample) {
    let directory = sample.directory(Tree::ROOT, "files");
    for len in [0, 1, 4095, 4096, 4097, 100_000] {
        sample.file(directory, &format!("{len} bytes"), attributes(0o644), &noise(len, len as u64));
    }
    let owner = Attributes { uid: u32::MAX - 1, gid: 3_000_000_000, mtime_nsec: 1, ..attributes(0o6755) };
    let shared = sample.file(directory, "owner", owner, b"#!/bin/sh\n");
    let twin = sample.tree.node(shared);
    sample.add(directory, "same blocks", attributes(0o400), twin.kind);
    sample.sparse(directory, "hole", 12_345, &[]);
    sample.sparse(directory, "holes", 1 << 20, &[(5000, noise(10_000, 1)), (700_000, noise(4096, 2))]);
    sample.sparse(directory, "end in a hole", 1 << 20, &[(0, noise(100, 3))]);
    let middle = (1 << 32) - 5000;
    sample.sparse(
        directory,
        "5 GiB",
        5 << 30,
        &[(0, noise(10, 4)), (middle, noise(10_000, 5)), ((5 << 30) - 1, vec![7])],
    );
    let name = "n".repeat(255);
    sample.file(directory, &name, Attributes { mtime: 1 << 40, ..attributes(0o644) }, b"long name");
    sample.file(directory, "ancient", Attributes { mtime: -(1 << 40), ..attributes(0) }, b"long ago");
}

fn links_and_devices(sample: &mut Sample) {
    let directory = sample.directory(Tree::ROOT, "links and devices");
    let file = sample.file(directory, "linked", attributes(0o644), b"linked");
    let elsewhere = sample.directory(directory, "elsewhere");
    for name in ["a", "b", "c"] {
        sample.tree.link(elsewhere, name.as_bytes(), file).unwrap();
    }
    for len in [1, 100, 3000, 4032, 4033, 4095] {
        let kind = Kind::Symlink(vec![b'/'; len]);
        sample.add(directory, &format!("symlink {len}"), attributes(0o777), kind.clone());
        let attributes = with_xattrs(0o777, &[("trusted.x", &[b'v'; 5000])]);
        sample.add(directory, &format!("symlink {len} with xattrs"), attributes, kind);
    }
    let symlink = sample.add(directory, "symlink", attributes(0o777), Kind::Symlink(b"symlink 1".to_vec()));
    sample.tree.link(directory, b"symlink again", symlink).unwrap();
    sample.add(directory, "whiteout", attributes(0), Kind::Char(0, 0));
    sample.add(directory, "null", attributes(0o666), Kind::Char(1, 3));
    sample.add(directory, "largest", attributes(0o660), Kind::Char(0xfff, 0xf_ffff));
    sample.add(directory, "block", attributes(0o660), Kind::Block(259, 0x1_2345));
    sample.add(directory, "fifo", attributes(0o644), Kind::Fifo);
    sample.add(directory, "socket", attributes(0o755), Kind::Socket);
}

fn xattrs(sample: &mut Sample) {
    let directory = sample.directory(Tree::ROOT, "xattrs");
    let long: Vec<u8> = noise(65_535, 6);
    let set: [(&str, &[u8]); 6] = [
        ("user.a", b"value"),
        ("user.empty", b""),
        ("trusted.t", &[0, 1, 2, 255]),
        ("security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("user.middling", &long[..900]),
        ("system.posix_acl_access", ACL),
    ];
    for name in ["one", "two", "three"] {
        sample.file(directory, name, with_xattrs(0o640, &set), name.as_bytes());
    }
    let mut single: Vec<(&str, &[u8])> = set[..3].to_vec();
    single.push(("user.only here", b"!"));
    single.push(("user.long", &long));
    sample.file(directory, "long", with_xattrs(0o644, &single), b"long");
    let mut many = with_xattrs(0o644, &[]);
    for at in 0..3000 {
        many.xattrs.insert(format!("user.{at:040}").into_bytes(), vec![at as u8; at % 40]);
    }
    sample.file(directory, "many", many.clone(), b"many");
    sample.file(directory, "as many", many, b"as many");
    let opaque: [(&str, &[u8]); 2] = [("trusted.overlay.opaque", b"y"), ("system.posix_acl_default", ACL)];
    for name in ["opaque", "also opaque"] {
        sample.add(directory, name, with_xattrs(0o750, &opaque), Kind::Directory);
    }
    let wide = with_xattrs(0o755, &[("user.wide", &long[..3000]), ("user.wider", &long[..3001])]);
    let wide = sample.add(directory, "wide directory", wide, Kind::Directory);
    for at in 0..100 {
        sample.file(wide, &format!("entry {at}"), attributes(0o644), b"");
    }
}

/// `u::rw-,u:1000:r--,g::r--,m::r--,o::---`, as in `linux/posix_acl_xattr.h`.
const ACL: &[u8] = &[
    2, 0, 0, 0, // version
    1, 0, 6, 0, 255, 255, 255, 255, // owner
    2, 0, 4, 0, 0xe8, 3, 0, 0, // user 1000
    4, 0, 4, 0, 255, 255, 255, 255, // group
    16, 0, 4, 0, 255, 255, 255, 255, // mask
    32, 0, 0, 0, 255, 255, 255, 255, // others
];
