//! `lamina store`: what the store holds.

use super::Context;
use crate::args::StoreCommand;
use crate::failure::Failure;
use crate::output;
use serde_json::json;

pub(super) async fn run(context: &Context, command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Ls => list(context).await,
        StoreCommand::Other(words) => {
            let name = words.first().map_or("", String::as_str);
            match ["du", "rm", "revoke", "sign", "gc", "fsck"].contains(&name) {
                true => {
                    Err(Failure::failed(format!("'lamina store {name}' is not built yet; the README says what is")))
                }
                false => Err(Failure::usage(format!("there is no 'lamina store {name}'; there is: lamina store ls"))),
            }
        }
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let refs = context.refs()?;
    let failed = |e| Failure::because("cannot list", &e);
    let images: Vec<String> = refs.images().await.map_err(failed)?.iter().map(ToString::to_string).collect();
    let tags: Vec<String> = refs.tags().await.map_err(failed)?.iter().map(ToString::to_string).collect();
    if context.json {
        return output::json(&json!({"images": images, "tags": tags}));
    }
    images.iter().for_each(|name| output::line(format!("image:{name}")));
    tags.iter().for_each(|name| output::line(format!("tag:{name}")));
    Ok(())
}
