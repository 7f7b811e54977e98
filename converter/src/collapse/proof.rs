//! That two stacks show the same.

use crate::below::Below;
use crate::compare::content_hash;
use crate::error::{Result, show};
use crate::stored::StoredContents;
use crate::tree::NodeId;
use erofs::{Content, Kind};
use std::collections::{BTreeSet, HashMap, HashSet};
use tokio::runtime::Handle;

/// What was found equal so far, for stacks that grow: nodes that are no directories never change.
#[derive(Debug, Default)]
pub(super) struct Proof {
    files: HashSet<(NodeId, NodeId)>,
    /// So many of the lowest layers were proven when their references were written: their files are not read again.
    given: (usize, usize),
}

impl Proof {
    /// For two stacks of which the lowest layers, so many of each, are known to show the same.
    pub(super) fn above(ours: usize, theirs: usize) -> Self {
        Self { files: HashSet::new(), given: (ours, theirs) }
    }

    /// The first difference of two trees: names, kinds, attributes, which names are of one node, and contents, every byte
    /// of which is read from the layer files, unless it is the same byte of the same file. `None`: there is none.
    pub(super) fn difference(&mut self, ours: &Below, theirs: &Below, runtime: &Handle) -> Result<Option<String>> {
        let (Some(a), Some(b)) = (ours.merged.root(), theirs.merged.root()) else {
            let same = ours.merged.root() == theirs.merged.root();
            return Ok((!same).then(|| "one of them has no layers".to_owned()));
        };
        let mut pair = Pair {
            ours,
            theirs,
            contents: (StoredContents::new(ours.layers(), runtime), StoredContents::new(theirs.layers(), runtime)),
            met: Default::default(),
        };
        let mut open = vec![(Vec::new(), a, b)];
        while let Some((path, a, b)) = open.pop() {
            if let Some(what) = self.node(&mut pair, a, b)? {
                return Ok(Some(format!("/{}: {what}", show(&path))));
            }
            let names: BTreeSet<_> = ours.merged.names(a).chain(theirs.merged.names(b)).collect();
            // In reverse: what is on the top of the pile is looked at first, and files lie in the order of their names.
            for name in names.into_iter().rev() {
                let path = if path.is_empty() { name.to_vec() } else { [&path, &b"/"[..], name].concat() };
                match (ours.merged.child(a, name), theirs.merged.child(b, name)) {
                    (Some(a), Some(b)) => open.push((path, a, b)),
                    _ => return Ok(Some(format!("/{} is seen in one of them only", show(&path)))),
                }
            }
        }
        Ok(None)
    }

    fn node(&mut self, pair: &mut Pair<'_>, a: NodeId, b: NodeId) -> Result<Option<&'static str>> {
        let (met, Pair { ours, theirs, .. }) = (pair.meet(a, b), &pair);
        let (one, other) = (ours.merged.node(a), theirs.merged.node(b));
        if !met {
            return Ok(Some("is a hard link in one of them only"));
        }
        if one.attributes != other.attributes {
            return Ok(Some("its attributes differ"));
        }
        match (&one.kind, &other.kind) {
            (Kind::File(a_content), Kind::File(b_content)) => {
                let given = one.layer < self.given.0 && other.layer < self.given.1;
                let known = given || ours.is_same_place(a, theirs, b) || !self.files.insert((a, b));
                Ok((!known && !pair.same_contents((one.layer, a_content), (other.layer, b_content))?)
                    .then_some("its contents differ"))
            }
            (one, other) => Ok((one != other).then_some("it is not of one kind")),
        }
    }
}

/// Two trees that are being compared.
struct Pair<'a> {
    ours: &'a Below,
    theirs: &'a Below,
    contents: (StoredContents<'a>, StoredContents<'a>),
    /// The node of the other tree that each was met with.
    met: (HashMap<NodeId, NodeId>, HashMap<NodeId, NodeId>),
}

impl Pair<'_> {
    /// Notes that two nodes stand at one path; false where one of them stood somewhere with another.
    fn meet(&mut self, a: NodeId, b: NodeId) -> bool {
        *self.met.0.entry(a).or_insert(b) == b && *self.met.1.entry(b).or_insert(a) == a
    }

    fn same_contents(&mut self, one: (usize, &Content), other: (usize, &Content)) -> Result<bool> {
        let (ours, theirs) = &mut self.contents;
        Ok(content_hash(ours, one.0, one.1)? == content_hash(theirs, other.0, other.1)?)
    }
}
