//! That two stacks show the same.

use crate::below::Below;
use crate::error::{Result, show};
use crate::tree::NodeId;
use erofs::Kind;
use std::collections::{BTreeSet, HashMap, HashSet};
use tokio::runtime::Handle;

/// What was found equal so far, for stacks that grow: nodes that are no directories never change.
#[derive(Debug, Default)]
pub(super) struct Proof {
    files: HashSet<(NodeId, NodeId)>,
    /// So many of the lowest layers were proven when their references were written: their files are not read again.
    given: (usize, usize),
}

/// The node of the other tree that each was met with.
#[derive(Default)]
struct Met {
    theirs: HashMap<NodeId, NodeId>,
    ours: HashMap<NodeId, NodeId>,
}

impl Proof {
    /// For two stacks of which the lowest layers, so many of each, are known to show the same.
    pub(super) fn from(ours: usize, theirs: usize) -> Self {
        Self { files: HashSet::new(), given: (ours, theirs) }
    }

    /// The first difference of two trees: names, kinds, attributes, which names are of one node, and contents, every byte
    /// of which is read from the layer files, unless it is the same byte of the same file. `None`: there is none.
    pub(super) fn difference(&mut self, ours: &Below, theirs: &Below, runtime: &Handle) -> Result<Option<String>> {
        let (Some(a), Some(b)) = (ours.merged.root(), theirs.merged.root()) else {
            let same = ours.merged.root() == theirs.merged.root();
            return Ok((!same).then(|| "one of them has no layers".to_owned()));
        };
        let mut met = Met::default();
        let mut open = vec![(Vec::new(), a, b)];
        while let Some((path, a, b)) = open.pop() {
            if let Some(what) = self.node(ours, a, theirs, b, runtime, &mut met)? {
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

    fn node(
        &mut self,
        ours: &Below,
        a: NodeId,
        theirs: &Below,
        b: NodeId,
        runtime: &Handle,
        met: &mut Met,
    ) -> Result<Option<&'static str>> {
        if *met.theirs.entry(a).or_insert(b) != b || *met.ours.entry(b).or_insert(a) != a {
            return Ok(Some("is a hard link in one of them only"));
        }
        let (one, other) = (ours.merged.node(a), theirs.merged.node(b));
        if one.attributes != other.attributes {
            return Ok(Some("its attributes differ"));
        }
        match (&one.kind, &other.kind) {
            (Kind::File(_), Kind::File(_)) => {
                let given = one.layer < self.given.0 && other.layer < self.given.1;
                if self.files.insert((a, b))
                    && !given
                    && !ours.is_same_place(a, theirs, b)
                    && ours.digest(a, runtime)? != theirs.digest(b, runtime)?
                {
                    return Ok(Some("its contents differ"));
                }
                Ok(None)
            }
            (one, other) if one == other => Ok(None),
            _ => Ok(Some("it is not of one kind")),
        }
    }
}
