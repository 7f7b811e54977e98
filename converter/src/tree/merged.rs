//! What a stack of layers shows: the tree below the next layer.

use crate::tar::TreePath;
use erofs::{Attributes, Content, Kind, RareMap, Tree};

/// Overlayfs's mark of a directory that hides the same directory in the layers below.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// The merged tree of some layers. Nothing in it follows symbolic links.
#[derive(Debug, Default)]
pub struct Merged {
    nodes: Vec<Node>,
    layers: usize,
}

/// A node's place in a [`Merged`].
pub type Id = u32;

/// What stands at a path.
#[derive(Debug, Clone)]
pub struct Node {
    /// Mode, owner, time, attributes.
    pub attributes: Attributes,
    /// What it is. File contents are those in the data space of layer [`Node::layer`].
    pub kind: Kind,
    /// Number of the layer that it comes from, counted from the bottom.
    pub layer: usize,
    children: RareMap<Box<[u8]>, Id>,
}

impl Merged {
    /// The tree below the first layer: nothing, not even a root.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many layers are in it.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// How many nodes the layers had, those that others hide among them.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The root directory, once there is a layer.
    pub fn root(&self) -> Option<Id> {
        (!self.nodes.is_empty()).then_some(0)
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    /// The node under a name of a directory.
    pub fn child(&self, directory: Id, name: &[u8]) -> Option<Id> {
        self.node(directory).children.get(name).copied()
    }

    /// The names in a directory, in byte order.
    pub fn names(&self, directory: Id) -> impl Iterator<Item = &[u8]> {
        self.node(directory).children.keys().map(|name| &**name)
    }

    /// The node at a path.
    pub fn at(&self, path: &TreePath) -> Option<Id> {
        path.parts().iter().try_fold(self.root()?, |id, part| self.child(id, part))
    }

    /// Lays a layer, in overlayfs's own form, over the tree.
    pub fn overlay(&mut self, layer: &Tree, root_opaque: bool) {
        if root_opaque {
            self.nodes.clear();
        }
        let number = self.layers;
        self.layers += 1;
        let root = layer.node(Tree::ROOT);
        match self.nodes.first_mut() {
            Some(node) => node.attributes = shown(&root.attributes),
            None => drop(self.push(root, number)),
        }
        let mut seen = vec![None; layer.len()];
        let mut open = vec![(Tree::ROOT, 0)];
        while let Some((directory, below)) = open.pop() {
            for (name, id) in layer.children(directory) {
                let node = layer.node(id);
                match node.kind {
                    Kind::Char(0, 0) => drop(self.nodes[below as usize].children.remove(name)),
                    Kind::Directory => open.push((id, self.directory(below, name, node, number))),
                    _ => {
                        let place = *seen[id.index()].get_or_insert_with(|| self.push(node, number));
                        self.nodes[below as usize].children.insert(name.into(), place);
                    }
                }
            }
        }
    }

    fn directory(&mut self, parent: Id, name: &[u8], node: &erofs::Node, layer: usize) -> Id {
        let opaque = node.attributes.xattrs.contains_key(OPAQUE);
        match self.child(parent, name).filter(|&id| !opaque && self.node(id).kind == Kind::Directory) {
            Some(id) => {
                let under = &mut self.nodes[id as usize];
                (under.attributes, under.layer) = (shown(&node.attributes), layer);
                id
            }
            None => {
                let id = self.push(node, layer);
                self.nodes[parent as usize].children.insert(name.into(), id);
                id
            }
        }
    }

    fn push(&mut self, node: &erofs::Node, layer: usize) -> Id {
        let (attributes, kind) = (shown(&node.attributes), node.kind.clone());
        self.nodes.push(Node { attributes, kind, layer, children: RareMap::new() });
        // Fits: see `limits::NODES`.
        (self.nodes.len() - 1) as Id
    }
}

/// A file's contents by their place: the layer's number, and where in its data space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Number of the layer, counted from the bottom.
    pub layer: usize,
    /// The contents in its data space.
    pub content: Content,
}

/// Attributes without overlayfs's own, which it never shows.
fn shown(attributes: &Attributes) -> Attributes {
    let mut attributes = attributes.clone();
    attributes.xattrs.remove(OPAQUE);
    attributes
}
