//! A layer applied to the tree below it.

use super::layer::Item;
use super::marks::Kept;
use super::paths::{InodeId, Name, PathId, Paths};
use super::{Inode, Kind, Model, implied_directory};
use crate::error::{Error, Result, show};
use crate::limits::PATHS;
use std::collections::{HashMap, HashSet};

/// What is known while one layer is applied.
pub(super) struct Applying<'a> {
    pub(super) model: &'a mut Model,
    /// The layer's number.
    pub(super) layer: u32,
    /// How many paths there were when the layer's entries were read.
    pub(super) before: usize,
    /// How many more there may be.
    pub(super) most: usize,
    /// Names that were passed on ways through links.
    pub(super) steps: u64,
    /// Directories in which the layer adds or removes names, with all above them.
    touched: HashSet<PathId>,
    /// Those of them that an entry lies in, with all above them.
    implied: HashSet<PathId>,
    /// Paths that the layer has an entry for that is a directory: a lower symlink there is replaced, not followed.
    pub(super) own: HashSet<PathId>,
    /// Paths that the layer hides in the layers below.
    pub(super) hidden: HashSet<PathId>,
    /// While marks are looked at, which act before any entry does: the layer's symlinks so far.
    pub(super) links: HashMap<PathId, Vec<u8>>,
    /// The layer's symlinks that something was unpacked through.
    pub(super) followed: HashSet<PathId>,
    /// Hard links whose target had no entry in the layer yet.
    pub(super) waiting: HashMap<PathId, Waiting>,
    /// Its marks, where they are kept.
    kept: Option<Kept>,
}

/// A hard link that waits for the layer's end.
pub(super) struct Waiting {
    /// The target's path.
    pub(super) target: Box<[u8]>,
    /// The lower file that stood at the link's own path.
    pub(super) was: Option<InodeId>,
}

impl Model {
    pub(super) fn apply(&mut self, items: Vec<Item>) -> Result<()> {
        self.apply_within(items, PATHS)
    }

    /// As [`Model::apply`]: links may lead to so many paths that no entry names.
    pub(super) fn apply_within(&mut self, items: Vec<Item>, most: usize) -> Result<()> {
        self.layers += 1;
        let mut applying = Applying {
            layer: self.layers,
            before: self.paths.len(),
            most,
            steps: 0,
            touched: HashSet::from([PathId::ROOT]),
            implied: HashSet::new(),
            own: HashSet::new(),
            hidden: HashSet::new(),
            links: HashMap::new(),
            followed: HashSet::new(),
            waiting: HashMap::new(),
            kept: self.keeps_marks.then(Kept::default),
            model: &mut *self,
        };
        for item in &items {
            match item {
                Item::Entry(path, inode) if inode.kind == Kind::Directory => drop(applying.own.insert(*path)),
                Item::Whiteout(path) => drop(applying.hidden.insert(*path)),
                _ => {}
            }
        }
        for item in &items {
            let done = applying.mark(item);
            done.map_err(|e| e.at(&applying.paths().bytes(item.path())))?;
        }
        applying.links.clear();
        for item in items {
            let path = item.path();
            let done = applying.entry(item);
            done.map_err(|e| e.at(&applying.paths().bytes(path)))?;
        }
        applying.resolve()?;
        applying.end();
        self.tidy();
        Ok(())
    }

    /// Removes what stands below a path; what that was.
    fn remove_below(&mut self, path: PathId) -> Vec<PathId> {
        let (mut open, mut gone) = (self.paths.unlist(path), Vec::new());
        while let Some(path) = open.pop() {
            open.extend(self.paths.unlist(path));
            if self.paths.remove(path).is_some() {
                gone.push(path);
            }
        }
        gone
    }

    /// Forgets the paths and inodes that layers left unused, once there are more of them than of others.
    fn tidy(&mut self) {
        let stand = self.paths.iter().filter(|&path| self.paths.get(path).is_some()).count();
        if self.paths.len().max(self.inodes.len()) <= 2 * stand {
            return;
        }
        let mut fresh = Self { paths: Paths::default(), inodes: Vec::new(), ..*self };
        let mut moved: Vec<Option<InodeId>> = vec![None; self.inodes.len()];
        let mut open = vec![(PathId::ROOT, PathId::ROOT)];
        while let Some((from, to)) = open.pop() {
            let Some(name) = self.paths.get(from) else { continue };
            let copy = || fresh.add(self.at(name.inode).clone());
            let inode = *moved[name.inode.0 as usize].get_or_insert_with(copy);
            fresh.link(to, inode, name.entry);
            let children = self.paths.children(from).into_iter();
            open.extend(children.map(|child| (child, fresh.paths.child(to, self.paths.name(child)))));
        }
        *self = fresh;
    }
}

impl Applying<'_> {
    pub(super) fn paths(&self) -> &Paths {
        &self.model.paths
    }

    /// Whiteouts and opaque marks: they speak of the layers below, wherever they stand.
    fn mark(&mut self, item: &Item) -> Result<()> {
        match item {
            Item::Entry(path, Inode { kind: Kind::Symlink(target), .. }) => {
                self.links.insert(*path, target.clone());
            }
            Item::Entry(path, _) | Item::Link(path, _) => drop(self.links.remove(path)),
            Item::Whiteout(path) => {
                let path = self.lead_parent(*path)?;
                self.model.remove_below(path);
                if self.model.paths.remove(path).is_some() {
                    self.touch_above(path);
                }
            }
            Item::Opaque(path) => {
                let path = self.lead(*path)?;
                if self.model.is_directory(path) {
                    self.model.remove_below(path);
                    self.touch_above(path);
                    self.touched.insert(path);
                }
            }
        }
        Ok(())
    }

    fn touch_above(&mut self, path: PathId) {
        for above in self.model.paths.above(path) {
            if !self.touched.insert(above) {
                break;
            }
        }
    }

    fn entry(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Entry(path, inode) => {
                let path = self.lead_parent(path)?;
                self.make_room(path, inode.kind == Kind::Directory)?;
                self.model.set(path, inode, self.layer);
            }
            Item::Link(path, target) => {
                let path = self.lead_parent(path)?;
                self.link(path, target)?;
            }
            Item::Whiteout(_) | Item::Opaque(_) => self.keep(&item),
        }
        Ok(())
    }

    /// Notes a mark, if they are kept. One whose way an entry blocks has nothing to stand in; what else can be wrong with a
    /// way, the first look at the marks has said.
    fn keep(&mut self, mark: &Item) {
        let Some(mut kept) = self.kept.take() else { return };
        match mark {
            Item::Whiteout(path) => self.lead_parent(*path).into_iter().for_each(|path| kept.whiteout(path)),
            Item::Opaque(path) => self.lead(*path).into_iter().for_each(|path| kept.opaque(path)),
            _ => {}
        }
        self.kept = Some(kept);
    }

    /// For an entry. The last one for a path wins as a whole, but a directory over a directory keeps what is in it.
    fn make_room(&mut self, path: PathId, directory: bool) -> Result<()> {
        if path == PathId::ROOT && !directory {
            return Err(Error::refused("the root is no directory"));
        }
        if self.is_ours(path) && self.followed.contains(&path) {
            return Err(Error::refused("it replaces a symlink that entries before it went through"));
        }
        self.make_above(path);
        if !directory || !self.model.is_directory(path) {
            self.clear(path);
        }
        if !directory {
            self.kept.iter_mut().for_each(|kept| kept.no_directory(path));
        }
        Ok(())
    }

    /// Removes a path and what is below it, and what was noted of them.
    fn clear(&mut self, path: PathId) {
        let gone = self.model.remove_below(path);
        self.model.paths.remove(path);
        for gone in gone.into_iter().chain([path]) {
            self.waiting.remove(&gone);
        }
    }

    /// Makes directories of what lies above a path; there are no symlinks to follow any more.
    pub(super) fn make_above(&mut self, path: PathId) {
        // Above one that was made all are.
        let is_made = |at: &PathId| self.implied.contains(at) && self.model.is_directory(*at);
        let above: Vec<PathId> = self.paths().above(path).take_while(|at| !is_made(at)).collect();
        for directory in above.into_iter().rev() {
            self.make_directory(directory);
            self.implied.insert(directory);
        }
    }

    /// Makes a directory of a path, if it is none.
    fn make_directory(&mut self, path: PathId) {
        if !self.model.is_directory(path) {
            self.clear(path);
            self.model.set(path, implied_directory(), 0);
        }
    }

    /// Whether the layer has an entry for this path, or implies it.
    pub(super) fn is_ours(&self, path: PathId) -> bool {
        let entry = self.paths().get(path).is_some_and(|name| name.entry == self.layer);
        entry || (self.model.is_directory(path) && self.implied.contains(&path))
    }

    /// A hard link to what the layer has by now is that; else its meaning shows at the end of the layer.
    fn link(&mut self, path: PathId, raw: Box<[u8]>) -> Result<()> {
        let found = self.lead_target(&raw)?.and_then(|target| Some((target, self.model.kind(target)?)));
        match found {
            Some((PathId::ROOT, _)) => return Err(to_a_directory(&raw)),
            Some((target, Kind::Directory)) if self.is_ours(target) => return Err(to_a_directory(&raw)),
            None | Some((_, Kind::Directory | Kind::Link)) => {}
            Some((target, _)) if !self.is_ours(target) => {}
            Some((target, _)) if target == path => return Ok(()),
            Some((target, _)) => {
                let name = self.paths().get(target);
                self.make_room(path, false)?;
                name.iter().for_each(|name| self.model.link(path, name.inode, self.layer));
                return Ok(());
            }
        }
        let was = self.lower_file(path);
        self.make_room(path, false)?;
        self.model.set(path, Inode { kind: Kind::Link, ..implied_directory() }, self.layer);
        self.waiting.insert(path, Waiting { target: raw, was });
        Ok(())
    }

    /// The file of the layers below that stands at a path, or stood there before a hard link that waits.
    fn lower_file(&self, path: PathId) -> Option<InodeId> {
        let name = self.paths().get(path)?;
        match self.model.at(name.inode).kind {
            Kind::Link => self.waiting.get(&path)?.was,
            Kind::Directory => None,
            _ => (name.entry != self.layer).then_some(name.inode),
        }
    }

    /// Marks that are kept need directories to stand in. A directory in which the layer changes names without an entry
    /// for it has the time 0, and a device 0:0 shows nothing.
    fn end(mut self) {
        for directory in self.kept.take().map(|kept| kept.directories(self.paths())).unwrap_or_default() {
            self.make_above(directory);
            self.make_directory(directory);
        }
        let Self { model, layer, touched, implied, .. } = self;
        let is_implied = |name: &Name| model.at(name.inode).kind == Kind::Directory && name.entry != layer;
        let names = touched.iter().chain(&implied).filter_map(|&path| model.paths.get(path));
        for name in names.filter(is_implied).collect::<Vec<_>>() {
            let attributes = &mut model.inodes[name.inode.0 as usize].attributes;
            (attributes.mtime, attributes.mtime_nsec) = (0, 0);
        }
        for path in model.paths.iter() {
            if model.kind(path) == Some(&Kind::Char(0, 0)) {
                model.paths.remove(path);
            }
        }
    }
}

pub(super) fn to_a_directory(target: &[u8]) -> Error {
    Error::refused(format!("hard link to the directory '{}'", show(target)))
}
