//! The hard links of a layer whose target had no entry in it when they came.

use super::Kind;
use super::apply::{Applying, to_a_directory};
use super::paths::{InodeId, PathId};
use crate::error::{Error, Result, show};
use std::collections::{HashMap, HashSet};

/// Where such a link leads in the end.
enum End {
    /// To what the layer has.
    Ours(InodeId),
    /// To a lower file at a path.
    Lower(PathId, InodeId),
}

impl Applying<'_> {
    /// A link whose target the layer has in the end is that; else the lower file is copied into the layer, under both
    /// names, and its other names are not touched.
    pub(super) fn resolve(&mut self) -> Result<()> {
        let mut copies: HashMap<InodeId, InodeId> = HashMap::new();
        for path in self.in_order() {
            // One before may have led over it.
            if self.model.kind(path) != Some(&Kind::Link) {
                continue;
            }
            let mut over = vec![path];
            let end = self.chase(&mut over);
            let inode = match end.map_err(|e| e.at(&self.paths().bytes(path)))? {
                End::Ours(inode) => inode,
                End::Lower(target, lower) => {
                    let copy = *copies.entry(lower).or_insert_with(|| self.model.add(self.model.at(lower).clone()));
                    self.make_above(target);
                    self.model.link(target, copy, self.layer);
                    copy
                }
            };
            for path in over {
                self.model.link(path, inode, self.layer);
            }
        }
        Ok(())
    }

    /// The links that wait: those less deep first, then in the order of their names.
    fn in_order(&self) -> Vec<PathId> {
        let (mut order, mut next) = (vec![PathId::ROOT], 0);
        while let Some(&path) = order.get(next).filter(|_| !self.waiting.is_empty()) {
            order.extend(self.paths().children(path));
            next += 1;
        }
        order.retain(|path| self.waiting.contains_key(path));
        order
    }

    /// Where the link leads that is all of `over`, which gets the links on its way: each leads there too.
    fn chase(&mut self, over: &mut Vec<PathId>) -> Result<End> {
        let mut seen: HashSet<PathId> = over.iter().copied().collect();
        loop {
            let link = over.last().and_then(|at| self.waiting.get(at));
            let raw = link.map(|link| link.target.clone()).unwrap_or_default();
            let missing = || Error::refused(format!("hard link to '{}', which is not in the image", show(&raw)));
            let target = self.lead_target(&raw)?.ok_or_else(missing)?;
            let name = self.paths().get(target).ok_or_else(missing)?;
            match self.model.at(name.inode).kind {
                Kind::Directory => return Err(to_a_directory(&raw)),
                Kind::Link if seen.insert(target) => over.push(target),
                Kind::Link => {
                    let was = self.waiting.get(&target).and_then(|link| link.was).ok_or_else(missing)?;
                    return Ok(End::Lower(target, was));
                }
                _ if self.is_ours(target) => return Ok(End::Ours(name.inode)),
                _ => return Ok(End::Lower(target, name.inode)),
            }
        }
    }
}
