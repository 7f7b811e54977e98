//! From a name to the stack it stands for.

use super::error::{Error, Result};
use super::{Digest, ImageName, Name, Refs, Stack, StackEntry, Stacks, TagName, layer_key};
use crate::layer::LayerId;
use crate::store::StoreError;

impl Refs {
    /// The stack to mount for a reference; see [`Self::resolve_stacks`].
    pub async fn resolve(&self, name: &Name) -> Result<Stack> {
        self.resolve_stacks(name).await.map(Stacks::best)
    }

    /// What a reference stands for: stacks none of whose layers is revoked or of an unknown version. A collapsed one that
    /// is not so counts as absent.
    ///
    /// A layer by its id gives an entry in which only id and size are known. [`Name::File`] is an error: a file on
    /// this machine is opened, not resolved.
    pub async fn resolve_stacks(&self, name: &Name) -> Result<Stacks> {
        let Stacks { plain, collapsed } = match name {
            Name::Layer(layer) => self.resolve_layer(layer).await?.into(),
            Name::LayerPrefix(start) => self.resolve_layer(&self.layer_with(start).await?).await?.into(),
            Name::Tag(tag) => self.resolve_tag(tag).await?,
            Name::Image(image) => self.resolve_image(image).await?,
            Name::Digest(digest) => self.resolve_digest(digest).await?,
            Name::File(path) => {
                let path = path.display().to_string();
                return Err(Error::LocalFile { path });
            }
        };
        let plain = plain.understood()?;
        match self.revoked_layer(&plain).await? {
            None => Ok(Stacks { plain, collapsed: self.usable(collapsed).await? }),
            Some(layer) => Err(Error::Revoked { name: name.to_string(), layer }),
        }
    }

    async fn resolve_layer(&self, layer: &LayerId) -> Result<Stack> {
        self.check_format().await?;
        match self.store.stat(&layer_key(layer)).await {
            Ok(stat) => Ok(Stack::EMPTY.with(StackEntry { size: stat.size, ..StackEntry::bare(*layer) })),
            Err(StoreError::NotFound { .. }) => {
                Err(Error::not_found(format!("layer:{layer}"), format!("no such layer in {}", self.place().await?)))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The one layer whose id starts with `start`.
    pub async fn layer_with(&self, start: &str) -> Result<LayerId> {
        let name = format!("layer:{start}");
        self.check_format().await?;
        let shard = start.get(..2).unwrap_or_default();
        let prefix = format!("layers/{shard}/");
        let keys = self.store.list(&prefix).await?;
        let mut fitting = keys
            .iter()
            .filter_map(|k| k.strip_prefix(&prefix))
            .filter(|id| id.starts_with(start))
            .filter_map(|id| id.parse::<LayerId>().ok());
        match (fitting.next(), fitting.next()) {
            (Some(layer), None) => Ok(layer),
            (Some(first), Some(second)) => Err(Error::Ambiguous { name, first, second }),
            (None, _) => Err(Error::not_found(name, format!("no layer of {} starts so", self.store.url()))),
        }
    }

    async fn resolve_tag(&self, tag: &TagName) -> Result<Stacks> {
        match self.tag(tag).await? {
            Some(found) => Ok(Stacks { plain: found.stack, collapsed: found.collapsed }),
            None => Err(Error::not_found(format!("tag:{tag}"), format!("no such tag in {}", self.place().await?))),
        }
    }

    async fn resolve_image(&self, image: &ImageName) -> Result<Stacks> {
        let name = format!("image:{image}");
        let Some(digest) = self.image(image).await? else {
            return Err(Error::not_found(name, format!("no such image in {}", self.place().await?)));
        };
        match self.choose_manifest(&digest).await? {
            Some(manifest) => manifest.stacks().ok_or_else(|| Error::not_found(name, "the image has no layers")),
            None => Err(Error::not_found(
                name,
                format!("{digest}, which it stands for, is not converted in {}", self.store.url()),
            )),
        }
    }

    /// A chain id first: that is what containerd asks for with every unpack. The rest is asked for at once, so that an
    /// image that is not converted costs two or three round trips a layer and not five.
    async fn resolve_digest(&self, digest: &Digest) -> Result<Stacks> {
        if let Some(chain) = self.stored_chain(digest).await? {
            return Ok(Stacks { plain: chain.stack, collapsed: chain.collapsed });
        }
        let (manifest, diff) = tokio::join!(self.choose_manifest(digest), self.resolve_diff(digest));
        if let Some(manifest) = manifest? {
            return manifest.stacks().ok_or_else(|| Error::not_found(digest, "the image has no layers"));
        }
        let nothing = || {
            let store = self.store.url();
            Error::not_found(digest, format!("neither chain id, manifest, layer nor diff id in {store}"))
        };
        diff?.map(Stacks::from).ok_or_else(nothing)
    }

    /// The layer of a layer digest or diff id, alone.
    ///
    /// Only one that took nothing from below: the chain id of an image's lowest layer *is* its diff id, and what was
    /// made over something else must not appear there.
    async fn resolve_diff(&self, digest: &Digest) -> Result<Option<Stack>> {
        let (diff_id, diff) = tokio::join!(self.layer_digest(digest), self.diff(digest));
        let diff = match diff_id? {
            Some(diff_id) => self.diff(&diff_id).await?,
            None => diff?,
        };
        let Some(diff) = diff else { return Ok(None) };
        let (alone, over): (Vec<_>, Vec<_>) = diff.candidates.into_iter().partition(|c| c.assumes.is_empty());
        match (alone.into_iter().next(), over.first()) {
            (Some(candidate), _) => Ok(Some(Stack::EMPTY.with(candidate.entry))),
            (None, None) => Ok(None),
            (None, Some(candidate)) => Err(Error::not_found(
                digest,
                format!("its layer was made over others and is not whole alone: layer:{}", candidate.entry.layer),
            )),
        }
    }
}
