//! `lamina store rm` and `revoke`: names that go, layers that nobody may mount any more.

use super::super::Context;
use crate::args::{StoreRevoke, StoreRm};
use crate::failure::Failure;
use crate::output;
use blobstore::layer::LayerId;
use blobstore::refs::{Name, Refs, Stack};
use serde_json::json;

pub(super) async fn rm(context: &Context, arguments: &StoreRm) -> Result<(), Failure> {
    let mut names = Vec::new();
    for text in &arguments.references {
        let name: Name = text.parse().map_err(|e| Failure::usage(format!("{e}")))?;
        match &name {
            Name::Tag(_) => {}
            Name::Image(image) if image.digest().is_none() => {}
            Name::Image(image) => {
                let why = "a digest is no name that can be removed; name the tag";
                return Err(Failure::usage(format!("{image}: {why}")));
            }
            _ => {
                let why = "only names of images and tags are removed; layers go by themselves (lamina store gc)";
                return Err(Failure::usage(format!("{text}: {why}")));
            }
        }
        names.push(name);
    }
    let refs = context.refs()?;
    // All or none: a name that is not there is most likely a mistake.
    for name in &names {
        if !is_there(&refs, name).await.map_err(|e| Failure::because(name, &e))? {
            return Err(Failure::failed(format!(
                "{name}: no such name in {}; nothing was removed",
                refs.store().url()
            )));
        }
    }
    for name in &names {
        let removed = match name {
            Name::Image(image) => refs.remove_image(image).await,
            Name::Tag(tag) => refs.remove_tag(tag).await,
            _ => Ok(()),
        };
        removed.map_err(|e| Failure::because(format!("removing {name}"), &e))?;
    }
    if context.json {
        let removed: Vec<String> = names.iter().map(ToString::to_string).collect();
        return output::json(&json!({ "removed": removed }));
    }
    names.iter().for_each(|name| output::line(format!("{name} removed")));
    output::line("what only these needed goes with lamina store gc --delete, after its grace");
    Ok(())
}

/// One that is damaged can be removed: collectors delete nothing as long as there is a name that they cannot read.
async fn is_there(refs: &Refs, name: &Name) -> blobstore::refs::Result<bool> {
    let found = match name {
        Name::Image(image) => refs.image(image).await.map(|found| found.is_some()),
        Name::Tag(tag) => refs.tag(tag).await.map(|found| found.is_some()),
        _ => Ok(false),
    };
    match found {
        Err(error) if error.is_damaged() => Ok(true),
        found => found,
    }
}

pub(super) async fn revoke(context: &Context, arguments: &StoreRevoke) -> Result<(), Failure> {
    let name: Name = arguments.layer.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    let refs = context.refs()?;
    let layer = match &name {
        Name::Layer(layer) => *layer,
        Name::LayerPrefix(start) => {
            refs.layer_with(start).await.map_err(|e| Failure::because("cannot find the layer", &e))?
        }
        _ => return Err(Failure::usage(format!("{name} is no layer; lamina inspect shows the layers of a name"))),
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
    output::line(format!("layer {layer} is revoked: it gets no new mount; what is mounted stays"));
    named.iter().for_each(|name| output::line(format!("{name} has it, and counts as not converted now")));
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
