//! Chain references by a writer that holds what they name.
//!
//! A reference that stands already can name layers that its reader does not hold, and of which a collector may be about to
//! delete some. So what stands is held first; what of it is going, or not there, counts as absent, and what names it is
//! replaced. Another writer can put others there meanwhile: then it begins again.

use super::error::{Error, Result};
use super::lease::Lease;
use crate::layer::LayerId;
use crate::refs::{Chain, ChainLayer, Digest, Refs, layer_key, layer_of};
use crate::store::StoreError;
use std::collections::BTreeSet;

/// How often it begins again.
const ATTEMPTS: u32 = 16;

/// A writer's hands on the references of a store: what it writes names nothing that it does not hold.
#[derive(Debug)]
pub struct Held<'a> {
    refs: &'a Refs,
    lease: &'a Lease,
    /// What may not be named.
    gone: BTreeSet<LayerId>,
    /// What may be.
    there: BTreeSet<LayerId>,
}

impl<'a> Held<'a> {
    /// Of a writer with this lease, which holds the layers that it will name itself, all of them in the store by now.
    pub fn new(refs: &'a Refs, lease: &'a Lease) -> Self {
        Self { refs, lease, gone: BTreeSet::new(), there: BTreeSet::new() }
    }

    /// Holds layers, and gives those that may not be named: those that are going, and those that are not there.
    pub async fn unusable(&mut self, layers: impl IntoIterator<Item = LayerId>) -> Result<BTreeSet<LayerId>> {
        let fresh: BTreeSet<LayerId> =
            layers.into_iter().filter(|layer| !self.there.contains(layer) && !self.gone.contains(layer)).collect();
        let condemned = self.lease.hold(fresh.iter().map(layer_key)).await?;
        let mut unusable: BTreeSet<LayerId> = condemned.iter().filter_map(|key| layer_of(key)).collect();
        for layer in fresh.iter().filter(|layer| !condemned.contains(&layer_key(layer))) {
            match self.refs.store().stat(&layer_key(layer)).await {
                Ok(_) => {}
                Err(StoreError::NotFound { .. }) => drop(unusable.insert(*layer)),
                Err(error) => return Err(error.into()),
            }
        }
        self.there.extend(fresh.difference(&unusable));
        self.gone.extend(&unusable);
        Ok(unusable)
    }

    /// As [`Refs::write_chains`].
    pub async fn write_chains(&mut self, layers: &[ChainLayer], again: bool) -> Result<Vec<Chain>> {
        self.there.extend(layers.iter().map(|layer| layer.entry.layer));
        for _ in 0..ATTEMPTS {
            self.look(layers.iter().map(|layer| layer.chain_id)).await?;
            self.lease.check().await?;
            let chains = self.refs.write_chains_without(layers, again, &self.gone).await?;
            if self.hold_all(&chains).await? {
                return Ok(chains);
            }
        }
        Err(Error::Contended(ATTEMPTS))
    }

    /// As [`Refs::add_collapsed`].
    pub async fn add_collapsed(&mut self, chains: &[Chain], again: bool) -> Result<Vec<Chain>> {
        self.there.extend(chains.iter().flat_map(layers_of));
        for _ in 0..ATTEMPTS {
            self.look(chains.iter().map(|chain| chain.chain_id)).await?;
            self.lease.check().await?;
            let stand = self.refs.add_collapsed_without(chains, again, &self.gone).await?;
            if self.hold_all(&stand).await? {
                return Ok(stand);
            }
        }
        Err(Error::Contended(ATTEMPTS))
    }

    /// Holds what the references of these chains name now.
    async fn look(&mut self, chain_ids: impl Iterator<Item = Digest>) -> Result<()> {
        let mut named = BTreeSet::new();
        for chain_id in chain_ids {
            if let Some(chain) = self.refs.chain(&chain_id).await? {
                named.extend(layers_of(&chain));
            }
        }
        self.unusable(named).await.map(drop)
    }

    /// Whether everything that they name may be named.
    async fn hold_all(&mut self, chains: &[Chain]) -> Result<bool> {
        self.unusable(chains.iter().flat_map(layers_of)).await?;
        Ok(chains.iter().flat_map(layers_of).all(|layer| self.there.contains(&layer)))
    }
}

fn layers_of(chain: &Chain) -> impl Iterator<Item = LayerId> {
    chain.stack.layers().iter().chain(chain.collapsed.iter().flatten()).map(|entry| entry.layer)
}
