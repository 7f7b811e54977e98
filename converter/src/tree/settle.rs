//! From what a layer says to what it must hold, over the tree below.
//!
//! Three passes over the paths, none recursive: downwards, what of the tree below each path can be seen; upwards, which
//! marks hide anything; downwards again, the layer's tree.

use super::assume::{Assumption, Found, default_directory, without_time};
use super::merged::{Below, Id, Merged, OPAQUE};
use super::upper::{Contents, Inode, Path, Says, Slot, Upper, not_linkable, through_symlink};
use crate::error::{Error, Result};
use crate::tar::TreePath;
use erofs::{Attributes, Content, Kind, Node, NodeId, Tree};
use std::collections::{HashMap, HashSet};

/// A layer, decided.
#[derive(Debug)]
pub struct Settled {
    /// The layer's tree. Files have no contents yet: see [`Settled::contents`].
    pub tree: Tree,
    /// The contents of each regular file.
    pub contents: Vec<(NodeId, Contents)>,
    /// Whether the layer hides all below it.
    pub root_opaque: bool,
    /// What holds of the tree below and was relied on.
    pub assumes: Vec<Assumption>,
    /// What was left out.
    pub warnings: Vec<String>,
}

/// What the tree below has at a path, as this layer's parent directories let it be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lower {
    /// The layer itself hides whatever may be there.
    Hidden,
    /// Nothing.
    Absent,
    /// This node.
    Node(Id),
}

/// A path on the way down: its last name, and the visit of its parent.
struct Visit<'a> {
    slot: Slot,
    name: &'a [u8],
    parent: usize,
    lower: Lower,
    /// Whether anything must stand here in the layer.
    effective: bool,
}

/// The path of a visit. It is put together when it is needed: millions of them would fill the memory.
fn path_of(visits: &[Visit<'_>], mut number: usize) -> TreePath {
    let mut parts = Vec::new();
    while number != 0 {
        parts.push(visits[number].name.to_vec());
        number = visits[number].parent;
    }
    parts.reverse();
    TreePath::from(parts)
}

impl Path {
    /// Whether the layer hides what the tree below has in this directory.
    fn hides(&self) -> bool {
        self.whiteout || self.fresh || self.opaque
    }

    /// What of the tree below can be seen in this directory, given what can be seen of itself.
    fn inside(&self, lower: Lower, below: &Merged) -> Lower {
        match (&self.says, lower) {
            (Says::Inode(_) | Says::Link(_), _) | (_, Lower::Hidden) => Lower::Hidden,
            _ if self.hides() => Lower::Hidden,
            (_, Lower::Node(id)) if below.node(id).kind == Kind::Directory => lower,
            _ => Lower::Absent,
        }
    }
}

fn step(lower: Lower, name: &[u8], below: &Merged) -> Lower {
    match lower {
        Lower::Node(id) => below.child(id, name).map_or(Lower::Absent, Lower::Node),
        other => other,
    }
}

impl Upper {
    /// Decides the layer over the tree below it.
    pub fn settle(mut self, below: &Merged) -> Result<Settled> {
        let mut assumes = self.resolve_links(below)?;
        let mut visits = self.downwards(below);
        self.upwards(&mut visits, below);
        let mut build = Build::new(&self, below, &visits)?;
        for number in 1..build.visits.len() {
            build.visit(number).map_err(|e| e.at(&path_of(build.visits, number).to_bytes()))?;
        }
        let Build { tree, contents, assumes: found, .. } = build;
        assumes.extend(found);
        Ok(Settled { tree, contents, root_opaque: self.slots[0].opaque, assumes, warnings: self.warnings })
    }

    fn downwards(&self, below: &Merged) -> Vec<Visit<'_>> {
        let lower = below.root().map_or(Lower::Absent, Lower::Node);
        let mut visits = vec![Visit { slot: 0, name: b"", parent: 0, lower, effective: true }];
        let mut next = 0;
        while next < visits.len() {
            let Visit { slot, lower, .. } = visits[next];
            let inside = self.slots[slot].inside(lower, below);
            for (name, &slot) in &self.slots[slot].children {
                let lower = step(inside, name, below);
                visits.push(Visit { slot, name, parent: next, lower, effective: false });
            }
            next += 1;
        }
        visits
    }

    /// A path has to stand in the layer if it has an entry, hides something, or one below it has to.
    fn upwards(&self, visits: &mut [Visit<'_>], below: &Merged) {
        for number in (1..visits.len()).rev() {
            let visit = &visits[number];
            let path = &self.slots[visit.slot];
            let hides = match visit.lower {
                Lower::Node(id) => path.whiteout || (path.opaque && below.node(id).kind == Kind::Directory),
                _ => false,
            };
            if visit.effective || hides || !matches!(path.says, Says::Nothing) {
                let parent = visit.parent;
                visits[number].effective = true;
                visits[parent].effective = true;
            }
        }
    }

    /// Gives each hard link that had no target the inode of its target: in the layer as it is now, else below.
    fn resolve_links(&mut self, below: &Merged) -> Result<Vec<Assumption>> {
        let mut copied: HashMap<Id, usize> = HashMap::new();
        let mut assumes = Vec::new();
        for (slot, path) in self.pending() {
            let found = self.chase(slot, below).map_err(|e| e.at(&path.to_bytes()))?;
            let inode = match found {
                Target::Inode(inode) => inode,
                Target::Below(id, target) => {
                    let inode = *copied.entry(id).or_insert_with(|| self.copy_up(below, id));
                    let place = self.place(&target)?;
                    self.put(place, Says::Inode(inode));
                    assumes.push(Assumption { path: target, found: Found::Contents });
                    inode
                }
            };
            self.put(slot, Says::Inode(inode));
        }
        Ok(assumes)
    }

    /// The paths that still hold an unresolved hard link.
    fn pending(&self) -> Vec<(Slot, TreePath)> {
        let mut found = Vec::new();
        let mut open = vec![(0, TreePath::default())];
        while let Some((slot, path)) = open.pop() {
            if let Says::Link(_) = self.slots[slot].says {
                found.push((slot, path));
                continue;
            }
            open.extend(self.slots[slot].children.iter().rev().map(|(name, &child)| (child, path.join(name))));
        }
        found
    }

    fn chase(&self, start: Slot, below: &Merged) -> Result<Target> {
        let mut seen = HashSet::new();
        let mut slot = start;
        loop {
            let Says::Link(target) = &self.slots[slot].says else { return Err(unresolved()) };
            let next = self.find(target).filter(|&next| seen.insert(next) && next != slot);
            match next.map(|next| (next, &self.slots[next].says)) {
                Some((_, Says::Inode(inode))) => return Ok(Target::Inode(*inode)),
                Some((_, Says::Directory(_) | Says::Implied)) => return Err(not_linkable(target)),
                Some((next, Says::Link(_))) => slot = next,
                _ => return self.target_below(target, below),
            }
        }
    }

    fn target_below(&self, target: &TreePath, below: &Merged) -> Result<Target> {
        match self.visible(target, below) {
            Lower::Node(id) if below.node(id).kind == Kind::Directory => Err(not_linkable(target)),
            Lower::Node(id) => Ok(Target::Below(id, target.clone())),
            _ => Err(Error::refused(format!("hard link to '{target}', which is not in the image"))),
        }
    }

    /// What can be seen of the tree below at a path once the layer is over it.
    fn visible(&self, path: &TreePath, below: &Merged) -> Lower {
        let mut slot = Some(0);
        let mut lower = below.root().map_or(Lower::Absent, Lower::Node);
        for part in path.parts() {
            if let Some(directory) = slot.map(|slot| &self.slots[slot]) {
                lower = directory.inside(lower, below);
                slot = directory.children.get(part).copied();
            }
            lower = step(lower, part, below);
        }
        match slot.map(|slot| &self.slots[slot]) {
            Some(path) if path.whiteout => Lower::Hidden,
            _ => lower,
        }
    }

    fn copy_up(&mut self, below: &Merged, id: Id) -> usize {
        let node = below.node(id);
        let (kind, contents) = match &node.kind {
            Kind::File(content) => {
                let content = Below { layer: node.layer, content: content.clone() };
                (Kind::File(Content::EMPTY), Some(Contents::Below(content)))
            }
            other => (other.clone(), None),
        };
        self.inodes.push(Inode { attributes: node.attributes.clone(), kind, contents });
        self.inodes.len() - 1
    }
}

/// The node that a hard link is another name of.
enum Target {
    Inode(usize),
    Below(Id, TreePath),
}

/// Cannot happen: links are resolved before anything asks; an error is better than a panic all the same.
fn unresolved() -> Error {
    Error::refused("a hard link that was not resolved")
}

/// The layer's tree, growing.
struct Build<'a> {
    upper: &'a Upper,
    below: &'a Merged,
    visits: &'a [Visit<'a>],
    tree: Tree,
    /// Node of each directory that was visited.
    directories: Vec<NodeId>,
    inodes: HashMap<usize, NodeId>,
    contents: Vec<(NodeId, Contents)>,
    assumes: Vec<Assumption>,
}

impl<'a> Build<'a> {
    fn new(upper: &'a Upper, below: &'a Merged, visits: &'a [Visit<'a>]) -> Result<Self> {
        let mut build = Self {
            upper,
            below,
            visits,
            tree: Tree::new(Attributes::default()),
            directories: vec![Tree::ROOT; visits.len()],
            inodes: HashMap::new(),
            contents: Vec::new(),
            assumes: Vec::new(),
        };
        let root = match (&upper.slots[0].says, below.root()) {
            (Says::Directory(attributes), _) => attributes.clone(),
            (_, Some(id)) => build.inherit(0, id),
            (_, None) => {
                build.assume(0, Found::Directory(default_directory()));
                default_directory()
            }
        };
        build.tree.node_mut(Tree::ROOT).attributes = root;
        Ok(build)
    }

    fn visit(&mut self, number: usize) -> Result<()> {
        let path = &self.upper.slots[self.visits[number].slot];
        match &path.says {
            Says::Nothing if path.whiteout => self.whiteout(number),
            Says::Nothing if !self.visits[number].effective => {
                if path.opaque {
                    self.no_directory(number);
                }
                Ok(())
            }
            Says::Nothing | Says::Implied => {
                let attributes = self.implied(number, path)?;
                self.directory(number, attributes)
            }
            Says::Directory(attributes) => self.directory(number, attributes.clone()),
            Says::Inode(inode) if self.upper.inodes[*inode].kind == Kind::Char(0, 0) => self.whiteout(number),
            Says::Inode(inode) => self.inode(number, *inode),
            Says::Link(_) => Err(unresolved()),
        }
    }

    /// Keeps a whiteout where it hides something.
    fn whiteout(&mut self, number: usize) -> Result<()> {
        match self.visits[number].lower {
            Lower::Hidden => Ok(()),
            Lower::Absent => {
                self.assume(number, Found::Nothing);
                Ok(())
            }
            Lower::Node(_) => {
                self.assume(number, Found::Something);
                self.add(number, Attributes::default(), Kind::Char(0, 0)).map(drop)
            }
        }
    }

    /// The attributes of a directory without an entry.
    fn implied(&mut self, number: usize, path: &Path) -> Result<Attributes> {
        match self.visits[number].lower {
            Lower::Node(id) if !path.whiteout && !path.fresh => match self.below.node(id).kind {
                Kind::Directory => Ok(self.inherit(number, id)),
                Kind::Symlink(_) => Err(through_symlink(path_of(self.visits, number).parts())),
                _ => {
                    self.no_directory(number);
                    Ok(default_directory())
                }
            },
            _ if path.whiteout || path.fresh => Ok(default_directory()),
            _ => {
                self.no_directory(number);
                Ok(default_directory())
            }
        }
    }

    fn inherit(&mut self, number: usize, id: Id) -> Attributes {
        let attributes = without_time(&self.below.node(id).attributes);
        self.assume(number, Found::Directory(attributes.clone()));
        attributes
    }

    /// Adds a directory, opaque where the layer hides a lower directory of the same name.
    fn directory(&mut self, number: usize, mut attributes: Attributes) -> Result<()> {
        let visit = &self.visits[number];
        if self.upper.slots[visit.slot].hides() {
            match visit.lower {
                Lower::Node(id) if self.below.node(id).kind == Kind::Directory => {
                    let lower = without_time(&self.below.node(id).attributes);
                    self.assume(number, Found::Directory(lower));
                    attributes.xattrs.insert(OPAQUE.to_vec(), b"y".to_vec());
                }
                _ => self.no_directory(number),
            }
        }
        self.directories[number] = self.add(number, attributes, Kind::Directory)?;
        Ok(())
    }

    fn inode(&mut self, number: usize, inode: usize) -> Result<()> {
        if let Some(&node) = self.inodes.get(&inode) {
            let (parent, name) = self.place(number);
            return self.tree.link(parent, name, node).map_err(|e| Error::refused(e.to_string()));
        }
        let Inode { attributes, kind, contents } = &self.upper.inodes[inode];
        let node = self.add(number, attributes.clone(), kind.clone())?;
        self.inodes.insert(inode, node);
        self.contents.extend(contents.iter().map(|contents| (node, contents.clone())));
        Ok(())
    }

    fn add(&mut self, number: usize, attributes: Attributes, kind: Kind) -> Result<NodeId> {
        let (parent, name) = self.place(number);
        self.tree.add(parent, name, Node { attributes, kind }).map_err(|e| Error::refused(e.to_string()))
    }

    fn place(&self, number: usize) -> (NodeId, &'a [u8]) {
        let visit = &self.visits[number];
        (self.directories[visit.parent], visit.name)
    }

    /// Notes that the tree below has no directory at a path.
    fn no_directory(&mut self, number: usize) {
        match self.visits[number].lower {
            Lower::Hidden => {}
            Lower::Absent => self.assume(number, Found::Nothing),
            Lower::Node(_) => self.assume(number, Found::NoDirectory),
        }
    }

    fn assume(&mut self, number: usize, found: Found) {
        self.assumes.push(Assumption { path: path_of(self.visits, number), found });
    }
}
