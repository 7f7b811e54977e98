//! What a stack of layers shows: the tree below the next layer.

use crate::error::{Error, Result};
use crate::limits::{IMAGE, Totals};
use erofs::{Attributes, Content, FileType, Kind, NodeId, Tree};

/// Overlayfs's mark of a directory that hides the same directory in the layers below.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// The merged tree of some layers. Nothing in it follows symbolic links.
#[derive(Debug)]
pub struct Merged {
    /// File contents are those in the data space of the node's layer.
    tree: Tree,
    /// By node, the layer that it comes from.
    from: Vec<u32>,
    layers: usize,
    /// What the layers held.
    held: Totals,
}

/// A node of a [`Merged`].
pub type Id = NodeId;

/// What stands at a path.
#[derive(Debug, Clone)]
pub struct Node {
    /// Mode, owner, time, attributes.
    pub attributes: Attributes,
    /// What it is. File contents are those in the data space of layer [`Node::layer`].
    pub kind: Kind,
    /// Number of the layer that it comes from, counted from the bottom.
    pub layer: usize,
}

impl Default for Merged {
    fn default() -> Self {
        Self { tree: Tree::new(Attributes::default()), from: vec![0], layers: 0, held: Totals::default() }
    }
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

    /// What the layers held, what others hide of it included, since the last one that hides all below it. A directory
    /// counts its attributes with each layer, and its name once.
    pub fn held(&self) -> Totals {
        self.held
    }

    /// The root directory, once there is a layer.
    pub fn root(&self) -> Option<Id> {
        (self.layers > 0).then_some(Tree::ROOT)
    }

    /// A node. What of it is a list is copied.
    pub fn node(&self, id: Id) -> Node {
        let erofs::Node { attributes, kind } = self.tree.node(id);
        Node { attributes, kind, layer: self.layer(id) }
    }

    /// The number of the layer that a node comes from, counted from the bottom.
    pub fn layer(&self, id: Id) -> usize {
        self.from[id.index()] as usize
    }

    /// Whether a node is a directory.
    pub fn is_directory(&self, id: Id) -> bool {
        self.tree.is_directory(id)
    }

    /// The attributes of a node.
    pub fn attributes(&self, id: Id) -> Attributes {
        self.tree.attributes(id)
    }

    /// The target of a symbolic link; of anything else none.
    pub fn target(&self, id: Id) -> Option<&[u8]> {
        self.tree.target(id)
    }

    /// The node under a name of a directory.
    pub fn child(&self, directory: Id, name: &[u8]) -> Option<Id> {
        self.tree.lookup(directory, name)
    }

    /// The names in a directory, in byte order.
    pub fn names(&self, directory: Id) -> impl Iterator<Item = &[u8]> {
        self.tree.children(directory).map(|(name, _)| name)
    }

    /// The node at a path: names joined by slashes, none for the root.
    pub fn at(&self, path: &[u8]) -> Option<Id> {
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(self.root()?, |id, name| self.child(id, name))
    }

    /// Lays a layer, in overlayfs's own form, over the tree.
    pub fn overlay(&mut self, layer: &Tree, root_opaque: bool) -> Result<()> {
        self.overlay_within(layer, root_opaque, &IMAGE)
    }

    /// As [`Merged::overlay`]: all layers may hold `most`. A manifest can name one large layer again and again.
    pub(super) fn overlay_within(&mut self, layer: &Tree, root_opaque: bool, most: &Totals) -> Result<()> {
        let root = shown(layer.attributes(Tree::ROOT));
        match root_opaque || self.layers == 0 {
            // Fits: see `limits::LAYERS`.
            true => {
                (self.tree, self.from) = (Tree::new(root.clone()), vec![self.layers as u32]);
                self.held = Totals { names: 1, text: 0 };
            }
            false => self.tree.set_attributes(Tree::ROOT, &root),
        }
        self.held.count_attributes(&root);
        self.layers += 1;
        let mut seen = vec![None; layer.len()];
        let mut open = vec![(Tree::ROOT, Tree::ROOT)];
        while let Some((directory, below)) = open.pop() {
            let changes = self.changes(layer, directory, below, &mut seen, &mut open)?;
            self.tree.change(below, changes.into_iter()).map_err(|e| Error::refused(e.to_string()))?;
            self.held.check(most)?;
        }
        self.tree.tidy();
        Ok(())
    }

    /// What changes in a directory; those in it that are looked into next go to `open`.
    fn changes<'l>(
        &mut self,
        layer: &'l Tree,
        directory: NodeId,
        below: Id,
        seen: &mut [Option<Id>],
        open: &mut Vec<(NodeId, Id)>,
    ) -> Result<Vec<(&'l [u8], Option<Id>)>> {
        let mut changes = Vec::new();
        for (name, id) in layer.children(directory) {
            let node = match layer.file_type(id) {
                FileType::Char if is_whiteout(layer, id) => None,
                FileType::Directory => {
                    let attributes = layer.attributes(id);
                    let opaque = attributes.xattrs.contains_key(OPAQUE);
                    let there = self.child(below, name).filter(|&id| !opaque && self.is_directory(id));
                    if let Some(there) = there {
                        self.held.count_attributes(&attributes);
                        self.tree.set_attributes(there, &shown(attributes));
                        self.from[there.index()] = (self.layers - 1) as u32;
                        open.push((id, there));
                        continue;
                    }
                    let new = self.push(layer, id)?;
                    open.push((id, new));
                    Some(new)
                }
                _ => match seen[id.index()] {
                    Some(there) => Some(there),
                    None => {
                        seen[id.index()] = Some(self.push(layer, id)?);
                        seen[id.index()]
                    }
                },
            };
            self.held.names += usize::from(node.is_some());
            changes.push((name, node));
        }
        Ok(changes)
    }

    fn push(&mut self, layer: &Tree, id: NodeId) -> Result<Id> {
        let erofs::Node { attributes, kind } = layer.node(id);
        self.from.push((self.layers - 1) as u32);
        self.held.count_attributes(&attributes);
        self.held.count_target(layer.target(id).unwrap_or_default());
        let node = erofs::Node { attributes: shown(attributes), kind };
        self.tree.add_unnamed(node).map_err(|e| Error::refused(e.to_string()))
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

/// Whether a node of a layer is overlayfs's whiteout.
pub(super) fn is_whiteout(layer: &Tree, id: NodeId) -> bool {
    layer.file_type(id) == FileType::Char && layer.node(id).kind == Kind::Char(0, 0)
}

/// Attributes without overlayfs's own, which it never shows.
fn shown(mut attributes: Attributes) -> Attributes {
    attributes.xattrs.remove(OPAQUE);
    attributes
}

#[cfg(test)]
mod tests {
    use super::super::tests::upper;
    use super::*;

    #[test]
    fn directories_that_every_layer_names_again_keep_no_owner_that_they_had() {
        let mut merged = Merged::new();
        for layer in 0..20 {
            let entries: Vec<String> = (0..50).map(|at| format!("d{at}/:{}", layer * 100 + at + 1)).collect();
            let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
            let settled = upper(&entries).unwrap().settle(&merged).unwrap();
            merged.overlay(&settled.tree, settled.root_opaque).unwrap();
            assert_eq!(merged.tree.len(), 51);
            assert!(merged.tree.owners() <= 2 * 51, "{} after layer {layer}", merged.tree.owners());
        }
        let of = |path: &str| merged.attributes(merged.at(path.as_bytes()).unwrap()).uid;
        assert_eq!((of("d0"), of("d49")), (1901, 1950));
    }
}
