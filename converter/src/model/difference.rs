//! Two trees, compared name by name.

use super::{Inode, InodeId, Kind, Model, PathId};
use crate::error::show;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// A path in both trees, where each has something there.
type Pair = (Option<PathId>, Option<PathId>);

/// The first path of an inode that was met, and the inode that the other tree has there.
type First = Option<(PathId, InodeId)>;

/// By inode of each tree.
struct Met {
    ours: Vec<First>,
    theirs: Vec<First>,
}

impl Model {
    /// Hands each difference of this tree, `ours`, from `theirs` to `tell`, with its path; how many names were compared.
    pub fn compare(&self, theirs: &Model, words: [&str; 2], tell: &mut dyn FnMut(&[u8], String)) -> u64 {
        let mut met = Met { ours: vec![None; self.inodes.len()], theirs: vec![None; theirs.inodes.len()] };
        let (mut open, mut names) = (vec![(Some(PathId::ROOT), Some(PathId::ROOT))], 0);
        while let Some(pair) = open.pop() {
            names += 1;
            match pair {
                (Some(a), Some(b)) => self.compare_at(a, theirs, b, &mut met, words, tell),
                (Some(a), None) => tell(&self.paths.bytes(a), self.only(a, [words[1], words[0]])),
                (None, Some(b)) => tell(&theirs.paths.bytes(b), theirs.only(b, words)),
                (None, None) => {}
            }
            open.extend(self.inside(theirs, pair).into_iter().rev());
        }
        names
    }

    /// What is in a directory of either tree, in the order of the names.
    fn inside(&self, theirs: &Model, (a, b): Pair) -> Vec<Pair> {
        let children = |model: &Model, at: Option<PathId>| at.map(|at| model.paths.children(at)).unwrap_or_default();
        let (a, b) = (children(self, a), children(theirs, b));
        let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
        let mut pairs = Vec::with_capacity(a.len().max(b.len()));
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return pairs,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(&a), Some(&b)) => self.paths.name(a).cmp(theirs.paths.name(b)),
            };
            pairs.push((a.next_if(|_| order.is_le()), b.next_if(|_| order.is_ge())));
        }
    }

    /// In words, that one tree has nothing at a path, and this one, the other, has.
    fn only(&self, path: PathId, [missing, there]: [&str; 2]) -> String {
        let what = self.kind(path).map(kind).unwrap_or_default();
        format!("is missing in the {missing}, and {what} in the {there}")
    }

    /// Compares what both have at a path.
    fn compare_at(
        &self,
        path: PathId,
        theirs: &Model,
        their_path: PathId,
        met: &mut Met,
        [our, their]: [&str; 2],
        tell: &mut dyn FnMut(&[u8], String),
    ) {
        let (Some(a), Some(b)) = (self.paths.get(path), theirs.paths.get(their_path)) else { return };
        let (a, b) = (a.inode, b.inode);
        let mut tell = |what: String| tell(&self.paths.bytes(path), what);
        let other = |first: &mut First, inode: InodeId| {
            let (at, there) = *first.get_or_insert((path, inode));
            (there != inode).then(|| show(&self.paths.bytes(at)))
        };
        if let Some(other) = other(&mut met.ours[a.0 as usize], b) {
            tell(format!("is a hard link to '{other}' in the {our}, and is not in the {their}"));
        } else if let Some(other) = other(&mut met.theirs[b.0 as usize], a) {
            tell(format!("is not a hard link to '{other}' in the {our}, and is in the {their}"));
        }
        let (a, b) = (self.at(a), theirs.at(b));
        if a != b {
            for (what, a, b) in differences(a, b) {
                tell(format!("{what} is {a} in the {our}, {b} in the {their}"));
            }
        }
    }
}

/// What differs: name, and the value of both.
fn differences(a: &Inode, b: &Inode) -> Vec<(String, String, String)> {
    let (x, y) = (&a.attributes, &b.attributes);
    let time = |seconds: i64, nanos: u32| format!("{seconds} s {nanos} ns");
    let mut found = vec![
        ("type".to_owned(), kind(&a.kind), kind(&b.kind)),
        ("mode".to_owned(), format!("{:o}", x.mode), format!("{:o}", y.mode)),
        ("owner".to_owned(), format!("{}:{}", x.uid, x.gid), format!("{}:{}", y.uid, y.gid)),
        ("time".to_owned(), time(x.mtime, x.mtime_nsec), time(y.mtime, y.mtime_nsec)),
    ];
    let value = |value: Option<&Vec<u8>>| match value {
        None => "missing".to_owned(),
        Some(value) if value.len() > 64 => format!("{} bytes of BLAKE3 {}", value.len(), blake3::hash(value)),
        Some(value) => format!("'{}'", show(value)),
    };
    let names: BTreeSet<_> = x.xattrs.keys().chain(y.xattrs.keys()).collect();
    for name in names {
        found.push((format!("attribute {}", show(name)), value(x.xattrs.get(name)), value(y.xattrs.get(name))));
    }
    found.retain(|(_, a, b)| a != b);
    found
}

/// An inode's kind in words, with all that belongs to it.
fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Directory => "a directory".to_owned(),
        Kind::File { size, content } => {
            format!("a file of {size} bytes and content {}", blake3::Hash::from_bytes(*content))
        }
        Kind::Symlink(target) => format!("a symlink to '{}'", show(target)),
        Kind::Char(major, minor) => format!("a character device {major}:{minor}"),
        Kind::Block(major, minor) => format!("a block device {major}:{minor}"),
        Kind::Fifo => "a named pipe".to_owned(),
        Kind::Socket => "a socket".to_owned(),
        Kind::Link => "a hard link to nothing yet".to_owned(),
    }
}
