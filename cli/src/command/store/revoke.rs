//! `lamina store revoke`, `unrevoke` and `ls --revoked`: layers that nobody may mount any more.

use super::super::Context;
use super::super::suggest::unresolved;
use super::there;
use crate::args::{StoreRevoke, StoreUnrevoke};
use crate::failure::Failure;
use crate::output;
use blobstore::layer::LayerId;
use blobstore::refs::{Name, Refs, Stack};
use serde_json::{Value, json};

pub(super) async fn revoke(context: &Context, arguments: &StoreRevoke) -> Result<(), Failure> {
    let name = layer_name(&arguments.layer)?;
    let refs = context.refs()?;
    let layer = match &name {
        Name::LayerPrefix(start) => match refs.layer_with(start).await {
            Ok(layer) => layer,
            Err(error) => return Err(unresolved(&refs, &name, &error).await),
        },
        Name::Layer(layer) => *layer,
        _ => return Err(no_layer(&name)),
    };
    let there = refs.is_there().await.map_err(|e| Failure::because("cannot use the store", &e))?;
    if !there {
        return Err(Failure::failed(format!("{}: there is no store", refs.store().url())));
    }
    refs.revoke(&layer, &arguments.reason).await.map_err(|e| Failure::because(format!("revoking {layer}"), &e))?;
    let named = naming(&refs, &layer).await.map_err(|e| Failure::because("it is revoked; looking for names", &e))?;
    if context.json {
        let names: Vec<String> = named.iter().map(ToString::to_string).collect();
        return output::json(&json!({"revoked": layer.to_string(), "names": names}));
    }
    output::done(format!("layer {layer} is revoked: it gets no new mount; what is mounted stays"));
    named.iter().for_each(|name| output::done(format!("{name} has it, and counts as not converted now")));
    Ok(())
}

/// A layer whose file is gone can have been revoked: the list of those that are is what counts.
pub(super) async fn unrevoke(context: &Context, arguments: &StoreUnrevoke) -> Result<(), Failure> {
    let name = layer_name(&arguments.layer)?;
    let refs = context.refs()?;
    there(&refs).await?;
    let because = |e| Failure::because("cannot take it back", &e);
    let layer = match &name {
        Name::Layer(layer) => *layer,
        Name::LayerPrefix(start) => {
            let revoked = refs.revocations().await.map_err(because)?;
            let mut fitting = revoked.iter().map(|(layer, _)| *layer).filter(|id| id.to_string().starts_with(start));
            match (fitting.next(), fitting.next()) {
                (Some(layer), None) => layer,
                (Some(first), Some(second)) => {
                    return Err(Failure::failed(format!("{name}: more than one layer starts so: {first}, {second}")));
                }
                (None, _) => return Err(not_revoked(&refs, &name)),
            }
        }
        _ => return Err(no_layer(&name)),
    };
    if !refs.unrevoke(&layer).await.map_err(because)? {
        return Err(not_revoked(&refs, &name));
    }
    if context.json {
        return output::json(&json!({"unrevoked": layer.to_string()}));
    }
    output::done(format!("layer {layer} is no longer revoked: nodes mount it again, within seconds"));
    Ok(())
}

fn layer_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|e| Failure::usage(format!("{e}")))
}

fn no_layer(name: &Name) -> Failure {
    Failure::usage(format!("{name} is no layer; lamina inspect shows the layers of a name"))
}

fn not_revoked(refs: &Refs, name: &Name) -> Failure {
    Failure::failed(format!("{name}: not revoked in {}; lamina store ls --revoked lists what is", refs.store().url()))
}

/// `ls --revoked`.
pub(super) async fn list(context: &Context, refs: &Refs, wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    there(refs).await?;
    let mut all = refs.revocations().await.map_err(|e| Failure::because("cannot list", &e))?;
    all.retain(|(layer, _)| wanted(&Name::Layer(*layer).to_string()));
    if context.json {
        let each = all.iter().map(|(layer, why)| match why {
            Some((why, time)) => json!({"layer": layer.to_string(), "reason": why.reason, "time": time}),
            None => json!({"layer": layer.to_string()}),
        });
        return output::json(&json!({"revoked": each.collect::<Vec<Value>>()}));
    }
    for (layer, why) in all {
        let reason = match &why {
            Some((why, _)) if why.reason.is_empty() => "no reason given",
            Some((why, _)) => &output::printable(&why.reason),
            None => "its object cannot be read; it counts all the same",
        };
        output::line(format!("{}  {reason}", Name::Layer(layer)));
    }
    Ok(())
}

/// The names that reach a layer.
async fn naming(refs: &Refs, layer: &LayerId) -> blobstore::refs::Result<Vec<Name>> {
    let has = |stack: &Stack| stack.layers().iter().any(|entry| entry.layer == *layer);
    let mut names = Vec::new();
    for image in refs.images().await? {
        let Some(digest) = refs.image(&image).await? else { continue };
        let manifests = refs.manifests_of(&digest).await?;
        if manifests.iter().flat_map(|manifest| &manifest.chains).any(|chain| has(&chain.stack)) {
            names.push(Name::Image(image));
        }
    }
    for name in refs.tags().await? {
        if refs.tag(&name).await?.is_some_and(|tag| has(&tag.stack)) {
            names.push(Name::Tag(name));
        }
    }
    Ok(names)
}
