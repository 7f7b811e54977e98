//! Collapsed stacks: beside the stack of a chain, a second one that shows the same with fewer layers.
//!
//! It is an addition that readers may use and older ones do not see: `stack` stays, and says what the chain is. So a
//! collapsed stack that is of no use (a layer of it is revoked, or of a version that this build does not know) counts as
//! absent, and a revoked layer of the plain stack makes the whole reference absent: the collapsed one has its files.

use super::error::Result;
use super::{Chain, Refs, Stack, StackEntry};
use crate::layer::LayerId;
use std::collections::BTreeSet;

/// What a reference stands for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stacks {
    /// The stack, bottom to top.
    pub plain: Stack,
    /// One of fewer layers that shows the same, where there is one.
    pub collapsed: Option<Stack>,
}

impl Stacks {
    /// The stack to mount: the collapsed one, where there is one.
    pub fn best(self) -> Stack {
        self.collapsed.unwrap_or(self.plain)
    }

    /// The layers that only the collapsed stack has, bottom to top.
    pub fn collapsed_only(&self) -> impl Iterator<Item = &StackEntry> {
        let plain = self.plain.layers();
        self.collapsed.iter().flatten().filter(|entry| plain.iter().all(|other| other.layer != entry.layer))
    }
}

impl From<Stack> for Stacks {
    fn from(plain: Stack) -> Self {
        Self { plain, collapsed: None }
    }
}

impl Refs {
    /// A collapsed stack, if it can be used.
    pub(super) async fn usable(&self, collapsed: Option<Stack>) -> Result<Option<Stack>> {
        let Some(stack) = collapsed.filter(|stack| !stack.is_empty()).and_then(|stack| stack.understood().ok()) else {
            return Ok(None);
        };
        match self.revoked_layer(&stack).await? {
            None => Ok(Some(stack)),
            Some(layer) => {
                tracing::warn!(%layer, "a collapsed stack has a revoked layer: the plain one is used");
                Ok(None)
            }
        }
    }

    /// Gives chains that are there their collapsed stacks, bottom up, and gives those that stand then. One whose plain stack
    /// is not the one that was collapsed is left as it is, and so is one that has a collapsed stack, unless `again`. All
    /// layers must be in the store already.
    pub async fn add_collapsed(&self, chains: &[Chain], again: bool) -> Result<Vec<Chain>> {
        self.add_collapsed_without(chains, again, &BTreeSet::new()).await
    }

    /// The same, where what is stored with a layer of `gone` counts as absent.
    pub async fn add_collapsed_without(
        &self,
        chains: &[Chain],
        again: bool,
        gone: &BTreeSet<LayerId>,
    ) -> Result<Vec<Chain>> {
        let mut stand = Vec::with_capacity(chains.len());
        for chain in chains {
            let chain_id = chain.chain_id;
            match self.chain_without(&chain_id, gone).await? {
                Some(theirs) if theirs.stack != chain.stack => {
                    tracing::warn!(%chain_id, "another writer gave it another stack: it gets no collapsed one");
                    stand.push(theirs);
                }
                Some(theirs) if theirs.collapsed.is_some() && !again => stand.push(theirs),
                Some(_) => stand.push(self.replace_chain(chain).await?),
                None => tracing::warn!(%chain_id, "the reference was removed meanwhile"),
            }
        }
        Ok(stand)
    }
}
