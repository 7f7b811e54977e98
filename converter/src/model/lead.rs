//! Where a path leads when symbolic links on its way are followed, inside the root.

use super::Kind;
use super::apply::Applying;
use crate::error::{Error, Result, show};
use crate::tar::TreePath;

/// Linux's own bound.
const LINKS_MAX: usize = 40;

impl Applying<'_> {
    /// Where a directory's path leads; what is missing is taken for a directory.
    pub(super) fn lead(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        let (mut way, mut links): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
        let mut rest: Vec<Vec<u8>> = path.rsplit(|&b| b == b'/').map(<[u8]>::to_vec).collect();
        while let Some(part) = rest.pop() {
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    way.pop();
                    continue;
                }
                _ => way.push(part),
            }
            let at = way.join(&b'/');
            if let Some(target) = self.link_at(&at) {
                links += 1;
                way.pop();
                if target.starts_with(b"/") {
                    way.clear();
                }
                rest.extend(target.rsplit(|&b| b == b'/').map(<[u8]>::to_vec));
            } else if links > 0 && !self.can_be_entered(&at) {
                return Err(Error::refused(format!("it leads through '{}', which is no directory", show(&at))));
            }
            if links > LINKS_MAX {
                return Err(Error::refused(format!("more than {LINKS_MAX} symlinks on its way")));
            }
        }
        // Targets are not cleaned paths: what no file system can hold shows here.
        Ok(TreePath::clean(&way.join(&b'/'))?.to_bytes())
    }

    /// Where the directory leads that a path lies in, with the path's last name, which is never followed.
    pub(super) fn lead_parent(&mut self, path: &[u8]) -> Result<Vec<u8>> {
        let Some(slash) = path.iter().rposition(|&b| b == b'/') else { return Ok(path.to_vec()) };
        let directory = self.lead(&path[..slash])?;
        Ok(if directory.is_empty() { path[slash + 1..].to_vec() } else { [&directory, &path[slash..]].concat() })
    }

    /// The target of the symlink at a path, if it is one to be followed.
    fn link_at(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if let Some(target) = self.links.get(path) {
            self.followed.insert(path.to_vec());
            return Some(target.clone());
        }
        let Some(Kind::Symlink(target)) = self.model.inode(path).map(|inode| &inode.kind) else { return None };
        if self.model.names[path].entry == self.layer {
            self.followed.insert(path.to_vec());
        } else if self.own.contains(path) || self.hidden.contains(path) {
            return None;
        }
        Some(target.clone())
    }

    fn can_be_entered(&self, path: &[u8]) -> bool {
        self.model.inode(path).is_none_or(|inode| inode.kind == Kind::Directory) || self.own.contains(path)
    }
}
