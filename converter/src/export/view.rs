//! What is exported: the merged tree of a stack, or one layer with its marks, as a tree whose files know their layer.

use crate::below::Below;
use crate::error::{Error, Result};
use crate::tree::{self, Merged, OPAQUE};
use erofs::{Content, Node, NodeId, Tree};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A tree, and where its contents are: a file's content is a place in the data of its layer.
#[derive(Debug)]
pub(super) struct View {
    pub(super) tree: Tree,
    /// By node: number of the layer, counted from the bottom.
    layers: Vec<usize>,
    /// The tree is a layer's own: whiteouts and opaque marks are in it, which mean something to what lies below.
    pub(super) marks: bool,
    /// The layer hides all that lies below it.
    pub(super) root_opaque: bool,
}

impl View {
    /// What a stack shows.
    pub(super) fn merged(below: &Below) -> Result<Self> {
        let merged = &below.merged;
        let Some(root) = merged.root() else { return Err(Error::refused("a stack of no layers")) };
        let mut tree = Tree::new(merged.attributes(root));
        let mut layers = vec![merged.layer(root)];
        let mut placed = HashMap::from([(root, Tree::ROOT)]);
        let mut open = vec![(root, Tree::ROOT)];
        while let Some((directory, parent)) = open.pop() {
            for name in merged.names(directory) {
                let Some(id) = merged.child(directory, name) else { continue };
                if let Some(&node) = placed.get(&id) {
                    tree.link(parent, name, node).map_err(|e| Error::refused(e.to_string()).at(name))?;
                    continue;
                }
                let node = add(&mut tree, merged, parent, name, id)?;
                layers.push(merged.layer(id));
                placed.insert(id, node);
                if merged.is_directory(id) {
                    open.push((id, node));
                }
            }
        }
        Ok(Self { tree, layers, marks: false, root_opaque: false })
    }

    /// One layer as it is.
    pub(super) fn layer(tree: Tree, root_opaque: bool) -> Self {
        let layers = vec![0; tree.len()];
        Self { tree, layers, marks: true, root_opaque }
    }

    /// The layer that a node comes from.
    pub(super) fn layer_of(&self, node: NodeId) -> usize {
        self.layers[node.index()]
    }

    /// Whether the node is a directory that hides the one below it.
    pub(super) fn is_opaque(&self, id: NodeId) -> bool {
        let opaque = self.tree.attributes(id).xattrs.contains_key(OPAQUE);
        self.marks && (opaque || (id == Tree::ROOT && self.root_opaque))
    }

    /// Bytes of all contents, holes left out; those of a file with several names count once.
    pub(super) fn bytes(&self) -> u64 {
        let stored = |content: &Content| crate::stored::runs(content).iter().map(|run| run.length).sum::<u64>();
        self.files().map(|(_, content)| stored(&content)).fold(0, u64::saturating_add)
    }

    /// Every regular file with its contents, once, in the order of first names.
    pub(super) fn files(&self) -> impl Iterator<Item = (NodeId, Cow<'_, Content>)> {
        let mut seen = HashSet::new();
        self.tree.walk().filter_map(move |visit| {
            let content = self.tree.content(visit.node).filter(|_| seen.insert(visit.node))?;
            Some((visit.node, content))
        })
    }
}

fn add(tree: &mut Tree, merged: &Merged, parent: NodeId, name: &[u8], id: tree::NodeId) -> Result<NodeId> {
    let tree::Node { attributes, kind, .. } = merged.node(id);
    let node = Node { attributes, kind };
    tree.add(parent, name, node).map_err(|e| Error::refused(e.to_string()).at(name))
}
