//! `lamina store ls`: names, or layers.

use super::super::Context;
use crate::args::StoreLs;
use crate::failure::Failure;
use crate::output;
use blobstore::refs::{ImageName, ManifestDoc, Name, Refs, Stack, TagName, layer_of};
use converter::media_type::LAYER_EROFS;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) async fn run(context: &Context, arguments: &StoreLs) -> Result<(), Failure> {
    let refs = context.refs()?;
    let wanted = |name: &str| arguments.prefix.as_deref().is_none_or(|prefix| begins(name, prefix));
    if arguments.revoked {
        return super::revoke::list(context, &refs, wanted).await;
    }
    if arguments.layers {
        return layers(context, &refs, wanted).await;
    }
    super::there(&refs).await?;
    let mut images = refs.images().await.map_err(failed)?;
    images.retain(|name| wanted(&Name::Image(name.clone()).to_string()));
    let mut tags = refs.tags().await.map_err(failed)?;
    tags.retain(|name| wanted(&Name::Tag(name.clone()).to_string()));
    if arguments.long {
        return long(context, &refs, images, tags).await;
    }
    if context.json {
        let images: Vec<String> = images.iter().map(ToString::to_string).collect();
        let tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
        return output::json(&json!({"images": images, "tags": tags}));
    }
    images.into_iter().for_each(|name| output::line(Name::Image(name)));
    tags.into_iter().for_each(|name| output::line(Name::Tag(name)));
    Ok(())
}

/// Whether a name begins so, in its long form or in its short one, with its kind or without; a kind alone has its colon.
fn begins(name: &str, prefix: &str) -> bool {
    let (kind, long) = name.split_once(':').unwrap_or(("", name));
    let (wanted, prefix) = match prefix.split_once(':').filter(|(wanted, _)| *wanted == kind) {
        Some((_, rest)) => (true, rest),
        None => (prefix.is_empty(), prefix),
    };
    let short = long.strip_prefix("docker.io/library/").filter(|_| kind == "image");
    (wanted && prefix.is_empty()) || long.starts_with(prefix) || short.is_some_and(|short| short.starts_with(prefix))
}

async fn layers(context: &Context, refs: &Refs, wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    super::there(refs).await?;
    let objects = refs.store().scan("layers/").await.map_err(|e| Failure::because("cannot list", &e))?;
    let layers = objects.iter().filter_map(|object| {
        let layer = layer_of(&object.key)?;
        Some((Name::Layer(layer).to_string(), layer, object.stat.size))
    });
    let layers: Vec<_> = layers.filter(|(name, ..)| wanted(name)).collect();
    if context.json {
        let layers: Vec<Value> =
            layers.iter().map(|(_, layer, size)| json!({"layer": layer.to_string(), "bytes": size})).collect();
        return output::json(&json!({ "layers": layers }));
    }
    layers.iter().for_each(|(name, _, size)| output::line(format!("{name}  {}", output::bytes(*size))));
    Ok(())
}

/// What a name stands for; a name that leads nowhere is told, and is no failure of the list.
async fn long(context: &Context, refs: &Refs, images: Vec<ImageName>, tags: Vec<TagName>) -> Result<(), Failure> {
    let (mut listed_images, mut listed_tags) = (Vec::new(), Vec::new());
    for name in images {
        let digest = refs.image(&name).await.map_err(failed)?;
        let manifests = match &digest {
            Some(digest) => refs.manifests_of(digest).await.map_err(failed)?,
            None => Vec::new(),
        };
        let digest = digest.map(|digest| digest.to_string()).unwrap_or_default();
        if context.json {
            let mut platforms = Vec::new();
            for manifest in &manifests {
                platforms.push(platform(manifest, ours(refs, manifest).await));
            }
            listed_images.push(json!({"name": name.to_string(), "digest": digest, "platforms": platforms}));
            continue;
        }
        let mut line = format!("{}  {digest}", Name::Image(name));
        for manifest in &manifests {
            let stack = manifest.stack().cloned().unwrap_or_default();
            let twice = manifests.iter().filter(|other| other.platform == manifest.platform).count() > 1;
            let ours = if twice { ours(refs, manifest).await } else { None };
            let whose = match ours {
                Some(true) => " (converted layers)",
                Some(false) => " (original)",
                None => "",
            };
            line += &format!("  {}{whose}: {}", manifest.platform, sum(&stack));
        }
        output::line(if manifests.is_empty() { line + "  not converted" } else { line });
    }
    for name in tags {
        let Some(tag) = refs.tag(&name).await.map_err(failed)? else { continue };
        if context.json {
            let layers = tag.stack.len();
            listed_tags.push(json!({"name": name.to_string(), "layers": layers, "bytes": bytes(&tag.stack)}));
        } else {
            output::line(format!("{}  {}", Name::Tag(name), sum(&tag.stack)));
        }
    }
    match context.json {
        true => output::json(&json!({"images": listed_images, "tags": listed_tags})),
        false => Ok(()),
    }
}

/// Whether the manifest is one that a push made beside the original, of converted layers; `None` where its document is damaged,
/// which `store fsck` tells.
async fn ours(refs: &Refs, manifest: &ManifestDoc) -> Option<bool> {
    let blob = refs.blob(&manifest.digest).await.ok()?;
    let document = blob.and_then(|blob| serde_json::from_slice::<Value>(&blob).ok()).unwrap_or_default();
    let layers = document["layers"].as_array().map_or(&[][..], Vec::as_slice);
    Some(layers.iter().any(|layer| layer["mediaType"] == LAYER_EROFS))
}

fn platform(manifest: &ManifestDoc, ours: Option<bool>) -> Value {
    let stack = manifest.stack().cloned().unwrap_or_default();
    let collapsed = manifest.stacks().and_then(|stacks| stacks.collapsed).map(|stack| stack.len());
    json!({
        "platform": manifest.platform.to_string(), "manifest": manifest.digest.to_string(), "layers": stack.len(),
        "bytes": bytes(&stack), "collapsed_layers": collapsed, "converted_layers": ours,
    })
}

fn bytes(stack: &Stack) -> u64 {
    let sizes: BTreeMap<_, _> = stack.layers().iter().map(|entry| (entry.layer, entry.size)).collect();
    sizes.values().sum()
}

fn sum(stack: &Stack) -> String {
    format!("{}, {}", output::count(stack.len() as u64, "layer"), output::bytes(bytes(stack)))
}

fn failed(error: blobstore::refs::Error) -> Failure {
    Failure::because("cannot list", &error)
}

#[cfg(test)]
mod tests {
    use super::begins;

    #[test]
    fn a_prefix_is_of_the_long_form_or_of_the_forms_that_other_commands_take() {
        for prefix in ["tag:toolkit/", "toolkit", "toolkit/t", "toolkit/tools:1"] {
            assert!(begins("tag:toolkit/tools:1", prefix), "{prefix}");
        }
        for prefix in ["image:docker.io/", "docker.io", "alp", "alpine:3", "image:alp", "image:"] {
            assert!(begins("image:docker.io/library/alpine:3", prefix), "{prefix}");
        }
        for prefix in ["tools", "image:toolkit", "library"] {
            assert!(!begins("tag:toolkit/tools:1", prefix), "{prefix}");
        }
        assert!(begins("layer:0123", "01") && begins("layer:0123", ""));
        assert!(!begins("image:docker.io/library/other", "t") && !begins("tag:toolkit/tools:1", "image:"));
    }
}
