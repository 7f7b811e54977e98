//! What a name stands for, beside its layers: an image's digests and platforms.

use crate::failure::Failure;
use crate::output;
use blobstore::refs::{Digest, ManifestDoc, Name, Refs, Result};
use serde_json::{Value, json};

/// Of an image, or of a digest that is a manifest's or an index's.
pub(super) struct About {
    /// Of what the name stands for: an index, or a manifest.
    digest: Digest,
    platforms: Vec<String>,
    /// The one that runs here, whose layers are listed.
    chosen: ManifestDoc,
}

impl About {
    /// `None` where there is no image in it: a tag, a layer, a chain.
    pub(super) async fn of(refs: &Refs, name: &Name) -> std::result::Result<Option<Self>, Failure> {
        Self::read(refs, name).await.map_err(|e| Failure::because(name, &e))
    }

    async fn read(refs: &Refs, name: &Name) -> Result<Option<Self>> {
        let digest = match name {
            Name::Image(image) => refs.image(image).await?,
            // Where it is a chain's, it is not a manifest's.
            Name::Digest(digest) if refs.stored_chain(digest).await?.is_none() => Some(*digest),
            _ => None,
        };
        let Some(digest) = digest else { return Ok(None) };
        let Some(chosen) = refs.choose_manifest(&digest).await? else { return Ok(None) };
        let mut platforms: Vec<String> = Vec::new();
        // They are told beside what was asked for: that one cannot be read is no reason to show nothing.
        let all = refs.manifests_of(&digest).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the image's other platforms cannot be listed");
            vec![chosen.clone()]
        });
        for platform in all.into_iter().map(|manifest| manifest.platform.to_string()) {
            // A pushed image has each twice: the original, and ours.
            if !platforms.contains(&platform) {
                platforms.push(platform);
            }
        }
        Ok(Some(Self { digest, platforms, chosen }))
    }

    fn chain_id(&self) -> Option<String> {
        self.chosen.chains.last().map(|chain| chain.chain_id.to_string())
    }

    pub(super) fn add_to(&self, value: &mut Value) {
        value["digest"] = self.digest.to_string().into();
        value["manifest"] = self.chosen.digest.to_string().into();
        value["platform"] = self.chosen.platform.to_string().into();
        value["platforms"] = json!(self.platforms);
        value["chain_id"] = json!(self.chain_id());
    }

    pub(super) fn print(&self) {
        output::line(format!("digest    {}", self.digest));
        if self.chosen.digest != self.digest {
            output::line(format!("manifest  {}", self.chosen.digest));
        }
        let others: Vec<&str> = self
            .platforms
            .iter()
            .map(String::as_str)
            .filter(|other| *other != self.chosen.platform.to_string())
            .collect();
        let others = match others.as_slice() {
            [] => String::new(),
            others => format!(" (also converted: {})", others.join(", ")),
        };
        output::line(format!("platform  {}{others}", self.chosen.platform));
        if let Some(chain_id) = self.chain_id() {
            output::line(format!("chain id  {chain_id}"));
        }
    }
}
