//! Several layers as one, in overlayfs's own form.
//!
//! The layer is the difference of two trees: what is seen below the first of the layers, and what is seen with all of them.
//! A node that one of them brought stands in it as the merged tree has it. A name that is seen below and no more gets a
//! whiteout; a directory of which nothing below shows through, where there is something, is opaque. Other marks of the
//! layers had something to hide in one another only, and go. So the layer is right over exactly that tree.
//!
//! Names of one node stay names of one node: in the merged tree they are so within a layer, and that is what overlayfs
//! shows. Whether the outcome shows the same is not decided here, but proven (see `crate::collapse`).

use super::merged::{Id, Merged, OPAQUE, Placed};
use super::settle::Settled;
use crate::error::{Error, Result};
use erofs::{Attributes, Content, Kind, Node, NodeId, Tree};
use std::collections::HashMap;

/// The layer that makes `with` of `below`, `with` being the same with the layers from number `first` on laid over it.
pub fn collapse(below: &Merged, with: &Merged, first: usize) -> Result<Settled> {
    let root = with.root().ok_or_else(|| Error::refused("no layers to be made one"))?;
    let mut work = Work {
        below,
        with,
        first,
        shows_through: shows_through(with, root, first),
        tree: Tree::new(with.attributes(root)),
        nodes: HashMap::new(),
        copies: Vec::new(),
    };
    let mut open = vec![(root, Tree::ROOT, below.root())];
    while let Some((directory, place, lower)) = open.pop() {
        work.directory(directory, place, lower, &mut open)?;
    }
    let Work { tree, mut copies, .. } = work;
    // So that each chunk is read once.
    copies.sort_by_key(|(_, from)| where_from(from));
    let (contents, assumes, warnings) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Settled { tree, contents, copies, root_opaque: false, assumes, warnings, marks: false })
}

struct Work<'a> {
    below: &'a Merged,
    with: &'a Merged,
    first: usize,
    /// By node: whether something below the layers is seen there.
    shows_through: HashMap<Id, bool>,
    tree: Tree,
    nodes: HashMap<Id, NodeId>,
    copies: Vec<(NodeId, Placed)>,
}

/// A directory, where it goes, and what is seen below it.
type Open = (Id, NodeId, Option<Id>);

impl Work<'_> {
    fn directory(&mut self, directory: Id, place: NodeId, lower: Option<Id>, open: &mut Vec<Open>) -> Result<()> {
        let (with, below) = (self.with, self.below);
        let hidden = lower.into_iter().flat_map(|lower| below.names(lower));
        let hidden = hidden.filter(|name| with.child(directory, name).is_none()).map(|name| (name, None));
        let seen = with.names(directory).filter_map(|name| Some((name, Some(with.child(directory, name)?))));
        // What no layer names has nothing below it that one names, either.
        let seen = seen.filter(|(_, id)| id.is_some_and(|id| with.layer(id) >= self.first));
        let mut names: Vec<_> = seen.chain(hidden).collect();
        names.sort_unstable_by_key(|(name, _)| *name);
        for (name, id) in names {
            match id {
                Some(id) if with.is_directory(id) => {
                    let under = lower.and_then(|lower| below.child(lower, name));
                    let under = under.filter(|&id| below.is_directory(id));
                    open.push(self.subdirectory(id, place, name, under)?);
                }
                Some(id) => self.other(id, place, name)?,
                None => {
                    let whiteout = Node { attributes: Attributes::default(), kind: Kind::Char(0, 0) };
                    self.add(place, name, whiteout)?;
                }
            }
        }
        Ok(())
    }

    fn subdirectory(&mut self, id: Id, place: NodeId, name: &[u8], under: Option<Id>) -> Result<Open> {
        let mut attributes = self.with.attributes(id);
        let under = match under {
            Some(under) if self.shows_through.get(&id) == Some(&true) => Some(under),
            Some(under) if self.below.names(under).next().is_some() => {
                attributes.xattrs.insert(OPAQUE.to_vec(), b"y".to_vec());
                None
            }
            _ => None,
        };
        Ok((id, self.add(place, name, Node { attributes, kind: Kind::Directory })?, under))
    }

    fn other(&mut self, id: Id, place: NodeId, name: &[u8]) -> Result<()> {
        if let Some(&node) = self.nodes.get(&id) {
            return self.tree.link(place, name, node).map_err(|e| Error::failed("making layers one", e));
        }
        let found = self.with.node(id);
        let (kind, content) = match found.kind {
            Kind::File(content) => (Kind::File(Content::EMPTY), Some(content)),
            kind => (kind, None),
        };
        let node = self.add(place, name, Node { attributes: found.attributes, kind })?;
        self.nodes.insert(id, node);
        self.copies.extend(content.map(|content| (node, Placed { layer: found.layer, content })));
        Ok(())
    }

    fn add(&mut self, place: NodeId, name: &[u8], node: Node) -> Result<NodeId> {
        self.tree.add(place, name, node).map_err(|e| Error::failed("making layers one", e))
    }
}

/// For each node, whether it or something in it is from a layer before `first`.
fn shows_through(with: &Merged, root: Id, first: usize) -> HashMap<Id, bool> {
    let mut order = vec![(root, root)];
    let mut next = 0;
    while let Some(&(id, _)) = order.get(next) {
        order.extend(with.names(id).filter_map(|name| Some((with.child(id, name)?, id))));
        next += 1;
    }
    let mut found = HashMap::new();
    for (id, parent) in order.into_iter().rev() {
        let here = with.layer(id) < first || found.get(&id) == Some(&true);
        found.insert(id, here);
        if here {
            found.insert(parent, true);
        }
    }
    found
}

fn where_from(Placed { layer, content }: &Placed) -> (usize, u64) {
    match content {
        Content::Plain { start, .. } => (*layer, *start),
        Content::Sparse { chunks, .. } => (*layer, chunks.iter().flatten().min().copied().unwrap_or(0)),
    }
}
