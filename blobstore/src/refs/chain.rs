//! Chain references: which stack containerd's chain id stands for.

use super::error::{Error, Result};
use super::{Digest, Refs, Stack, StackEntry, sharded};
use crate::layer::LayerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Body of `refs/chain/ab/<hex>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The chain id.
    pub chain_id: Digest,
    /// Its stack, bottom to top; never empty.
    pub stack: Stack,
    /// Another stack that shows the same with fewer layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapsed: Option<Stack>,
}

/// One layer of an image that is to get its chain reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLayer {
    /// Chain id up to and with this layer.
    pub chain_id: Digest,
    /// The layer made for it.
    pub entry: StackEntry,
}

impl Chain {
    /// Key of a chain id's reference.
    pub fn key(chain_id: &Digest) -> String {
        sharded("refs/chain", &chain_id.hex())
    }

    fn check(self, chain_id: &Digest) -> Result<Self> {
        let key = Self::key(chain_id);
        if self.chain_id != *chain_id {
            return Err(Error::malformed(&key, format!("it is about {}", self.chain_id)));
        }
        if self.stack.is_empty() {
            return Err(Error::malformed(&key, "its stack is empty"));
        }
        Ok(self)
    }
}

impl Refs {
    /// The reference of a chain id as it is stored.
    pub async fn stored_chain(&self, chain_id: &Digest) -> Result<Option<Chain>> {
        match self.read::<Chain>(&Chain::key(chain_id)).await? {
            Some(document) => document.body.check(chain_id).map(Some),
            None => Ok(None),
        }
    }

    /// The reference of a chain id, for writers; one that is damaged or has a revoked layer counts as absent, and so does a
    /// collapsed stack with one.
    pub async fn chain(&self, chain_id: &Digest) -> Result<Option<Chain>> {
        let mut chain = match self.stored_chain(chain_id).await {
            Ok(Some(chain)) => chain,
            Ok(None) => return Ok(None),
            Err(error) if error.is_damaged() => {
                tracing::warn!(%error, "a chain reference that cannot be read: taken as absent");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        chain.stack = chain.stack.understood()?;
        match self.revoked_layer(&chain.stack).await? {
            None => {
                chain.collapsed = self.usable(chain.collapsed).await?;
                Ok(Some(chain))
            }
            Some(layer) => {
                tracing::warn!(%chain_id, %layer, "a chain reference names a revoked layer: taken as absent");
                Ok(None)
            }
        }
    }

    /// The same, where one with a layer of `gone` counts as absent, too.
    pub async fn chain_without(&self, chain_id: &Digest, gone: &BTreeSet<LayerId>) -> Result<Option<Chain>> {
        let names_gone = |stack: &Stack| stack.layers().iter().any(|entry| gone.contains(&entry.layer));
        let chain = self.chain(chain_id).await?.filter(|chain| !names_gone(&chain.stack));
        Ok(chain.map(|mut chain| {
            chain.collapsed = chain.collapsed.filter(|stack| !names_gone(stack));
            chain
        }))
    }

    /// As [`Refs::write_chains`] does it of one.
    #[cfg(test)]
    pub(super) async fn create_chain(&self, chain: &Chain) -> Result<Chain> {
        self.create_chain_without(chain, &BTreeSet::new()).await
    }

    /// Writes a chain reference if there is none (or one with a revoked layer, or one of `gone`); gives the one that stands
    /// then, which is another writer's if that one was faster.
    async fn create_chain_without(&self, chain: &Chain, gone: &BTreeSet<LayerId>) -> Result<Chain> {
        let chain = chain.clone().check(&chain.chain_id)?;
        if let Some(theirs) = self.chain_without(&chain.chain_id, gone).await? {
            return Ok(theirs);
        }
        let key = Chain::key(&chain.chain_id);
        self.create_or_take(&key, &chain).await?;
        // Also one that can be read and is about something else is replaced.
        match self.chain_without(&chain.chain_id, gone).await? {
            Some(stands) => Ok(stands),
            None => self.replace_chain(&chain).await,
        }
    }

    /// Writes a chain reference whatever there is: for `convert --again`.
    pub async fn replace_chain(&self, chain: &Chain) -> Result<Chain> {
        let chain = chain.clone().check(&chain.chain_id)?;
        let key = Chain::key(&chain.chain_id);
        Ok(self.replace(&key, &chain).await?.body)
    }

    /// Writes the references of a whole image, bottom up, and gives those that stand then. Each layer lies on the
    /// stack that *stands* for the chain below it, whoever wrote that. A collapsed stack goes where the stack that it
    /// was made of goes. All layers must be in the store already.
    pub async fn write_chains(&self, layers: &[ChainLayer], again: bool) -> Result<Vec<Chain>> {
        self.write_chains_without(layers, again, &BTreeSet::new()).await
    }

    /// The same, where what is stored with a layer of `gone` counts as absent.
    pub async fn write_chains_without(
        &self,
        layers: &[ChainLayer],
        again: bool,
        gone: &BTreeSet<LayerId>,
    ) -> Result<Vec<Chain>> {
        let mut chains = Vec::with_capacity(layers.len());
        let mut below = Stack::EMPTY;
        for layer in layers {
            let stack = below.with(layer.entry.clone());
            let mut chain = Chain { chain_id: layer.chain_id, stack, collapsed: None };
            let stands = match again {
                true => {
                    let before = self.chain_without(&chain.chain_id, gone).await.ok().flatten();
                    chain.collapsed = before.filter(|b| b.stack == chain.stack).and_then(|b| b.collapsed);
                    self.replace_chain(&chain).await?
                }
                false => self.create_chain_without(&chain, gone).await?,
            };
            below = stands.stack.clone();
            chains.push(stands);
        }
        Ok(chains)
    }
}
