//! Names: that each leads to something that is there.

use super::Check;
use crate::collect;
use crate::refs::{Name, layer_key};
use crate::store::StoreError;
use std::collections::BTreeSet;

impl Check<'_> {
    pub(super) async fn names(&mut self) -> Result<(), collect::Error> {
        for image in self.refs.images().await? {
            self.report.names += 1;
            let key = Name::Image(image.clone()).to_string();
            let found = match self.refs.image(&image).await {
                Ok(Some(digest)) => self.refs.manifests_of(&digest).await.map(|found| (digest, found)),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match found {
                Ok((digest, found)) if found.is_empty() => {
                    self.report.fault(&key, format!("{digest} is not converted; convert it again"), false);
                }
                Ok(_) => {}
                Err(error) => drop(self.unreadable_name(&key, error)?),
            }
        }
        for tag in self.refs.tags().await? {
            self.report.names += 1;
            let key = Name::Tag(tag.clone()).to_string();
            match self.refs.tag(&tag).await {
                Ok(Some(found)) => {
                    if let Some(bad) = self.first_bad([&found.stack].into_iter().chain(&found.collapsed)) {
                        self.report.fault(&key, bad, false);
                    }
                }
                Ok(None) => {}
                Err(error) => drop(self.unreadable_name(&key, error)?),
            }
        }
        let reached = match collect::reached(self.refs).await {
            Ok(reached) => Some(reached),
            Err(collect::Error::Store(error)) => return Err(error.into()),
            // Told already, by what is wrong.
            Err(_) => None,
        };
        self.damaged(reached.as_ref());
        match reached {
            Some(reached) => self.orphans(&reached).await,
            None => Ok(()),
        }
    }

    /// Layers that are not right: what helps depends on who needs them.
    fn damaged(&mut self, reached: Option<&BTreeSet<String>>) {
        for (key, what) in std::mem::take(&mut self.bad) {
            let advice = match reached.map(|reached| reached.contains(&key)) {
                Some(true) => "convert what it is of again, with --again",
                Some(false) => "no name and no lease reaches it: lamina store gc --delete takes it away",
                None => "convert what it is of again, with --again, if anything still names it",
            };
            self.report.fault(&key, format!("{what}; {advice}"), false);
        }
    }

    /// Names are never repaired: what they are to stand for is for people to say.
    fn unreadable_name(&mut self, key: &str, error: crate::refs::Error) -> Result<(), collect::Error> {
        match error {
            crate::refs::Error::Store(error) => Err(error.into()),
            error if error.is_damaged() => {
                self.report.fault(
                    key,
                    format!("{error}; convert it again, or remove the name: lamina store rm"),
                    false,
                );
                Ok(())
            }
            error => {
                self.report.fault(key, error, false);
                Ok(())
            }
        }
    }

    /// Layers that no name reaches.
    async fn orphans(&mut self, reached: &BTreeSet<String>) -> Result<(), collect::Error> {
        let orphans: Vec<_> = self.good.iter().filter(|layer| !reached.contains(&layer_key(layer))).copied().collect();
        for layer in orphans {
            let key = layer_key(&layer);
            let size = match self.refs.store().stat(&key).await {
                Ok(stat) => stat.size,
                Err(StoreError::NotFound { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            self.report.note(&key, format!("no name and no lease reaches it ({size} bytes): lamina store gc"), false);
        }
        Ok(())
    }
}
