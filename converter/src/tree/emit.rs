//! The last pass: the layer's tree, in overlayfs's own form, and what was assumed of the tree below.

use super::assume::{Assumes, Assumption, Found, default_directory, without_time};
use super::links::unresolved;
use super::merged::{Id, Merged, OPAQUE};
use super::upper::{Path, Says, Slots, Upper};
use super::visit::{Lower, Visit, path_of};
use crate::error::{Error, Result};
use erofs::{Attributes, Kind, Node, NodeId, Tree};

/// The layer's tree, growing.
pub(super) struct Build<'a> {
    upper: &'a Upper,
    below: &'a Merged,
    pub(super) visits: Vec<Visit<Box<[u8]>>>,
    pub(super) tree: Tree,
    /// Node of each directory that was visited.
    directories: Vec<NodeId>,
    pub(super) assumes: Assumes,
    /// By visit: it was noted of it, or of a directory above, that the tree below has nothing there.
    absent: Vec<bool>,
}

impl<'a> Build<'a> {
    /// Starts with the root. `tree` has the nodes that `upper` names, `assumes` what was relied on to get so far.
    pub(super) fn new(
        upper: &'a Upper,
        below: &'a Merged,
        tree: Tree,
        visits: Vec<Visit<Box<[u8]>>>,
        assumes: Assumes,
    ) -> Result<Self> {
        let (directories, absent) = (vec![Tree::ROOT; visits.len()], vec![false; visits.len()]);
        let mut build = Self { upper, below, visits, tree, directories, assumes, absent };
        let root = match (&upper.slots[Slots::ROOT].says, below.root()) {
            (Says::Directory(attributes), _) => (**attributes).clone(),
            (_, Some(id)) => build.inherit(0, id)?,
            (_, None) => {
                build.assume(0, Found::Directory(default_directory()))?;
                default_directory()
            }
        };
        build.tree.node_mut(Tree::ROOT).attributes = root;
        Ok(build)
    }

    pub(super) fn visit(&mut self, number: usize) -> Result<()> {
        let path = &self.upper.slots[self.visits[number].slot];
        match &path.says {
            Says::Nothing if path.whiteout => self.whiteout(number),
            Says::Nothing if !self.visits[number].effective => {
                if path.opaque {
                    self.no_directory(number)?;
                }
                // What the marks in it act on was found here, and not where a link would have led.
                if (path.opaque || self.visits[number].has_children) && self.visits[number].lower != Lower::Hidden {
                    self.assume(number, Found::NoLink)?;
                }
                Ok(())
            }
            Says::Nothing | Says::Implied => {
                let attributes = self.implied(number, path)?;
                self.directory(number, attributes)
            }
            Says::Directory(attributes) => self.directory(number, (**attributes).clone()),
            Says::Inode(node) if self.tree.node(*node).kind == Kind::Char(0, 0) => self.whiteout(number),
            Says::Inode(node) => self.name(number, *node),
            Says::Link(_) => Err(unresolved()),
        }
    }

    /// Keeps a whiteout where it hides something.
    fn whiteout(&mut self, number: usize) -> Result<()> {
        match self.visits[number].lower {
            Lower::Hidden => Ok(()),
            Lower::Absent if self.upper.keep_marks => {
                self.add(number, Attributes::default(), Kind::Char(0, 0)).map(drop)
            }
            Lower::Absent => self.nothing(number),
            Lower::Node(_) => {
                self.assume(number, Found::Present)?;
                self.add(number, Attributes::default(), Kind::Char(0, 0)).map(drop)
            }
        }
    }

    /// The attributes of a directory without an entry.
    fn implied(&mut self, number: usize, path: &Path) -> Result<Attributes> {
        match self.visits[number].lower {
            Lower::Node(id) if !path.whiteout && !path.fresh => match self.below.node(id).kind {
                Kind::Directory => self.inherit(number, id),
                _ => {
                    self.no_directory(number)?;
                    self.assume(number, Found::NoLink)?;
                    Ok(default_directory())
                }
            },
            _ if path.whiteout || path.fresh => Ok(default_directory()),
            _ => {
                self.no_directory(number)?;
                Ok(default_directory())
            }
        }
    }

    fn inherit(&mut self, number: usize, id: Id) -> Result<Attributes> {
        let attributes = without_time(&self.below.node(id).attributes);
        self.assume(number, Found::Directory(attributes.clone()))?;
        Ok(attributes)
    }

    /// Adds a directory, opaque where the layer hides a lower directory of the same name.
    fn directory(&mut self, number: usize, mut attributes: Attributes) -> Result<()> {
        let visit = &self.visits[number];
        if self.upper.slots[visit.slot].hides() {
            match visit.lower {
                Lower::Node(id) if self.below.node(id).kind == Kind::Directory => {
                    let lower = without_time(&self.below.node(id).attributes);
                    self.assume(number, Found::Directory(lower))?;
                    attributes.xattrs.insert(OPAQUE.to_vec(), b"y".to_vec());
                }
                Lower::Absent if self.upper.keep_marks => {
                    attributes.xattrs.insert(OPAQUE.to_vec(), b"y".to_vec());
                }
                _ => self.no_directory(number)?,
            }
        }
        self.directories[number] = self.add(number, attributes, Kind::Directory)?;
        Ok(())
    }

    /// Gives a node its name, or one more. The visit has none then, nor needs it: nothing is below it, nothing else can
    /// be wrong with it.
    fn name(&mut self, number: usize, node: NodeId) -> Result<()> {
        let visit = &mut self.visits[number];
        let (name, parent) = (std::mem::take(&mut visit.name), self.directories[visit.parent()]);
        self.tree.link_owned(parent, name, node).map_err(|e| Error::refused(e.to_string()))
    }

    fn add(&mut self, number: usize, attributes: Attributes, kind: Kind) -> Result<NodeId> {
        let Visit { name, .. } = &self.visits[number];
        let parent = self.directories[self.visits[number].parent()];
        self.tree.add(parent, name, Node { attributes, kind }).map_err(|e| Error::refused(e.to_string()))
    }

    /// Notes that the tree below has no directory at a path.
    fn no_directory(&mut self, number: usize) -> Result<()> {
        match self.visits[number].lower {
            Lower::Hidden => Ok(()),
            Lower::Absent => self.nothing(number),
            Lower::Node(_) => self.assume(number, Found::NoDirectory),
        }
    }

    /// Notes that the tree below has nothing at a path: said of the highest such directory only, since paths can be deep.
    fn nothing(&mut self, number: usize) -> Result<()> {
        if !self.absent[self.visits[number].parent()] {
            self.assume(number, Found::Absent)?;
        }
        self.absent[number] = true;
        Ok(())
    }

    fn assume(&mut self, number: usize, found: Found) -> Result<()> {
        self.assumes.push(Assumption { path: path_of(&self.visits, number), found })
    }
}
