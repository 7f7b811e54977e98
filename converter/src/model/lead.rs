//! Where a path leads when symbolic links on its way are followed, inside the root.

use super::Kind;
use super::apply::Applying;
use super::paths::{PathId, Paths};
use crate::error::{Error, Result, show};
use crate::limits::{STEPS, check_paths};
use crate::tar::TreePath;

/// Linux's own bound.
const LINKS_MAX: usize = 40;

/// A path that may be new: what of it is known, and the names below.
struct Way {
    known: PathId,
    new: Vec<Vec<u8>>,
}

/// What becomes of something that is no directory on a path's own part of its way. What a link's target leads through is refused.
#[derive(Clone, Copy, PartialEq)]
enum Blocked {
    /// Entries come after it: it is replaced by a directory, as where no link is on the way.
    MakesRoom,
    Refused,
}

impl Way {
    fn down(&mut self, paths: &Paths, name: Vec<u8>) {
        match paths.find(self.known, &name).filter(|_| self.new.is_empty()) {
            Some(known) => self.known = known,
            None => self.new.push(name),
        }
    }

    fn up(&mut self, paths: &Paths) {
        if self.new.pop().is_none() {
            self.known = paths.parent(self.known);
        }
    }

    /// The path, if it is known.
    fn known(&self) -> Option<PathId> {
        self.new.is_empty().then_some(self.known)
    }

    fn bytes(&self, paths: &Paths) -> Vec<u8> {
        let known = (self.known != PathId::ROOT).then(|| paths.bytes(self.known));
        known.into_iter().chain(self.new.iter().cloned()).collect::<Vec<_>>().join(&b'/')
    }
}

impl Applying<'_> {
    /// Where a directory's path leads; what is missing is taken for a directory.
    pub(super) fn lead(&mut self, directory: PathId) -> Result<PathId> {
        if !self.paths().upwards(directory).any(|at| self.target_at(at).is_some()) {
            return Ok(directory);
        }
        let Way { known, new } = self.walk(&self.paths().bytes(directory), Blocked::MakesRoom)?;
        // Links lead to paths that no entry names: a few bytes of a link to thousands.
        check_paths(self.paths().len() - self.before + new.len(), self.most)?;
        Ok(new.into_iter().fold(known, |at, name| self.model.child(at, &name)))
    }

    /// Where the directory leads that a path lies in, with the path's last name, which is never followed.
    pub(super) fn lead_parent(&mut self, path: PathId) -> Result<PathId> {
        let directory = self.paths().parent(path);
        let led = self.lead(directory)?;
        if led == directory {
            return Ok(path);
        }
        let name = self.paths().name(path).to_vec();
        Ok(self.model.child(led, &name))
    }

    /// The same for the target of a hard link. Only where something can stand there it is made a path of the model's: such targets
    /// are kept by the million.
    pub(super) fn lead_target(&mut self, target: &[u8]) -> Result<Option<PathId>> {
        let slash = target.iter().rposition(|&b| b == b'/');
        let (directory, name) = slash.map_or((&b""[..], target), |at| (&target[..at], &target[at + 1..]));
        let led = self.walk(directory, Blocked::Refused)?.known();
        match name {
            b"" => Ok(led),
            _ => Ok(led.and_then(|led| self.paths().find(led, name))),
        }
    }

    fn walk(&mut self, path: &[u8], blocked: Blocked) -> Result<Way> {
        let (mut way, mut links) = (Way { known: PathId::ROOT, new: Vec::new() }, 0);
        let mut rest: Vec<Vec<u8>> = path.rsplit(|&b| b == b'/').map(<[u8]>::to_vec).collect();
        // How many of them are the path's own parts; those above are of links' targets.
        let mut own = rest.len();
        while let Some(part) = rest.pop() {
            self.step(links)?;
            let makes_room = blocked == Blocked::MakesRoom && rest.len() < own;
            own = own.min(rest.len());
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    way.up(self.paths());
                    continue;
                }
                _ => way.down(self.paths(), part),
            }
            let Some(at) = way.known() else { continue };
            if let Some(target) = self.follow(at) {
                links += 1;
                way.up(self.paths());
                if target.starts_with(b"/") {
                    way.known = PathId::ROOT;
                }
                rest.extend(target.rsplit(|&b| b == b'/').map(<[u8]>::to_vec));
            } else if links > 0 && !makes_room && !self.can_be_entered(at) {
                let at = show(&way.bytes(self.paths()));
                return Err(Error::refused(format!("it leads through '{at}', which is no directory")));
            }
            if links > LINKS_MAX {
                return Err(Error::refused(format!("more than {LINKS_MAX} symlinks on its way")));
            }
        }
        // Targets are not cleaned paths: what no file system can hold shows here.
        TreePath::clean(&way.bytes(self.paths()))?;
        Ok(way)
    }

    /// A name more on a way that leads through so many links. Without any, ways are as long as what names them.
    fn step(&mut self, links: usize) -> Result<()> {
        self.steps += u64::from(links > 0);
        match self.steps > STEPS {
            false => Ok(()),
            true => Err(Error::refused(format!("the layer's links lead over too many names: more than {STEPS}"))),
        }
    }

    /// The target of the symlink at a path, if it is one to be followed.
    fn target_at(&self, path: PathId) -> Option<&[u8]> {
        if let Some(target) = self.links.get(&path) {
            return Some(target);
        }
        let Kind::Symlink(target) = self.model.kind(path)? else { return None };
        let replaced = !self.is_ours(path) && (self.own.contains(&path) || self.hidden.contains(&path));
        (!replaced).then_some(target)
    }

    /// The same of one that is followed.
    fn follow(&mut self, path: PathId) -> Option<Vec<u8>> {
        let target = self.target_at(path)?.to_vec();
        if self.links.contains_key(&path) || self.is_ours(path) {
            self.followed.insert(path);
        }
        Some(target)
    }

    fn can_be_entered(&self, path: PathId) -> bool {
        self.model.kind(path).is_none_or(|kind| *kind == Kind::Directory) || self.own.contains(&path)
    }
}
