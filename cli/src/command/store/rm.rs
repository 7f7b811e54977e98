//! `lamina store rm`: names that go.

use super::super::{Context, suggest};
use crate::args::StoreRm;
use crate::failure::Failure;
use crate::output;
use blobstore::refs::{Name, Refs};
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
    super::there(&refs).await?;
    // All or none: a name that is not there is most likely a mistake.
    for name in &names {
        if !is_there(&refs, name).await.map_err(|e| Failure::because(name, &e))? {
            let failure =
                Failure::failed(format!("{name}: no such name in {}; nothing was removed", refs.store().url()));
            return Err(failure.with(&suggest::or_else(&refs, name).await));
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
    names.iter().for_each(|name| output::done(format!("{name} removed")));
    output::done("what only these needed goes with lamina store gc --delete, after its grace");
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
