//! A layer applied to the tree below it.

use super::layer::Item;
use super::{Inode, Kind, Model, implied};
use crate::error::{Error, Result, show};
use crate::limits::check_directories;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::{Bound, RangeBounds};

/// What is known while one layer is applied.
pub(super) struct Applying<'a> {
    pub(super) model: &'a mut Model,
    /// The layer's number.
    pub(super) layer: u32,
    /// Directories in which the layer adds or removes names.
    touched: BTreeSet<Vec<u8>>,
    /// Those of them that an entry lies in.
    implied: BTreeSet<Vec<u8>>,
    /// Bytes of these paths.
    implied_bytes: u64,
    /// Paths that the layer has an entry for that is a directory: a lower symlink there is replaced, not followed.
    pub(super) own: HashSet<Vec<u8>>,
    /// Paths that the layer hides in the layers below.
    pub(super) hidden: HashSet<Vec<u8>>,
    /// While marks are looked at, which act before any entry does: the layer's symlinks so far.
    pub(super) links: HashMap<Vec<u8>, Vec<u8>>,
    /// The layer's symlinks that something was unpacked through.
    pub(super) followed: HashSet<Vec<u8>>,
    /// Hard links whose target had no entry in the layer yet, and the lower file that stood at their own path.
    waiting: BTreeMap<Vec<u8>, Option<usize>>,
}

impl Model {
    pub(super) fn apply(&mut self, items: Vec<Item>) -> Result<()> {
        self.layers += 1;
        let layer = self.layers;
        let mut applying = Applying {
            model: self,
            layer,
            touched: BTreeSet::from([Vec::new()]),
            implied: BTreeSet::new(),
            implied_bytes: 0,
            own: HashSet::new(),
            hidden: HashSet::new(),
            links: HashMap::new(),
            followed: HashSet::new(),
            waiting: BTreeMap::new(),
        };
        for item in &items {
            match item {
                Item::Entry(path, inode) if inode.kind == Kind::Directory => drop(applying.own.insert(path.clone())),
                Item::Whiteout(path) => drop(applying.hidden.insert(path.clone())),
                _ => {}
            }
        }
        for item in &items {
            applying.mark(item)?;
        }
        applying.links.clear();
        for item in items {
            applying.entry(item)?;
        }
        applying.resolve()?;
        applying.end();
        Ok(())
    }

    /// Removes what stands below a directory's path.
    fn remove_below(&mut self, path: &[u8]) {
        let gone: Vec<Vec<u8>> = self.names.range(below(path)).map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.names.remove(name);
        }
    }

    /// Removes a path and what is below it; whether it was there.
    fn remove(&mut self, path: &[u8]) -> bool {
        self.remove_below(path);
        self.names.remove(path).is_some()
    }
}

impl Applying<'_> {
    /// Whiteouts and opaque marks: they speak of the layers below, wherever they stand.
    fn mark(&mut self, item: &Item) -> Result<()> {
        match item {
            Item::Entry(path, Inode { kind: Kind::Symlink(target), .. }) => {
                self.links.insert(path.clone(), target.clone());
            }
            Item::Entry(path, _) | Item::Link(path, _) => drop(self.links.remove(path)),
            Item::Whiteout(path) => {
                let path = self.lead_parent(path).map_err(|e| e.at(path))?;
                if self.model.remove(&path) {
                    self.touch_parents(&path);
                }
            }
            Item::Opaque(path) => {
                let path = self.lead(path).map_err(|e| e.at(path))?;
                if self.model.is_directory(&path) {
                    self.model.remove_below(&path);
                    self.touch_parents(&path);
                    self.touched.insert(path);
                }
            }
        }
        Ok(())
    }

    fn touch_parents(&mut self, path: &[u8]) {
        self.touched.extend(parents(path).map(<[u8]>::to_vec));
    }

    fn entry(&mut self, item: Item) -> Result<()> {
        let at = |path: &[u8]| {
            let path = path.to_vec();
            move |e: Error| e.at(&path)
        };
        match item {
            Item::Entry(path, inode) => {
                self.lead_parent(&path).and_then(|led| self.put(&led, inode)).map_err(at(&path))
            }
            Item::Link(path, target) => {
                self.lead_parent(&path).and_then(|led| self.link(&led, target)).map_err(at(&path))
            }
            Item::Whiteout(_) | Item::Opaque(_) => Ok(()),
        }
    }

    /// The last entry for a path wins as a whole, but a directory over a directory keeps what is in it.
    fn put(&mut self, path: &[u8], inode: Inode) -> Result<()> {
        if path.is_empty() && inode.kind != Kind::Directory {
            return Err(Error::refused("the root is no directory"));
        }
        if self.is_ours(path) && self.followed.contains(path) {
            return Err(Error::refused("it replaces a symlink that entries before it went through"));
        }
        self.make_parents(path)?;
        if inode.kind != Kind::Directory || !self.model.is_directory(path) {
            self.clear(path);
        }
        self.model.set(path.to_vec(), inode, self.layer);
        Ok(())
    }

    /// Removes a path and what is below it, and what was noted of them.
    fn clear(&mut self, path: &[u8]) {
        self.model.remove(path);
        let waiting: Vec<_> = self.waiting.range(below(path)).map(|(name, _)| name.clone()).collect();
        for gone in waiting.iter().chain([&path.to_vec()]) {
            self.waiting.remove(gone);
        }
    }

    /// Makes directories of what lies above a path; there are no symlinks to follow any more.
    fn make_parents(&mut self, path: &[u8]) -> Result<()> {
        let found: Vec<Vec<u8>> = parents(path).map(<[u8]>::to_vec).collect();
        for parent in found {
            if !self.model.is_directory(&parent) {
                self.clear(&parent);
                self.model.set(parent.clone(), Inode { attributes: implied(), kind: Kind::Directory }, 0);
            }
            let length = parent.len() as u64;
            if self.implied.insert(parent) {
                self.implied_bytes += length;
            }
            check_directories(self.implied_bytes)?;
        }
        Ok(())
    }

    /// Whether the layer has an entry for this path, or implies it.
    fn is_ours(&self, path: &[u8]) -> bool {
        let entry = self.model.names.get(path).is_some_and(|name| name.entry == self.layer);
        entry || (self.model.is_directory(path) && self.implied.contains(path))
    }

    /// A hard link to what the layer has by now is that; else its meaning shows at the end of the layer.
    fn link(&mut self, path: &[u8], raw: Vec<u8>) -> Result<()> {
        let target = self.lead_parent(&raw)?;
        match self.model.inode(&target).map(|inode| &inode.kind) {
            _ if target.is_empty() => return Err(to_a_directory(&target)),
            Some(Kind::Directory) if self.is_ours(&target) => return Err(to_a_directory(&target)),
            Some(Kind::Directory | Kind::Link(_)) | None => {}
            Some(_) if !self.is_ours(&target) => {}
            Some(_) if path == target => return Ok(()),
            Some(_) => {
                let inode = self.model.names[&target].inode;
                self.put(path, Inode { attributes: implied(), kind: Kind::Fifo })?;
                self.model.link(path.to_vec(), inode, self.layer);
                return Ok(());
            }
        }
        let was = self.lower_file(path);
        self.put(path, Inode { attributes: implied(), kind: Kind::Link(raw) })?;
        self.waiting.insert(path.to_vec(), was);
        Ok(())
    }

    /// The file of the layers below that stands at a path, or stood there before a hard link that waits.
    fn lower_file(&self, path: &[u8]) -> Option<usize> {
        let name = self.model.names.get(path)?;
        match self.model.inodes[name.inode].kind {
            Kind::Link(_) => self.waiting.get(path).copied().flatten(),
            Kind::Directory => None,
            _ => (name.entry != self.layer).then_some(name.inode),
        }
    }

    /// A link whose target the layer has in the end is that; else the lower file is copied into the layer, under both
    /// names, and its other names are not touched.
    fn resolve(&mut self) -> Result<()> {
        let mut copies: HashMap<usize, usize> = HashMap::new();
        for path in self.waiting.keys().cloned().collect::<Vec<_>>() {
            let Some(Kind::Link(_)) = self.model.inode(&path).map(|inode| &inode.kind) else { continue };
            let (target, lower) = self.chase(&path).map_err(|e| e.at(&path))?;
            let inode = match lower {
                None => self.model.names[&target].inode,
                Some(lower) => {
                    let copy = *copies.entry(lower).or_insert_with(|| {
                        let copy = self.model.inodes[lower].clone();
                        self.model.inodes.push(copy);
                        self.model.inodes.len() - 1
                    });
                    self.make_parents(&target)?;
                    self.model.link(target, copy, self.layer);
                    copy
                }
            };
            self.model.link(path, inode, self.layer);
        }
        Ok(())
    }

    /// Where a waiting link leads: a path, and the lower inode there if it is not the layer's own.
    fn chase(&mut self, path: &[u8]) -> Result<(Vec<u8>, Option<usize>)> {
        let mut seen = HashSet::from([path.to_vec()]);
        let mut at = path.to_vec();
        loop {
            let Some(Kind::Link(raw)) = self.model.inode(&at).map(|inode| inode.kind.clone()) else {
                return Err(Error::refused("a link that leads nowhere"));
            };
            let target = &self.lead_parent(&raw)?;
            let missing = || Error::refused(format!("hard link to '{}', which is not in the image", show(target)));
            match self.model.inode(target).map(|inode| &inode.kind) {
                Some(Kind::Directory) => return Err(to_a_directory(target)),
                Some(Kind::Link(_)) if seen.insert(target.clone()) => at = target.clone(),
                Some(Kind::Link(_)) => {
                    let was = self.waiting.get(target).copied().flatten().ok_or_else(missing)?;
                    return Ok((target.clone(), Some(was)));
                }
                Some(_) if self.is_ours(target) => return Ok((target.clone(), None)),
                Some(_) => return Ok((target.clone(), Some(self.model.names[target].inode))),
                None => return Err(missing()),
            }
        }
    }

    /// A directory in which the layer changes names without an entry for it has the time 0, and a device 0:0 shows nothing.
    fn end(self) {
        let Self { model, layer, touched, implied, .. } = self;
        let is_implied =
            |path: &[u8]| model.is_directory(path) && model.names.get(path).is_some_and(|name| name.entry != layer);
        let found = touched.iter().chain(&implied).filter(|path| is_implied(path));
        let inodes: Vec<usize> = found.map(|path| model.names[path].inode).collect();
        for inode in inodes {
            let attributes = &mut model.inodes[inode].attributes;
            (attributes.mtime, attributes.mtime_nsec) = (0, 0);
        }
        let Model { names, inodes, .. } = model;
        names.retain(|_, name| inodes[name.inode].kind != Kind::Char(0, 0));
    }
}

/// The paths below a directory's.
fn below(path: &[u8]) -> impl RangeBounds<Vec<u8>> + use<> {
    match path.is_empty() {
        true => (Bound::Excluded(Vec::new()), Bound::Unbounded),
        // '0' follows '/'.
        false => (Bound::Included([path, b"/"].concat()), Bound::Excluded([path, b"0"].concat())),
    }
}

/// The directories above a path, from the root on; the root has none.
fn parents(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let root = (!path.is_empty()).then_some(&path[..0]);
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
    root.into_iter().chain(slashes.map(|(at, _)| &path[..at]))
}

fn to_a_directory(target: &[u8]) -> Error {
    Error::refused(format!("hard link to the directory '{}'", show(target)))
}
