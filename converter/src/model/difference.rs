//! Two trees, compared name by name.

use super::{Inode, Kind, Model};
use crate::error::show;
use std::collections::{BTreeSet, HashMap};

impl Model {
    /// Hands each difference of this tree, `ours`, from `theirs` to `tell`, with its path; how many names were compared.
    pub fn compare(&self, theirs: &Model, words: [&str; 2], tell: &mut dyn FnMut(&[u8], String)) -> u64 {
        let paths: BTreeSet<&Vec<u8>> = self.names.keys().chain(theirs.names.keys()).collect();
        let (mut to, mut from) = (HashMap::new(), HashMap::new());
        for path in &paths {
            let (ours, theirs_) = (self.names.get(*path), theirs.names.get(*path));
            let (Some(a), Some(b)) = (ours, theirs_) else {
                let missing = words[usize::from(ours.is_some())];
                let (there, inode) = match ours {
                    Some(_) => (words[0], self.inode(path)),
                    None => (words[1], theirs.inode(path)),
                };
                let what = inode.map(|inode| kind(&inode.kind)).unwrap_or_default();
                tell(path, format!("is missing in the {missing}, and {what} in the {there}"));
                continue;
            };
            let first = |linked: &mut HashMap<usize, (usize, Vec<u8>)>, key: usize, value: usize| {
                let first = linked.entry(key).or_insert_with(|| (value, path.to_vec()));
                (first.0 != value).then(|| show(&first.1))
            };
            if let Some(other) = first(&mut to, a.inode, b.inode) {
                tell(path, format!("is a hard link to '{other}' in the {}, and is not in the {}", words[0], words[1]));
            } else if let Some(other) = first(&mut from, b.inode, a.inode) {
                tell(path, format!("is not a hard link to '{other}' in the {}, and is in the {}", words[0], words[1]));
            }
            for (what, a, b) in differences(&self.inodes[a.inode], &theirs.inodes[b.inode]) {
                tell(path, format!("{what} is {a} in the {}, {b} in the {}", words[0], words[1]));
            }
        }
        paths.len() as u64
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
        Kind::Link(target) => format!("a hard link to '{}'", show(target)),
    }
}
