//! What somebody may have meant who asked for what a store does not have: the names and layers that are most like it.
//!
//! A short name stands for one of docker.io, a name without a version for `latest`, and a name without a kind for an image: so
//! names are compared as a whole, by their last part, and by that without its version.

use super::Context;
use crate::failure::Failure;
use blobstore::layer::LayerId;
use blobstore::refs::{Error, Name, Refs, layer_of};
use std::time::Duration;
use strsim::osa_distance;

/// Suggestions at most.
const MOST: usize = 3;

/// How long looking for them may take: they are a courtesy.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names and layers looked at, at most.
const LOOKED_AT: usize = 100_000;

/// Why a name leads nowhere; with what else may have been meant, where the store has no such thing.
pub(super) async fn unresolved(refs: &Refs, name: &Name, error: &Error) -> Failure {
    let failure = Failure::because("cannot resolve", error);
    match error {
        Error::NotFound { .. } => failure.with(&or_else(refs, name).await),
        _ => failure,
    }
}

/// The same of what laminad could not find, by the store of this command's configuration: most likely it is laminad's.
pub(super) async fn not_found(context: &Context, references: &[String], failure: Failure) -> Failure {
    let Ok(refs) = context.refs() else { return failure };
    let mut told = failure;
    for name in references.iter().filter_map(|text| text.parse::<Name>().ok()) {
        // Of several, those that are there are not at fault.
        if let Ok(Err(Error::NotFound { .. })) = tokio::time::timeout(PATIENCE, refs.resolve(&name)).await {
            told = told.with(&or_else(&refs, &name).await);
        }
    }
    told
}

/// `; did you mean …?`, or nothing.
pub(super) async fn or_else(refs: &Refs, name: &Name) -> String {
    let found = tokio::time::timeout(PATIENCE, like(refs, name)).await;
    match found.as_deref() {
        // What it is asked for is what fails: that there is nothing to suggest is not worth a word.
        Err(_) | Ok([]) => String::new(),
        Ok(names) => format!("; did you mean {}?", names.join(" or ")),
    }
}

async fn like(refs: &Refs, name: &Name) -> Vec<String> {
    match name {
        Name::Image(_) | Name::Tag(_) => {
            let images = refs.images().await.unwrap_or_default().into_iter().map(Name::Image);
            let tags = refs.tags().await.unwrap_or_default().into_iter().map(Name::Tag);
            let all: Vec<String> = images.chain(tags).take(LOOKED_AT).map(|name| name.to_string()).collect();
            nearest(&name.to_string(), &all)
        }
        Name::Layer(_) | Name::LayerPrefix(_) => {
            let keys = refs.store().list("layers/").await.unwrap_or_default();
            let layers: Vec<LayerId> = keys.iter().filter_map(|key| layer_of(key)).take(LOOKED_AT).collect();
            layers_like(&name.to_string(), &layers)
        }
        Name::File(_) | Name::Digest(_) => Vec::new(),
    }
}

/// Those of `names` that are most like `wanted`, the nearest first.
fn nearest(wanted: &str, names: &[String]) -> Vec<String> {
    let near = names.iter().filter_map(|name| Some((distance(wanted, name)?, name)));
    best(near)
}

fn best<'n>(near: impl Iterator<Item = (usize, &'n String)>) -> Vec<String> {
    let mut near: Vec<_> = near.collect();
    near.sort();
    near.into_iter().take(MOST).map(|(_, name)| name.clone()).collect()
}

/// How many letters have to be changed to come from one name to the other, if these are few.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let (ours, theirs) = (last_part(wanted), last_part(name));
    let without = osa_distance(without_version(ours), without_version(theirs)) + 1;
    let least = osa_distance(wanted, name).min(osa_distance(ours, theirs)).min(without);
    // A letter of four, and one in any case; of short names not all of them.
    let few = 1 + without_version(ours).chars().count() / 4;
    (least <= few).then_some(least)
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn without_version(name: &str) -> &str {
    name.split([':', '@']).next().unwrap_or(name)
}

/// Layers whose ids begin almost as `wanted`, which begins with `layer:`.
fn layers_like(wanted: &str, layers: &[LayerId]) -> Vec<String> {
    const FEW: usize = 2;
    let names: Vec<String> = layers.iter().map(|layer| Name::Layer(*layer).to_string()).collect();
    let near = names.iter().filter_map(|name| {
        let distance = osa_distance(wanted, name.get(..wanted.len())?);
        (distance <= FEW).then_some((distance, name))
    });
    best(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(text: &str, names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| name.parse::<Name>().unwrap().to_string()).collect();
        nearest(&text.parse::<Name>().unwrap().to_string(), &names)
    }

    #[test]
    fn what_newcomers_leave_out_or_mistype_is_found() {
        let names = ["registry.example.com/team/python:3.12", "docker.io/library/nginx:1", "toolkit/tools:1"];
        let python = ["image:registry.example.com/team/python:3.12"];
        for text in ["python", "python:3.12", "python:3.11", "pyhton:3.12", "registry.example.com/team/pythn:3.12"] {
            assert_eq!(meant(text, &names), python, "{text}");
        }
        assert_eq!(meant("nginx", &names), ["image:docker.io/library/nginx:1"]);
        for text in ["tools:1", "toolkit/tool:1", "base/tools:1"] {
            assert_eq!(meant(text, &names), ["tag:toolkit/tools:1"], "{text}");
        }
    }

    #[test]
    fn what_is_like_nothing_gets_no_suggestion_and_the_nearest_come_first() {
        assert_eq!(meant("redis", &["postgres:16", "toolkit/tools:1"]), Vec::<String>::new());
        assert_eq!(meant("go", &["toolkit/cc:1"]), Vec::<String>::new());
        let versions = ["h.io/app:1", "h.io/app:2", "h.io/app:33", "h.io/apq:9", "h.io/app:4"];
        assert_eq!(meant("h.io/app:3", &versions), ["image:h.io/app:1", "image:h.io/app:2", "image:h.io/app:33"]);
    }

    #[test]
    fn a_digit_of_a_layers_id_may_be_wrong() {
        let layers = [LayerId::from_bytes([0x11; 32]), LayerId::from_bytes([0x22; 32])];
        let one = Name::Layer(layers[0]).to_string();
        assert_eq!(layers_like("layer:111111211111", &layers), [one]);
        assert_eq!(layers_like("layer:111222111222", &layers), Vec::<String>::new());
    }
}
