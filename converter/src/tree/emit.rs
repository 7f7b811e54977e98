//! The last pass: the layer's tree, in overlayfs's own form, and what was assumed of the tree below.

use super::assume::{Assumes, Assumption, Found, default_directory, without_time};
use super::links::unresolved;
use super::merged::{Id, Merged, OPAQUE, is_whiteout};
use super::paths::{Path, Slots};
use super::upper::{Says, Upper};
use super::visit::{Lower, Visit};
use crate::error::{Error, Result};
use crate::tar::TreePath;
use erofs::{Attributes, Kind, Name, Node, NodeId, Tree};

/// The layer's tree, growing.
pub(super) struct Build<'a> {
    upper: &'a Upper,
    below: &'a Merged,
    pub(super) visits: Vec<Visit>,
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
        visits: Vec<Visit>,
        assumes: Assumes,
    ) -> Result<Self> {
        let (directories, absent) = (vec![Tree::ROOT; visits.len()], vec![false; visits.len()]);
        let mut build = Self { upper, below, visits, tree, directories, assumes, absent };
        let root = match (&upper.slots[Slots::ROOT].says, below.root()) {
            (Says::Directory(place), _) => upper.directories[*place as usize].clone(),
            (_, Some(id)) => build.inherit(0, id)?,
            (_, None) => {
                build.assume(0, Found::Directory(default_directory()))?;
                default_directory()
            }
        };
        build.tree.set_attributes(Tree::ROOT, &root);
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
            Says::Directory(place) => self.directory(number, self.upper.directories[*place as usize].clone()),
            Says::Inode(node) if is_whiteout(&self.tree, *node) => self.whiteout(number),
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
            Lower::Node(id) if !path.whiteout && !path.fresh => match self.below.is_directory(id) {
                true => self.inherit(number, id),
                false => {
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
        let attributes = without_time(&self.below.attributes(id));
        self.assume(number, Found::Directory(attributes.clone()))?;
        Ok(attributes)
    }

    /// Adds a directory, opaque where the layer hides a lower directory of the same name.
    fn directory(&mut self, number: usize, mut attributes: Attributes) -> Result<()> {
        let visit = &self.visits[number];
        if self.upper.slots[visit.slot].hides() {
            match visit.lower {
                Lower::Node(id) if self.below.is_directory(id) => {
                    let lower = without_time(&self.below.attributes(id));
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

    /// Gives a node its name, or one more.
    fn name(&mut self, number: usize, node: NodeId) -> Result<()> {
        let (parent, name) = self.place(number)?;
        self.tree.link_kept(parent, name, node).map_err(|e| Error::refused(e.to_string()))
    }

    fn add(&mut self, number: usize, attributes: Attributes, kind: Kind) -> Result<NodeId> {
        let (parent, name) = self.place(number)?;
        self.tree.add_kept(parent, name, Node { attributes, kind }).map_err(|e| Error::refused(e.to_string()))
    }

    /// Where a path stands: the node of its directory, and its name.
    fn place(&self, number: usize) -> Result<(NodeId, Name)> {
        let visit = &self.visits[number];
        let name = self.upper.slots.kept_name(visit.slot);
        let name = name.ok_or_else(|| Error::failed("applying the layer", "the root has no name"))?;
        Ok((self.directories[visit.parent()], name))
    }

    pub(super) fn path_of(&self, number: usize) -> TreePath {
        self.upper.slots.path(&self.tree, self.visits[number].slot)
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
        self.assumes.push(Assumption { path: self.path_of(number).to_bytes(), found })
    }
}
