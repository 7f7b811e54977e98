//! Whether the store shows what a source holds.
//!
//! The source is converted once more, into a store of its own that is thrown away, with nothing taken from the store in
//! question; then every byte of the stored layers is read and verified, and the two merged trees are compared: names,
//! attributes, hard links, contents. This finds damage, a reference to the wrong stack, and a layer that was used again
//! where it does not fit. It does not find a fault that both conversions share: that is what the corpus of cases is for.

use crate::below::Below;
use crate::convert::{Options, convert};
use crate::error::{Error, Result};
use crate::report::ImageReport;
use crate::source::Source;
use crate::tree::{Merged, NodeId};
use blobstore::layer::verify_object;
use blobstore::refs::{Refs, Stack, layer_key};
use blobstore::store::FileStore;
use erofs::Kind;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::runtime::Handle;

/// More differences than anybody reads are counted, not listed.
const LISTED: usize = 100;

/// What a comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Comparison {
    /// Layers of the store whose every byte was read.
    pub layers: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Names that were compared.
    pub names: u64,
    /// How many differences there are; none is the right answer.
    pub count: u64,
    /// The first of them: path and what differs.
    pub differences: Vec<String>,
}

/// Compares what the store has for a source with the source; for a directory, what the tag of `options` has.
///
/// # Errors
/// [`Error::Failed`] also where the store has nothing for the source, or damaged layers.
pub async fn compare(refs: &Refs, source: &Source, options: &Options) -> Result<Comparison> {
    let work = tempfile::Builder::new().prefix("lamina-compare-").tempdir_in(&options.work);
    let work = work.map_err(|e| Error::failed(format!("a directory in {}", options.work.display()), e))?;
    let path = std::path::absolute(work.path()).map_err(|e| Error::failed("its path", e))?;
    let theirs = Refs::new(Arc::new(FileStore::new(path)));
    let again = Options { name: None, tag: None, push: None, again: true, progress: None, ..options.clone() };
    let report = convert(&theirs, source, &again).await?;
    let mut found = Comparison::default();
    for image in &report.images {
        let (ours, fresh) = (stored(refs, image, options).await?, fresh(image)?);
        found.verify(refs, &ours).await?;
        let (ours, fresh) = (load(refs, &ours).await?, load(&theirs, &fresh).await?);
        let runtime = Handle::current();
        let work = move || Pair { ours, fresh, runtime, found, linked: Default::default() }.compare();
        found = tokio::task::spawn_blocking(work).await.map_err(|e| Error::failed("the comparison's thread", e))??;
    }
    Ok(found)
}

/// The stack that the store has for an image.
async fn stored(refs: &Refs, image: &ImageReport, options: &Options) -> Result<Stack> {
    let failed = |e| Error::failed("the store's references", e);
    let chain_id = image.layers.last().and_then(|layer| layer.chain_id.as_ref());
    let stack = match (chain_id.map(|id| id.parse()), &options.tag) {
        (Some(Ok(chain_id)), _) => refs.chain(&chain_id).await.map_err(failed)?.map(|chain| chain.stack),
        (_, Some(tag)) => refs.tag(tag).await.map_err(failed)?.map(|tag| tag.stack),
        _ => {
            return Err(Error::refused(
                "a directory is compared with the tag under which it was converted, and none was given",
            ));
        }
    };
    stack.ok_or_else(|| Error::failed("comparing", "the store has nothing for this source: it was not converted"))
}

/// The stack that the fresh conversion made.
fn fresh(image: &ImageReport) -> Result<Stack> {
    let ids = image.layers.iter().map(|layer| layer.entry.clone());
    ids.collect::<Option<Vec<_>>>()
        .map(Stack::from)
        .ok_or_else(|| Error::failed("comparing", "a layer without an entry"))
}

async fn load(refs: &Refs, stack: &Stack) -> Result<Below> {
    let mut below = Below::default();
    for entry in stack {
        below.load(refs.store(), entry).await?;
    }
    Ok(below)
}

impl Comparison {
    async fn verify(&mut self, refs: &Refs, stack: &Stack) -> Result<()> {
        for entry in stack {
            let key = layer_key(&entry.layer);
            let verified = verify_object(&**refs.store(), &key, Some(&entry.layer)).await;
            let verified = verified.map_err(|e| Error::failed(format!("verifying {key}"), e))?;
            self.layers += 1;
            self.bytes += verified.file_len;
        }
        Ok(())
    }

    fn differs(&mut self, path: &[u8], what: &str) {
        self.count += 1;
        if self.differences.len() < LISTED {
            self.differences.push(format!("/{}: {what}", crate::error::show(path)));
        }
    }
}

/// The two trees.
struct Pair {
    ours: Below,
    fresh: Below,
    runtime: Handle,
    found: Comparison,
    /// The fresh node that each of ours was met with, and the other way round.
    linked: (HashMap<NodeId, NodeId>, HashMap<NodeId, NodeId>),
}

impl Pair {
    fn compare(mut self) -> Result<Comparison> {
        let (Some(ours), Some(fresh)) = (self.ours.merged.root(), self.fresh.merged.root()) else {
            return Ok(self.found);
        };
        let mut open = vec![(Vec::new(), ours, fresh)];
        while let Some((path, ours, fresh)) = open.pop() {
            self.node(&path, ours, fresh)?;
            let both = names(&self.ours.merged, ours).into_iter().chain(names(&self.fresh.merged, fresh));
            let both: std::collections::BTreeSet<_> = both.collect();
            for name in both {
                let path = if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
                match (self.ours.merged.child(ours, &name), self.fresh.merged.child(fresh, &name)) {
                    (Some(ours), Some(fresh)) => open.push((path, ours, fresh)),
                    (Some(_), None) => self.found.differs(&path, "is not in the source"),
                    (None, _) => self.found.differs(&path, "is missing in the store"),
                }
            }
        }
        Ok(self.found)
    }

    fn node(&mut self, path: &[u8], ours: NodeId, fresh: NodeId) -> Result<()> {
        self.found.names += 1;
        let met = (self.linked.0.insert(ours, fresh), self.linked.1.insert(fresh, ours));
        match met {
            (Some(other), _) if other != fresh => self.found.differs(path, "is a hard link in the store only"),
            (_, Some(other)) if other != ours => self.found.differs(path, "is a hard link in the source only"),
            (Some(_), _) => return Ok(()),
            _ => {}
        }
        let (a, b) = (self.ours.merged.node(ours), self.fresh.merged.node(fresh));
        if a.attributes != b.attributes {
            let what = format!("attributes are {:?}, should be {:?}", a.attributes, b.attributes);
            self.found.differs(path, &what);
        }
        match (&a.kind, &b.kind) {
            (Kind::File(_), Kind::File(_)) => {
                let hash = |below: &Below, id| below.digest(id, &self.runtime);
                if hash(&self.ours, ours)? != hash(&self.fresh, fresh)? {
                    self.found.differs(path, "its contents differ");
                }
            }
            (a, b) if a == b => {}
            (a, b) => self.found.differs(path, &format!("is {a:?}, should be {b:?}")),
        }
        Ok(())
    }
}

fn names(merged: &Merged, id: NodeId) -> Vec<Vec<u8>> {
    merged.names(id).map(<[u8]>::to_vec).collect()
}
