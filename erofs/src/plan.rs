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
use crate::{BLOCK_U64, Content, FileType, Kind, NodeId, Tree, directory};

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

/// An inode with its place. There can be millions: what few of them have is kept apart.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) id: NodeId,
    pub(crate) nlink: u32,
    /// Its address, in slots.
    pub(crate) nid: u32,
    /// Of a directory or symlink the place of what it needs in [`Plan::own`].
    own: u32,
}

/// What a directory or a symlink needs in the metadata.
#[derive(Debug)]
pub(crate) struct Own {
    /// The directory that holds it (for a hard link, one of them).
    pub(crate) parent: NodeId,
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
    /// Bytes of all of it behind the inode.
    pub(crate) size: u32,
}

/// How an inode lies: it follows from what is planned, and is not kept.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) layout: u16,
    /// Bytes behind the xattrs: inline tail or chunk map.
    pub(crate) tail: u64,
    /// Metadata blocks of its own.
    pub(crate) blocks: u64,
}

impl Planned {
    /// Byte offset in the metadata.
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.nid) * INODE_SLOT
    }
}

/// Contents of `size` bytes that lie in the metadata, behind `head` bytes of inode and xattrs: the tail goes inline where
/// all of that fits into one block.
fn shape_in_metadata(size: u64, head: u64) -> Shape {
    let tail = size % BLOCK_U64;
    match tail > 0 && head + tail <= BLOCK_U64 {
        true => Shape { layout: FLAT_INLINE, tail, blocks: size / BLOCK_U64 },
        false => Shape { layout: FLAT_PLAIN, tail: 0, blocks: size.div_ceil(BLOCK_U64) },
    }
}

/// All places.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) tree: &'a Tree,
    /// In order of inode numbers.
    pub(crate) inodes: Vec<Planned>,
    own: Vec<Own>,
    /// By node: its inode number, which is one more than its place in `inodes`. Nodes that no name leads to have none.
    numbers: Vec<Option<NonZeroU32>>,
    /// By the number that nodes with equal xattrs have in common.
    xattrs: Vec<Xattrs<'a>>,
    /// In order of their ids.
    pub(crate) shared: Vec<Xattr<'a>>,
    /// The first block of the shared xattrs; 0 if there are none.
    pub(crate) xattr_block: u64,
    pub(crate) first_data_block: u64,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(tree: &'a Tree, data_blocks: u64) -> Result<Self, WriteError> {
        let Numbered { inodes, own, numbers } = Numbered::of(tree);
        let (xattrs, shared) = assign_xattrs(tree, &inodes)?;
        for inode in &inodes {
            let failed = |problem| WriteError::Node { path: path_of(tree, inode.id), problem };
            examine(tree, inode.id, data_blocks).map_err(failed)?;
        }
        let mut plan = Plan { tree, inodes, own, numbers, xattrs, shared, xattr_block: 0, first_data_block: 0 };
        plan.place()?;
        let blocks = plan.first_data_block.saturating_add(data_blocks);
        if blocks > u64::from(u32::MAX) {
            return Err(WriteError::TooLarge { blocks });
        }
        Ok(plan)
    }

    /// The address of a node's inode; 0 where it has none.
    pub(crate) fn nid(&self, id: NodeId) -> u64 {
        self.numbers[id.index()].map_or(0, |number| self.inodes[number.get() as usize - 1].nid.into())
    }

    pub(crate) fn xattrs(&self, inode: &Planned) -> Option<&Xattrs<'a>> {
        self.xattrs.get(self.tree.nodes().owner_of(inode.id.index())).filter(|xattrs| xattrs.size > 0)
    }

    pub(crate) fn own(&self, inode: &Planned) -> Option<&Own> {
        matches!(self.tree.file_type(inode.id), FileType::Directory | FileType::Symlink)
            .then(|| &self.own[inode.own as usize])
    }

    /// `i_size`.
    pub(crate) fn size(&self, inode: &Planned) -> u64 {
        let content = self.tree.content(inode.id).map(|content| content.size());
        content.or(self.own(inode).map(|own| own.size)).unwrap_or(0)
    }

    pub(crate) fn shape(&self, inode: &Planned) -> Shape {
        let head = ExtendedInode::SIZE as u64 + self.xattrs(inode).map_or(0, |xattrs| u64::from(xattrs.size));
        match (self.own(inode), self.tree.content(inode.id).as_deref()) {
            (Some(own), _) => shape_in_metadata(own.size, head),
            (_, Some(Content::Sparse { size, chunks, .. })) if *size > 0 => {
                Shape { layout: CHUNK_BASED, tail: chunks.len() as u64 * 4, blocks: 0 }
            }
            _ => Shape { layout: FLAT_PLAIN, tail: 0, blocks: 0 },
        }
    }

    /// The entries of a directory as they lie on disk, with the nodes they lead to.
    pub(crate) fn entries(&self, inode: &Planned) -> Vec<(&'a [u8], NodeId)> {
        entries(self.tree, inode.id, self.own(inode).map_or(inode.id, |own| own.parent))
    }

    fn place(&mut self) -> Result<(), WriteError> {
        let mut space = Space::new();
        for number in 0..self.inodes.len() {
            let inode = &self.inodes[number];
            let xattrs = self.xattrs(inode).map_or(0, |xattrs| u64::from(xattrs.size));
            let offset = space.take(ExtendedInode::SIZE as u64 + xattrs + self.shape(inode).tail);
            let nid = u32::try_from(offset / INODE_SLOT);
            self.inodes[number].nid = nid.map_err(|_| WriteError::TooLarge { blocks: u64::MAX })?;
        }
        let mut next = space.end;
        if !self.shared.is_empty() {
            self.xattr_block = next;
            let size: usize = self.shared.iter().map(|xattr| xattr::entry_size(xattr.rest, xattr.value)).sum();
            next += (size as u64).div_ceil(BLOCK_U64);
        }
        for number in 0..self.inodes.len() {
            let (inode, blocks) = (&self.inodes[number], self.shape(&self.inodes[number]).blocks);
            if blocks > 0 {
                let own = inode.own as usize;
                self.own[own].block = next;
                next += blocks;
            }
        }
        self.first_data_block = next;
        Ok(())
    }
}

/// Some path that leads to a node. It walks the tree, and is for errors only.
fn path_of(tree: &Tree, id: NodeId) -> Vec<u8> {
    tree.walk().find(|visit| visit.node == id).map(|visit| visit.path).unwrap_or_default()
}

/// The nodes in the order of their inodes, and how many names each has.
struct Numbered {
    inodes: Vec<Planned>,
    own: Vec<Own>,
    numbers: Vec<Option<NonZeroU32>>,
}

impl Numbered {
    fn of(tree: &Tree) -> Self {
        let mut all = Self { inodes: Vec::with_capacity(tree.len()), own: Vec::new(), numbers: vec![None; tree.len()] };
        all.add(tree, Tree::ROOT, Tree::ROOT, 2);
        let mut waiting = vec![Tree::ROOT];
        while let Some(id) = waiting.pop() {
            let first = waiting.len();
            for (_, child) in tree.children(id) {
                if tree.is_directory(child) {
                    waiting.push(child);
                    all.add(tree, child, id, 2);
                    all.add(tree, id, id, 1);
                } else {
                    all.add(tree, child, id, 1);
                }
            }
            waiting[first..].reverse();
        }
        all
    }

    fn add(&mut self, tree: &Tree, id: NodeId, parent: NodeId, nlink: u32) {
        if let Some(number) = self.numbers[id.index()] {
            self.inodes[number.get() as usize - 1].nlink += nlink;
            return;
        }
        let size = match tree.target(id) {
            Some(target) => Some(target.len() as u64),
            None => tree.is_directory(id).then(|| directory::size(&entries(tree, id, parent))),
        };
        // These fit: a tree has less than 2^32 nodes.
        let own = self.own.len() as u32;
        self.own.extend(size.map(|size| Own { parent, size, block: 0 }));
        self.inodes.push(Planned { id, nlink, nid: 0, own });
        self.numbers[id.index()] = NonZeroU32::new(self.inodes.len() as u32);
    }
}

/// Splits all xattrs into shared and inline ones; gives them for each set of nodes that have the same, and the shared.
fn assign_xattrs<'a>(tree: &'a Tree, inodes: &[Planned]) -> Result<(Vec<Xattrs<'a>>, Vec<Xattr<'a>>), WriteError> {
    let nodes = tree.nodes();
    let mut all: Vec<Xattrs<'a>> = Vec::new();
    if (0..nodes.owners()).all(|owner| nodes.xattrs_of(owner).is_empty()) {
        return Ok((all, Vec::new()));
    }
    let mut inodes_of = vec![0_u64; nodes.owners()];
    inodes.iter().for_each(|inode| inodes_of[nodes.owner_of(inode.id.index())] += 1);
    let mut uses: HashMap<(&[u8], &[u8]), u64> = HashMap::new();
    for (owner, count) in inodes_of.iter().enumerate() {
        nodes.xattrs_of(owner).iter().for_each(|(name, value)| *uses.entry((name, value)).or_default() += count);
    }
    let mut sharing = Sharing { uses, ids: HashMap::new(), shared: Vec::new(), next_id: 0 };
    all.resize_with(nodes.owners(), Xattrs::default);
    for inode in inodes {
        let owner = nodes.owner_of(inode.id.index());
        let known = all[owner].size > 0;
        for (name, value) in nodes.xattrs_of(owner) {
            let failed = |problem| WriteError::Xattr { path: path_of(tree, inode.id), name: name.clone(), problem };
            let (index, rest) = xattr::examine(tree.file_type(inode.id), name, value).map_err(failed)?;
            if !known {
                sharing.add(&mut all[owner], name, Xattr { index, rest, value }).map_err(failed)?;
            }
        }
    }
    Ok((all, sharing.shared))
}

/// Which xattrs are stored once for all.
struct Sharing<'a> {
    /// Inodes that have each, by name and value.
    uses: HashMap<(&'a [u8], &'a [u8]), u64>,
    ids: HashMap<(&'a [u8], &'a [u8]), u32>,
    shared: Vec<Xattr<'a>>,
    next_id: u64,
}

impl<'a> Sharing<'a> {
    fn add(&mut self, own: &mut Xattrs<'a>, name: &'a [u8], xattr: Xattr<'a>) -> Result<(), XattrProblem> {
        let size = xattr::entry_size(xattr.rest, xattr.value) as u64;
        let room = own.shared.len() < usize::from(u8::MAX);
        let uses = self.uses.get(&(name, xattr.value)).copied().unwrap_or_default();
        let mut total = u64::from(own.size).max(XattrHeader::SIZE as u64);
        if room && pays(size, uses, self.next_id) {
            let Self { ids, shared, next_id, .. } = self;
            let id = *ids.entry((name, xattr.value)).or_insert_with(|| {
                shared.push(xattr);
                let id = *next_id as u32;
                *next_id += size / xattr::ALIGN as u64;
                id
            });
            own.shared.push(id);
            total += xattr::ALIGN as u64;
        } else {
            own.inline.push(xattr);
            total += size;
        }
        if icount(total).is_none() {
            return Err(XattrProblem::TooMany);
        }
        // Fits: their count does, which has 16 bits.
        own.size = total as u32;
        Ok(())
    }
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
fn examine(tree: &Tree, id: NodeId, data_blocks: u64) -> Result<(), NodeProblem> {
    let ensure = |holds: bool, problem| if holds { Ok(()) } else { Err(problem) };
    let attributes = tree.attributes(id);
    ensure(attributes.mode <= 0o7777, NodeProblem::Mode)?;
    ensure(attributes.uid != NO_ID && attributes.gid != NO_ID, NodeProblem::Owner)?;
    ensure(attributes.mtime_nsec < 1_000_000_000, NodeProblem::Time)?;
    if let Some(content) = tree.content(id) {
        ensure(content.size() <= i64::MAX as u64, NodeProblem::Size)?;
        return examine_content(&content, data_blocks);
    }
    if let Some(target) = tree.target(id) {
        let length = target.len() as u64;
        return ensure((1..BLOCK_U64).contains(&length) && !target.contains(&0), NodeProblem::Target);
    }
    match tree.node(id).kind {
        Kind::Char(major, minor) | Kind::Block(major, minor) => {
            ensure(encode_device(major, minor).is_some(), NodeProblem::Device)
        }
        _ => Ok(()),
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

/// The entries of a directory, its own two among them.
fn entries(tree: &Tree, id: NodeId, parent: NodeId) -> Vec<(&[u8], NodeId)> {
    let dots: [(&[u8], NodeId); 2] = [(b".", id), (b"..", parent)];
    let mut entries: Vec<_> = dots.into_iter().chain(tree.children(id)).collect();
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
