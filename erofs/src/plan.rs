//! Decides where everything lies before a byte is written: the order of inodes, their addresses, which xattrs are shared,
//! what goes inline. Also the place where a tree is found not to fit into EROFS.
//!
//! Inodes are numbered so that those of one directory are neighbours, which is the order that `ls -l` and `find` want them
//! in. An inode with all that belongs to it lies in one block if it fits into one, else it begins a run of blocks of
//! its own; gaps are filled by later, smaller inodes. The root is the first, as its nid must be less than 65536.

use std::collections::HashMap;
use std::num::NonZeroU32;

use crate::content::{MAX_CHUNK_BITS, chunk_blocks, chunk_count};
use crate::format::{
    CHUNK_BASED, ExtendedInode, FIRST_INODE_OFFSET, FLAT_INLINE, FLAT_PLAIN, INODE_SLOT, NO_ID, XattrHeader,
    encode_device,
};
use crate::xattr::{self, XattrProblem};
use crate::{BLOCK_U64, Content, Kind, Node, NodeId, Tree, directory};

/// Why a node cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeProblem {
    /// More than 12 bits of mode.
    #[error("the mode has bits other than permissions")]
    Mode,
    /// An owner or group of 2^32 - 1, which is nobody: the kernel shows another and overlayfs cannot copy the file.
    #[error("the owner or group 4294967295 cannot be")]
    Owner,
    /// A billion nanoseconds or more.
    #[error("the nanoseconds of the time are a second or more")]
    Time,
    /// Empty, longer than 4095 bytes, or with a NUL in it.
    #[error("the symlink's target is empty, longer than 4095 bytes, or has a NUL in it")]
    Target,
    /// Beyond 12 bits of major or 20 bits of minor.
    #[error("the device number is too large")]
    Device,
    /// A file of 2^63 bytes or more.
    #[error("the file is too large")]
    Size,
    /// Contents that do not lie in the data space.
    #[error("the contents lie outside of the data blocks")]
    Content,
    /// The chunk size is over the limit, or the number of chunks is not that of the file's size.
    #[error("the chunks do not cover the file")]
    Chunks,
}

/// Why a tree cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// An extended attribute that EROFS or an image of ours cannot hold.
    #[error("/{}: attribute {}: {problem}", path.escape_ascii(), name.escape_ascii())]
    Xattr {
        /// A path of the file, without a leading slash.
        path: Vec<u8>,
        /// The attribute's full name.
        name: Vec<u8>,
        /// What is wrong.
        problem: XattrProblem,
    },
    /// Anything else about a file.
    #[error("/{}: {problem}", path.escape_ascii())]
    Node {
        /// A path of the file, without a leading slash.
        path: Vec<u8>,
        /// What is wrong.
        problem: NodeProblem,
    },
    /// Block addresses have 32 bits.
    #[error("an image of {blocks} blocks is too large: the limit is 2^32 - 1")]
    TooLarge {
        /// Blocks that the image would need.
        blocks: u64,
    },
}

/// An xattr on its way to disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xattr<'a> {
    pub(crate) index: u8,
    pub(crate) rest: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// An inode with its place.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) id: NodeId,
    /// The directory that holds it (for a hard link, one of them).
    pub(crate) parent: NodeId,
    pub(crate) nlink: u32,
    /// Bytes of all its xattrs behind the inode.
    pub(crate) xattr_size: u32,
    pub(crate) xattrs: Option<Box<Xattrs<'a>>>,
    /// Byte offset in the metadata.
    pub(crate) offset: u64,
    /// `i_size`.
    pub(crate) size: u64,
    /// The first of the metadata blocks of its own, if there are any.
    pub(crate) block: u64,
}

/// The xattrs of an inode that has some.
#[derive(Debug, Default)]
pub(crate) struct Xattrs<'a> {
    /// Ids of shared ones.
    pub(crate) shared: Vec<u32>,
    pub(crate) inline: Vec<Xattr<'a>>,
}

/// How an inode lies: it follows from what is planned, and is not kept, since there can be millions of inodes.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) layout: u16,
    /// Bytes behind the xattrs: inline tail or chunk map.
    pub(crate) tail: u64,
    /// Metadata blocks of its own.
    pub(crate) blocks: u64,
}

impl Planned<'_> {
    pub(crate) fn nid(&self) -> u64 {
        self.offset / INODE_SLOT
    }

    /// Bytes before the inline tail or the chunk map.
    fn head(&self) -> u64 {
        ExtendedInode::SIZE as u64 + u64::from(self.xattr_size)
    }

    pub(crate) fn shape(&self, tree: &Tree) -> Shape {
        match &tree.node(self.id).kind {
            Kind::Directory | Kind::Symlink(_) => self.shape_in_metadata(),
            Kind::File(Content::Sparse { size, chunks, .. }) if *size > 0 => {
                Shape { layout: CHUNK_BASED, tail: chunks.len() as u64 * 4, blocks: 0 }
            }
            _ => Shape { layout: FLAT_PLAIN, tail: 0, blocks: 0 },
        }
    }

    /// Contents that lie in the metadata: the tail goes inline where inode, xattrs and tail fit into one block.
    fn shape_in_metadata(&self) -> Shape {
        let tail = self.size % BLOCK_U64;
        match tail > 0 && self.head() + tail <= BLOCK_U64 {
            true => Shape { layout: FLAT_INLINE, tail, blocks: self.size / BLOCK_U64 },
            false => Shape { layout: FLAT_PLAIN, tail: 0, blocks: self.size.div_ceil(BLOCK_U64) },
        }
    }
}

/// All places.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// In order of inode numbers.
    pub(crate) inodes: Vec<Planned<'a>>,
    /// By node: its inode number, which is one more than its place in `inodes`. Nodes that no name leads to have none.
    numbers: Vec<Option<NonZeroU32>>,
    /// In order of their ids.
    pub(crate) shared: Vec<Xattr<'a>>,
    /// The first block of the shared xattrs; 0 if there are none.
    pub(crate) xattr_block: u64,
    pub(crate) first_data_block: u64,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(tree: &'a Tree, data_blocks: u64) -> Result<Self, WriteError> {
        let (mut inodes, numbers) = number(tree);
        let shared = assign_xattrs(tree, &mut inodes)?;
        for inode in &mut inodes {
            let failed = |problem| WriteError::Node { path: path_of(tree, inode.id), problem };
            examine(tree.node(inode.id), data_blocks).map_err(failed)?;
            inode.size = size(tree, inode);
        }
        let mut plan = Plan { inodes, numbers, shared, xattr_block: 0, first_data_block: 0 };
        plan.place(tree);
        let blocks = plan.first_data_block.saturating_add(data_blocks);
        if blocks > u64::from(u32::MAX) {
            return Err(WriteError::TooLarge { blocks });
        }
        Ok(plan)
    }

    pub(crate) fn inode(&self, id: NodeId) -> Option<&Planned<'a>> {
        self.numbers[id.index()].map(|number| &self.inodes[number.get() as usize - 1])
    }

    fn place(&mut self, tree: &Tree) {
        let mut space = Space::new();
        for inode in &mut self.inodes {
            inode.offset = space.take(inode.head() + inode.shape(tree).tail);
        }
        let mut next = space.end;
        if !self.shared.is_empty() {
            self.xattr_block = next;
            let size: usize = self.shared.iter().map(|xattr| xattr::entry_size(xattr.rest, xattr.value)).sum();
            next += (size as u64).div_ceil(BLOCK_U64);
        }
        for inode in &mut self.inodes {
            let blocks = inode.shape(tree).blocks;
            if blocks > 0 {
                inode.block = next;
                next += blocks;
            }
        }
        self.first_data_block = next;
    }
}

/// Some path that leads to a node. It walks the tree, and is for errors only.
fn path_of(tree: &Tree, id: NodeId) -> Vec<u8> {
    tree.walk().find(|visit| visit.node == id).map(|visit| visit.path).unwrap_or_default()
}

/// Numbers the nodes, and counts their names.
fn number(tree: &Tree) -> (Vec<Planned<'_>>, Vec<Option<NonZeroU32>>) {
    let mut inodes = Vec::with_capacity(tree.len());
    let mut numbers = vec![None; tree.len()];
    let mut add = |inodes: &mut Vec<Planned<'_>>, id: NodeId, parent: NodeId, nlink: u32| {
        let number = *numbers[id.index()].get_or_insert_with(|| {
            inodes.push(unplaced(id, parent));
            // Fits: a tree of 2^32 nodes would take hundreds of gigabytes.
            NonZeroU32::new(inodes.len() as u32).unwrap_or(NonZeroU32::MAX)
        });
        inodes[number.get() as usize - 1].nlink += nlink;
    };
    add(&mut inodes, Tree::ROOT, Tree::ROOT, 2);
    let mut waiting = vec![Tree::ROOT];
    while let Some(id) = waiting.pop() {
        let first = waiting.len();
        for (_, child) in tree.children(id) {
            if tree.node(child).kind == Kind::Directory {
                waiting.push(child);
                add(&mut inodes, child, id, 2);
                add(&mut inodes, id, id, 1);
            } else {
                add(&mut inodes, child, id, 1);
            }
        }
        waiting[first..].reverse();
    }
    (inodes, numbers)
}

fn unplaced<'a>(id: NodeId, parent: NodeId) -> Planned<'a> {
    Planned { id, parent, nlink: 0, xattr_size: 0, xattrs: None, offset: 0, size: 0, block: 0 }
}

/// Splits all xattrs into shared and inline ones, and gives the shared.
fn assign_xattrs<'a>(tree: &'a Tree, inodes: &mut [Planned<'a>]) -> Result<Vec<Xattr<'a>>, WriteError> {
    let xattrs = |id| tree.node(id).attributes.xattrs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
    let mut uses: HashMap<_, u64> = HashMap::new();
    for pair in inodes.iter().flat_map(|inode| xattrs(inode.id)) {
        *uses.entry(pair).or_default() += 1;
    }
    let mut ids: HashMap<_, u32> = HashMap::new();
    let mut shared = Vec::new();
    let mut next_id = 0;
    for inode in inodes.iter_mut().filter(|inode| !tree.node(inode.id).attributes.xattrs.is_empty()) {
        let (id, file_type) = (inode.id, tree.node(inode.id).kind.file_type());
        let failed = |name: &[u8], problem| WriteError::Xattr { path: path_of(tree, id), name: name.to_vec(), problem };
        let (mut own, mut total) = (Xattrs::default(), XattrHeader::SIZE as u64);
        for (name, value) in xattrs(id) {
            let (index, rest) = xattr::examine(file_type, name, value).map_err(|problem| failed(name, problem))?;
            let xattr = Xattr { index, rest, value };
            let size = xattr::entry_size(rest, value) as u64;
            let room = own.shared.len() < usize::from(u8::MAX);
            if room && pays(size, uses[&(name, value)], next_id) {
                let shared_id = *ids.entry((name, value)).or_insert_with(|| {
                    shared.push(xattr);
                    let id = next_id as u32;
                    next_id += size / xattr::ALIGN as u64;
                    id
                });
                own.shared.push(shared_id);
                total += xattr::ALIGN as u64;
            } else {
                own.inline.push(xattr);
                total += size;
            }
            if icount(total).is_none() {
                return Err(failed(name, XattrProblem::TooMany));
            }
        }
        // Fits: their count does, which has 16 bits.
        (inode.xattrs, inode.xattr_size) = (Some(Box::new(own)), total as u32);
    }
    Ok(shared)
}

/// Whether an entry of `size` bytes used `uses` times is better stored once, with a 4-byte id at each use.
fn pays(size: u64, uses: u64, next_id: u64) -> bool {
    next_id + size < u64::from(u32::MAX) && uses * size > uses * xattr::ALIGN as u64 + size
}

/// `i_xattr_icount` of so many bytes of xattrs, the header included.
pub(crate) fn icount(xattr_size: u64) -> Option<u16> {
    match xattr_size {
        0 => Some(0),
        size => u16::try_from((size - XattrHeader::SIZE as u64) / xattr::ALIGN as u64 + 1).ok(),
    }
}

/// Refuses what EROFS cannot hold.
fn examine(node: &Node, data_blocks: u64) -> Result<(), NodeProblem> {
    let ensure = |holds: bool, problem| if holds { Ok(()) } else { Err(problem) };
    ensure(node.attributes.mode <= 0o7777, NodeProblem::Mode)?;
    ensure(node.attributes.uid != NO_ID && node.attributes.gid != NO_ID, NodeProblem::Owner)?;
    ensure(node.attributes.mtime_nsec < 1_000_000_000, NodeProblem::Time)?;
    match &node.kind {
        Kind::Symlink(target) => {
            ensure((1..BLOCK_U64).contains(&(target.len() as u64)) && !target.contains(&0), NodeProblem::Target)
        }
        Kind::Char(major, minor) | Kind::Block(major, minor) => {
            ensure(encode_device(*major, *minor).is_some(), NodeProblem::Device)
        }
        Kind::File(content) => {
            ensure(content.size() <= i64::MAX as u64, NodeProblem::Size)?;
            examine_content(content, data_blocks)
        }
        Kind::Directory | Kind::Fifo | Kind::Socket => Ok(()),
    }
}

fn examine_content(content: &Content, data_blocks: u64) -> Result<(), NodeProblem> {
    let inside = |start: u64, blocks: u64| start.checked_add(blocks).is_some_and(|end| end <= data_blocks);
    match content {
        Content::Plain { size, start } if *size == 0 || inside(*start, size.div_ceil(BLOCK_U64)) => Ok(()),
        Content::Plain { .. } => Err(NodeProblem::Content),
        Content::Sparse { size, chunk_bits, chunks } => {
            if *chunk_bits > MAX_CHUNK_BITS || chunks.len() as u64 != chunk_count(*size, *chunk_bits) {
                return Err(NodeProblem::Chunks);
            }
            let fits = |(at, start): (usize, &Option<u64>)| {
                start.is_none_or(|start| inside(start, chunk_blocks(*size, *chunk_bits, at as u64)))
            };
            if chunks.iter().enumerate().all(fits) { Ok(()) } else { Err(NodeProblem::Content) }
        }
    }
}

/// `i_size`.
fn size(tree: &Tree, inode: &Planned<'_>) -> u64 {
    match &tree.node(inode.id).kind {
        Kind::Directory => directory::size(&entries(tree, inode)),
        Kind::Symlink(target) => target.len() as u64,
        Kind::File(content) => content.size(),
        Kind::Char(..) | Kind::Block(..) | Kind::Fifo | Kind::Socket => 0,
    }
}

/// The entries of a directory as they lie on disk, with the nodes they lead to.
pub(crate) fn entries<'t>(tree: &'t Tree, inode: &Planned<'_>) -> Vec<(&'t [u8], NodeId)> {
    let dots: [(&[u8], NodeId); 2] = [(b".", inode.id), (b"..", inode.parent)];
    let mut entries: Vec<_> = dots.into_iter().chain(tree.children(inode.id)).collect();
    entries.sort_unstable_by_key(|(name, _)| *name);
    entries
}

/// Room for inodes: blocks with a gap that something may still go into, and the end.
struct Space {
    /// Byte ranges, none past a block's end.
    gaps: Vec<(u64, u64)>,
    /// The first block that nothing lies in.
    end: u64,
}

impl Space {
    /// Gaps kept open. More would save little, and take neighbours further apart.
    const GAPS: usize = 8;

    fn new() -> Self {
        Space { gaps: vec![(FIRST_INODE_OFFSET as u64, BLOCK_U64)], end: 1 }
    }

    fn take(&mut self, len: u64) -> u64 {
        let len = len.next_multiple_of(INODE_SLOT);
        if let Some(gap) = self.gaps.iter_mut().find(|(start, end)| end - start >= len) {
            let offset = gap.0;
            gap.0 += len;
            self.gaps.retain(|(start, end)| end - start >= ExtendedInode::SIZE as u64);
            return offset;
        }
        let offset = self.end * BLOCK_U64;
        self.end += len.div_ceil(BLOCK_U64);
        self.gaps.push((offset + len, self.end * BLOCK_U64));
        self.gaps.retain(|(start, end)| end - start >= ExtendedInode::SIZE as u64);
        if self.gaps.len() > Self::GAPS {
            let smallest = (0..self.gaps.len()).min_by_key(|at| self.gaps[*at].1 - self.gaps[*at].0);
            smallest.map(|at| self.gaps.remove(at));
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_cross_blocks_unless_they_are_longer() {
        let mut space = Space::new();
        assert_eq!(space.take(64), 1280);
        assert_eq!(space.take(4096), 4096);
        assert_eq!(space.take(2000), 1344);
        assert_eq!(space.take(10_000), 8192);
        assert_eq!(space.take(65), 1344 + 2016);
        assert_eq!(space.take(2000), 8192 + 10_016);
        assert_eq!(space.end, 5);
    }

    #[test]
    fn sharing_pays_from_the_second_use_on() {
        assert!(!pays(400, 1, 0));
        assert!(!pays(8, 2, 0));
        assert!(pays(12, 2, 0));
        assert!(pays(8, 3, 0));
    }

    #[test]
    fn the_limit_of_xattrs_is_that_of_a_sixteen_bit_count() {
        assert_eq!(icount(0), Some(0));
        assert_eq!(icount(16), Some(2));
        assert_eq!(icount(262_148), Some(u16::MAX));
        assert_eq!(icount(262_152), None);
    }
}
