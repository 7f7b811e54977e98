//! Fewer layers that show the same: consecutive layers of an image become one, in a second stack beside the first.
//!
//! Bottom up: what of the image has a collapsed stack already (a base image that was converted so) is kept, so that
//! images go on sharing its layers; `plan` groups the layers above; each group of more than one is made one layer
//! (`crate::tree::collapse`, then the ordinary way of contents to a layer file, which cuts them where the originals were
//! cut). After each group, the tree of the collapsed stack is compared with that of the plain one (`proof`); a
//! difference is an error of ours, and ends the conversion before anything is written.
//!
//! Layers made here are right over one tree only. No diff reference names them, and their list of assumptions says so.

mod plan;
mod proof;

use crate::below::{self, Below, hashes};
use crate::build::{Made, Settings, assemble};
use crate::error::{Error, Result, store};
use crate::ready::Ready;
use crate::report::{CollapsedLayer, CollapsedReport};
use crate::tree;
use blobstore::refs::{Assume, Assumed, Chain, Digest, Refs, Stack, StackEntry, Stacks, layer_key};
use blobstore::store::Store;
use proof::Proof;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// Makes the collapsed stacks of images.
pub(crate) struct Collapser<'a> {
    pub(crate) refs: &'a Refs,
    /// Where layers are that were just made, and where those go that are made here.
    pub(crate) staged: &'a Arc<dyn Store>,
    pub(crate) settings: &'a Settings,
    /// The most bytes that the layer files of a group add up to.
    pub(crate) size: u64,
    /// Begin at the bottom, whatever collapsed stacks there are.
    pub(crate) again: bool,
}

/// What was made for an image.
#[derive(Debug, Default)]
pub(crate) struct Collapsed {
    /// New layers, in the stage.
    pub(crate) layers: Vec<StackEntry>,
    /// The chains that get a collapsed stack, bottom to top.
    pub(crate) chains: Vec<Chain>,
    pub(crate) report: CollapsedReport,
}

/// Both trees, growing.
#[derive(Default)]
struct Trees {
    plain: Below,
    collapsed: Below,
    proof: Proof,
}

impl Collapser<'_> {
    /// Makes the collapsed stacks of an image whose layers are ready.
    pub(crate) async fn image(&self, chain_ids: &[Digest], layers: &[Ready]) -> Result<Collapsed> {
        let (kept, base) = self.base(chain_ids, layers).await?;
        let Stacks { mut plain, collapsed } = base;
        let mut stack = collapsed.unwrap_or_default();
        let mut done = Collapsed::default();
        let entries: Vec<&StackEntry> = layers.iter().map(|layer| &layer.entry).collect();
        let groups = plan::groups(&entries, kept, self.size);
        let mut trees = Trees::default();
        if let Some(group) = groups.first() {
            // Under an opaque root nothing is hidden one by one: that is not there.
            if entries[group.start].root_opaque {
                (plain, stack) = (Stack::EMPTY, Stack::EMPTY);
            }
            trees = self.load(&plain, &stack).await?;
        }
        for group in groups {
            let started = Instant::now();
            let made;
            (trees, made) = self.group(trees, &layers[group.clone()]).await?;
            entries[group.clone()].iter().for_each(|&entry| plain = plain.with(entry.clone()));
            let entry = made.as_ref().map_or(entries[group.start], |made| &made.entry).clone();
            stack = stack.with(entry);
            let chain_id = chain_ids[group.end - 1];
            if let Some(made) = made {
                let from = &layers[group.clone()];
                done.report.layers.push(report(&made, &chain_id, from, &trees, started));
                done.layers.push(made.entry);
            }
            // One that says nothing new is written for the image alone: that it was asked for.
            if stack != plain || group.end == layers.len() {
                done.chains.push(Chain { chain_id, stack: plain.clone(), collapsed: Some(stack.clone()) });
            }
        }
        done.report.kept = kept as u64;
        done.report.stack = stack.layers().iter().map(|entry| entry.layer.to_string()).collect();
        Ok(done)
    }

    /// How many of the lowest layers have a collapsed stack already, and what stands for them.
    async fn base(&self, chain_ids: &[Digest], layers: &[Ready]) -> Result<(usize, Stacks)> {
        let known = layers.iter().take_while(|layer| layer.fresh.is_none()).count();
        let known = if self.again { 0 } else { known };
        for count in (1..=known).rev() {
            let chain = match self.refs.chain(&chain_ids[count - 1]).await {
                Err(e) if !e.is_not_converted() => return Err(store(e)),
                other => other.ok().flatten(),
            };
            if let Some(chain) = chain.filter(|chain| chain.collapsed.is_some()) {
                return Ok((count, Stacks { plain: chain.stack, collapsed: chain.collapsed }));
            }
        }
        Ok((0, Stacks::default()))
    }

    /// Two stacks that were proven to show the same when their references were written.
    async fn load(&self, plain: &Stack, collapsed: &Stack) -> Result<Trees> {
        let mut trees = Trees { proof: Proof::above(plain.len(), collapsed.len()), ..Trees::default() };
        for (below, stack) in [(&mut trees.plain, plain), (&mut trees.collapsed, collapsed)] {
            for entry in stack {
                below.load(self.refs.store(), entry).await?;
            }
        }
        Ok(trees)
    }

    /// Where a layer is: one that this conversion made or adopted is not in the store yet.
    async fn place(&self, entry: &StackEntry) -> &Arc<dyn Store> {
        match self.staged.stat(&layer_key(&entry.layer)).await {
            Ok(_) => self.staged,
            Err(_) => self.refs.store(),
        }
    }

    /// Lays a group of layers over the plain tree, and what stands for it over the collapsed one; the layer that was made.
    async fn group(&self, mut trees: Trees, layers: &[Ready]) -> Result<(Trees, Option<Made>)> {
        let first = trees.plain.merged.layers();
        let mut stands = None;
        for layer in layers {
            let (stored, tree) = below::open(self.place(&layer.entry).await, &layer.entry).await?;
            trees.plain.push(stored.clone(), &tree, layer.entry.root_opaque)?;
            stands = Some((stored, tree, layer.entry.root_opaque));
        }
        let mut made = None;
        if layers.len() > 1 {
            let root_opaque = layers.iter().any(|layer| layer.entry.root_opaque);
            let new = self.make(&mut trees, first, root_opaque).await?;
            let (stored, tree) = below::open(self.staged, &new.entry).await?;
            stands = Some((stored, tree, root_opaque));
            made = Some(new);
        }
        if let Some((stored, tree, root_opaque)) = stands {
            trees.collapsed.push(stored, &tree, root_opaque)?;
        }
        trees = blocking(move |runtime| {
            let Trees { plain, collapsed, proof } = &mut trees;
            match proof.difference(plain, collapsed, &runtime)? {
                None => Ok(trees),
                Some(found) => Err(Error::failed("making layers one", format!("the result is not the same: {found}"))),
            }
        })
        .await?;
        Ok((trees, made))
    }

    async fn make(&self, trees: &mut Trees, first: usize, root_opaque: bool) -> Result<Made> {
        let (settings, moved) = (self.settings.clone(), std::mem::take(trees));
        let (moved, made) = blocking(move |runtime| {
            let Trees { plain, collapsed, .. } = &moved;
            let mut settled = tree::collapse(&collapsed.merged, &plain.merged, first)?;
            settled.root_opaque = root_opaque;
            // What lies on nothing assumes nothing.
            let alone = collapsed.merged.root().is_none();
            let assume = Assume { path: Vec::new(), what: Assumed::Collapsed };
            let assumes = if alone { Vec::new() } else { vec![assume] };
            let made = assemble(settled, assumes, plain, &settings, &runtime)?;
            Ok((moved, made))
        })
        .await?;
        *trees = moved;
        Ok(made)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce(Handle) -> Result<T> + Send + 'static) -> Result<T> {
    let runtime = Handle::current();
    let done = tokio::task::spawn_blocking(move || work(runtime)).await;
    done.map_err(|e| Error::failed("the thread that collapses", e))?
}

fn report(made: &Made, chain_id: &Digest, from: &[Ready], trees: &Trees, started: Instant) -> CollapsedLayer {
    let skip = trees.plain.indexes().len() - from.len();
    let originals: HashSet<[u8; 32]> =
        trees.plain.indexes().skip(skip).flat_map(hashes).map(|(hash, _)| hash).collect();
    let chunks = trees.collapsed.indexes().last().into_iter().flat_map(hashes);
    CollapsedLayer {
        layer: made.entry.layer.to_string(),
        chain_id: chain_id.to_string(),
        from: from.iter().map(|layer| layer.entry.layer.to_string()).collect(),
        entries: made.entries,
        bytes_in: from.iter().map(|layer| layer.entry.size).sum(),
        bytes_out: made.entry.size,
        chunks: made.chunks,
        bytes_same: chunks.filter(|(hash, _)| originals.contains(hash)).map(|(_, stored)| stored).sum(),
        seconds: started.elapsed().as_secs_f64(),
    }
}
