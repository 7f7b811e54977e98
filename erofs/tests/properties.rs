//! Properties of any tree, and of any damage to an image.
use crate::ask::ask_everything;
use std::collections::BTreeMap;

use crate::sample::{self, everything};
use erofs::{Attributes, Content, Expect, FileType, Image, Kind, Node, NodeId, Tree, check, read_tree};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Blocks of the data space that generated trees lie in.
const DATA_BLOCKS: u64 = 1000;

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => b'a'..=b'd', 1 => any::<u8>()];
    prop_oneof![9 => vec(byte.clone(), 1..6), 1 => vec(byte, 240..=255)]
}

fn xattrs() -> impl Strategy<Value = BTreeMap<Vec<u8>, Vec<u8>>> {
    let prefix = prop_oneof![Just("user."), Just("trusted."), Just("security.")];
    let plain = (prefix, "[a-c]{1,3}").prop_map(|(prefix, rest)| format!("{prefix}{rest}").into_bytes());
    let name = prop_oneof![9 => plain, 1 => Just(b"system.posix_acl_access".to_vec())];
    let value =
        prop_oneof![9 => vec(b'0'..b'3', 0..4), 2 => vec(any::<u8>(), 0..300), 1 => vec(any::<u8>(), 3000..9000)];
    prop_oneof![2 => Just(BTreeMap::new()), 1 => btree_map(name, value, 0..5)]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let times = (prop_oneof![any::<i64>(), -2..2_i64], 0..1_000_000_000_u32);
    (0..=0o7777_u16, 0..u32::MAX, 0..u32::MAX, times, xattrs()).prop_map(
        |(mode, uid, gid, (mtime, mtime_nsec), xattrs)| Attributes {
            mode,
            uid,
            gid,
            mtime,
            mtime_nsec,
            xattrs: xattrs.into(),
        },
    )
}

fn content() -> impl Strategy<Value = Content> {
    let plain = (0..DATA_BLOCKS, 1..50_u64, 0..4096_u64).prop_map(|(start, blocks, cut)| {
        let start = start.min(DATA_BLOCKS - blocks);
        Content::Plain { size: blocks * 4096 - cut, start }
    });
    let sparse = (0..4_u8, vec(prop::option::of(0..DATA_BLOCKS - 8), 1..2000), 0..4096_u64).prop_map(
        |(chunk_bits, chunks, cut)| {
            let size = ((chunks.len() as u64) << (12 + chunk_bits)) - cut;
            Content::Sparse { size, chunk_bits, chunks }
        },
    );
    prop_oneof![Just(Content::EMPTY), plain, sparse]
}

fn kind() -> impl Strategy<Value = Kind> {
    let device = || (0..0x1000_u32, 0..0x10_0000_u32);
    prop_oneof![
        5 => Just(Kind::Directory),
        5 => content().prop_map(Kind::File),
        2 => vec(1..=255_u8, 1..4096).prop_map(Kind::Symlink),
        1 => device().prop_map(|(major, minor)| Kind::Char(major, minor)),
        1 => device().prop_map(|(major, minor)| Kind::Block(major, minor)),
        1 => Just(Kind::Fifo),
        1 => Just(Kind::Socket),
    ]
}

/// What to do next to a tree: a name in a directory picked by number, for a new node or another name of one.
type Step = (prop::sample::Index, Vec<u8>, Result<Node, prop::sample::Index>);

fn step() -> impl Strategy<Value = Step> {
    let node = (attributes(), kind()).prop_map(|(attributes, kind)| Node { attributes, kind });
    let what = prop_oneof![5 => node.prop_map(Ok), 1 => any::<prop::sample::Index>().prop_map(Err)];
    (any::<prop::sample::Index>(), name(), what)
}

fn tree() -> impl Strategy<Value = Tree> {
    (attributes(), vec(step(), 0..120)).prop_map(|(root, steps)| {
        let mut tree = Tree::new(root);
        let (mut directories, mut nodes): (Vec<NodeId>, Vec<NodeId>) = (vec![Tree::ROOT], vec![Tree::ROOT]);
        for (parent, name, what) in steps {
            let parent = *parent.get(&directories);
            match what {
                Ok(node) => {
                    let directory = node.kind == Kind::Directory;
                    let Ok(id) = tree.add(parent, &name, node) else { continue };
                    nodes.push(id);
                    directories.extend(directory.then_some(id));
                }
                Err(target) => {
                    // A directory, or a name that is there or not valid: no link then.
                    let _ = tree.link(parent, &name, *target.get(&nodes));
                }
            }
        }
        tree
    })
}

fn written(tree: &Tree) -> (Vec<u8>, Expect) {
    let metadata = erofs::write(tree, DATA_BLOCKS).unwrap();
    let first_data_block = metadata.first_data_block();
    (metadata.into_bytes(), Expect { image_blocks: first_data_block + DATA_BLOCKS, first_data_block })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_accepted_and_read_back(tree in tree()) {
        let (metadata, expect) = written(&tree);
        let checked = check(&metadata, &expect).unwrap();
        let back = read_tree(checked.image()).unwrap();
        prop_assert!(back == tree);
        prop_assert_eq!(written(&back).0, metadata, "equal trees give equal bytes");
    }

    #[test]
    fn every_name_is_found_and_no_other(tree in tree(), others in vec(name(), 20)) {
        let (metadata, expect) = written(&tree);
        let checked = check(&metadata, &expect).unwrap();
        let image = checked.image();
        let mut inodes = std::collections::HashMap::from([(Tree::ROOT, image.root().unwrap())]);
        for visit in tree.walk() {
            let inode = inodes[&visit.node];
            for (name, value) in &tree.node(visit.node).attributes.xattrs {
                prop_assert_eq!(image.xattr(&inode, name).unwrap(), Some(value.as_slice()));
            }
            if inode.file_type != FileType::Directory {
                continue;
            }
            for (name, child) in tree.children(visit.node) {
                let entry = image.lookup(&inode, name).unwrap().unwrap();
                let found = image.inode(entry.nid).unwrap();
                prop_assert_eq!(found.file_type, tree.node(child).kind.file_type());
                prop_assert_eq!(*inodes.entry(child).or_insert(found), found);
            }
            for other in &others {
                let found = image.lookup(&inode, other).unwrap().is_some();
                prop_assert_eq!(found, tree.lookup(visit.node, other).is_some() || other == b"." || other == b"..");
            }
        }
    }

    #[test]
    fn damage_never_panics_and_in_the_first_block_is_always_refused(
        tree in tree(),
        flips in vec((any::<prop::sample::Index>(), 1..=255_u8), 30),
    ) {
        let (mut metadata, expect) = written(&tree);
        for (at, flip) in flips {
            let at = at.index(metadata.len());
            metadata[at] ^= flip;
            let verdict = check(&metadata, &expect).is_ok();
            prop_assert!(!verdict || at >= 4096, "a flip at {} was accepted", at);
            if let Ok(image) = Image::new(&metadata) {
                ask_everything(&image);
            }
            metadata[at] ^= flip;
        }
    }

    #[test]
    fn random_bytes_behind_a_good_superblock_never_panic(
        tree in tree(),
        noise in vec((any::<prop::sample::Index>(), vec(prop_oneof![Just(0), Just(255), any::<u8>()], 1..64)), 1..20),
    ) {
        let (mut metadata, expect) = written(&tree);
        for (at, bytes) in noise {
            let at = 1280 + at.index(metadata.len() - 1280);
            let end = metadata.len().min(at + bytes.len());
            metadata[at..end].copy_from_slice(&bytes[..end - at]);
        }
        let checksum = erofs::checksum(&metadata).to_le_bytes();
        metadata[1028..1032].copy_from_slice(&checksum);
        let _ = check(&metadata, &expect);
        ask_everything(&Image::new(&metadata).unwrap());
    }
}

#[test]
fn the_image_with_everything_is_accepted_and_read_back() {
    let sample = everything();
    let metadata = sample.write();
    let checked = check(metadata.bytes(), &sample.expect(&metadata)).unwrap();
    assert!(read_tree(checked.image()).unwrap() == sample.tree);
}

#[test]
fn extents_and_contents_say_the_same() {
    let sample = everything();
    let metadata = sample.write();
    let image = Image::new(metadata.bytes()).unwrap();
    for visit in sample.tree.walk() {
        let Kind::File(content) = &sample.tree.node(visit.node).kind else { continue };
        let mut inode = image.root().unwrap();
        for name in visit.path.split(|byte| *byte == b'/') {
            inode = image.inode(image.lookup(&inode, name).unwrap().unwrap().nid).unwrap();
        }
        for (offset, _) in sample::Sample::probes(content) {
            let Some(extent) = image.extent(&inode, offset).unwrap() else {
                assert!(offset >= content.size());
                continue;
            };
            let len = extent.len.min(10_000);
            let expected = sample.read(content, offset, len);
            let found = match extent.data {
                Some(at) => sample.data[at as usize..][..len as usize].to_vec(),
                None => vec![0; len as usize],
            };
            assert!(found == expected);
        }
        assert_eq!(image.extent(&inode, content.size()).unwrap(), None);
    }
}
