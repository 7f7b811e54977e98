//! `lamina inspect`: what a reference stands for, from the layers' heads alone; both its stacks, where it has two.
//!
//! * `about`: what is said of an image. * `tree`: the entries of a layer.

mod about;
mod tree;

use self::about::About;
use super::Context;
use super::suggest::unresolved;
use crate::args::Inspect;
use crate::failure::Failure;
use crate::output;
use blobstore::layer::{Flags, Head, read_head, read_head_file};
use blobstore::profile;
use blobstore::refs::{Name, Refs, Stack, StackEntry, Stacks, layer_key};
use serde_json::json;
use std::path::Path;

pub(super) async fn run(context: &Context, arguments: &Inspect) -> Result<(), Failure> {
    let name: Name = arguments.reference.parse().map_err(|e| Failure::usage(format!("{e}")))?;
    let (heads, collapsed) = match &name {
        Name::File(path) => (vec![of_file(path)?], None),
        _ => of_stacks(&context.refs()?, &name).await?,
    };
    let about = match &name {
        Name::Image(_) | Name::Digest(_) if !arguments.profile => About::of(&context.refs()?, &name).await?,
        _ => None,
    };
    if arguments.profile {
        return started(context, &name, collapsed.as_deref().unwrap_or(&heads)).await;
    }
    if context.json {
        let list = |heads: &[Head]| heads.iter().map(|h| as_json(h, arguments)).collect::<Result<Vec<_>, _>>();
        let mut value = json!({"reference": arguments.reference, "layers": list(&heads)?});
        if let Some(heads) = &collapsed {
            value["collapsed"] = list(heads)?.into();
        }
        value["name"] = name.to_string().into();
        value["bytes"] = bytes(&heads).into();
        if let Some(about) = &about {
            about.add_to(&mut value);
        }
        return output::json(&value);
    }
    output::line(format!("{name}: {}, {}", output::count(heads.len() as u64, "layer"), output::bytes(bytes(&heads))));
    if let Some(about) = &about {
        about.print();
    }
    for head in &heads {
        print(head, arguments)?;
    }
    if let Some(heads) = &collapsed {
        let count = output::count(heads.len() as u64, "layer");
        output::line(format!("collapsed, and mounted so: {count}"));
        for head in heads {
            print(head, arguments)?;
        }
    }
    Ok(())
}

/// The files that starts read, as their nodes' profiles say.
async fn started(context: &Context, name: &Name, heads: &[Head]) -> Result<(), Failure> {
    let refs = context.refs()?;
    let mut layers = Vec::new();
    for head in heads {
        let found = profile::published(refs.store(), &head.index).await;
        layers.push((head, found.map_err(|e| Failure::because("reading the profiles", &e))?));
    }
    let paths = converter::started_files(&layers)?;
    if paths.is_empty() {
        tracing::warn!(
            "no start of {name} was recorded in {} yet, so the list is empty: start it on a node whose [profile] record is \
             \"store\", and ask again when that has been quiet for a while",
            refs.store().url()
        );
    }
    match context.json {
        true => output::json(&json!({"paths": paths})),
        false => {
            paths.iter().for_each(output::line);
            Ok(())
        }
    }
}

/// Of all layer files: none is in a stack twice.
fn bytes(heads: &[Head]) -> u64 {
    heads.iter().map(|head| head.index.file_len()).sum()
}

fn of_file(path: &Path) -> Result<Head, Failure> {
    read_head_file(path).map_err(|e| Failure::layer(path.display(), &e))
}

async fn of_stacks(refs: &Refs, name: &Name) -> Result<(Vec<Head>, Option<Vec<Head>>), Failure> {
    let Stacks { plain, collapsed } = match refs.resolve_stacks(name).await {
        Ok(stacks) => stacks,
        Err(error) => return Err(unresolved(refs, name, &error).await),
    };
    let heads = of_stack(refs, &plain).await?;
    Ok(match collapsed {
        Some(collapsed) => (heads, Some(of_stack(refs, &collapsed).await?)),
        None => (heads, None),
    })
}

async fn of_stack(refs: &Refs, stack: &Stack) -> Result<Vec<Head>, Failure> {
    let mut heads = Vec::new();
    for layer in stack {
        heads.push(of_layer(refs, layer).await?);
    }
    Ok(heads)
}

async fn of_layer(refs: &Refs, layer: &StackEntry) -> Result<Head, Failure> {
    let length = (layer.head > 0).then_some(layer.head);
    let head = read_head(refs.store().as_ref(), &layer_key(&layer.layer), Some(&layer.layer), length).await;
    head.map_err(|e| Failure::layer(format!("layer {}", layer.layer), &e))
}

fn as_json(head: &Head, arguments: &Inspect) -> Result<serde_json::Value, Failure> {
    let index = &head.index;
    let mut value = json!({
        "layer": index.id().to_string(), "flags": flags(head), "generation": index.generation(),
        "head_bytes": index.head_len(), "bytes": index.file_len(), "metadata_bytes": index.metadata_len(),
        "data_bytes": index.data_len(), "chunks": index.chunk_count(),
    });
    if arguments.chunks {
        let chunks = index.chunks().map(|c| {
            json!({"number": c.chunk, "data_offset": c.data_start, "data_bytes": c.entry.data_len,
                "file_offset": c.file_offset, "bytes": c.entry.stored_len, "blake3": hex(&c.entry.hash)})
        });
        value["chunk_table"] = chunks.collect();
    }
    if arguments.tree {
        value["tree"] = tree::json(head)?.into();
    }
    Ok(value)
}

fn print(head: &Head, arguments: &Inspect) -> Result<(), Failure> {
    let index = &head.index;
    output::line(format!(
        "{} {}: head {}, metadata {}, data {} in {}, generation {}{}",
        index.id(),
        output::bytes(index.file_len()),
        output::bytes(index.head_len()),
        output::bytes(index.metadata_len()),
        output::bytes(index.data_len()),
        output::count(index.chunk_count().into(), "chunk"),
        index.generation(),
        flags(head).iter().map(|f| format!(", {f}")).collect::<String>(),
    ));
    if arguments.chunks {
        for c in index.chunks() {
            let (entry, hash) = (c.entry, hex(&c.entry.hash));
            output::line(format!(
                "  {} @{} {} -> @{} {} {hash}",
                c.chunk, c.data_start, entry.data_len, c.file_offset, entry.stored_len
            ));
        }
    }
    if arguments.tree {
        output::line(tree::text(head)?.trim_end());
    }
    Ok(())
}

fn flags(head: &Head) -> Vec<&'static str> {
    let flags = head.index.flags();
    let names = [
        (Flags::SELF_CONTAINED, "self contained"),
        (Flags::ROOT_OPAQUE, "root opaque"),
        (Flags::NOT_PLAIN, "not plain"),
    ];
    names.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| name).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
