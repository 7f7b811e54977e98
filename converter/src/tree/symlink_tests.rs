//! Random layers with symbolic links against extraction to the merged tree.

use super::model_tests::{apply, differences, random};
use super::tests::upper;
use super::*;
use crate::model::Model;
use crate::tar::TreePath;
use erofs::Kind;
use std::collections::BTreeMap;

fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Every path but the root's, in order.
fn paths(merged: &Merged) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![(TreePath::default(), merged.root().unwrap())];
    while let Some((path, id)) = open.pop() {
        found.push(String::from_utf8(path.to_bytes()).unwrap());
        open.extend(merged.names(id).map(|name| (path.join(name), merged.child(id, name).unwrap())));
    }
    found.retain(|path| !path.is_empty());
    found.sort();
    found
}

/// A tree of directories, files and links, by path; extraction to it follows links inside the root, as unpackers of a
/// mounted tree do.
type Links = BTreeMap<String, Option<String>>;

/// Where the parent of a path is; `None` where the way does not end in a directory.
fn lead(model: &Links, path: &str) -> Option<String> {
    let (mut way, mut parts): (Vec<String>, Vec<String>) =
        (Vec::new(), path.split('/').rev().map(str::to_owned).collect());
    let name = parts.remove(0);
    let mut links = 0;
    while let Some(part) = parts.pop() {
        match part.as_str() {
            "" | "." => {}
            ".." => drop(way.pop()),
            _ => {
                way.push(part);
                match model.get(&way.join("/")) {
                    Some(Some(target)) if target.is_empty() => return None,
                    Some(Some(target)) => {
                        links += 1;
                        way.pop();
                        if target.starts_with('/') {
                            way.clear();
                        }
                        parts.extend(target.split('/').rev().map(str::to_owned));
                    }
                    _ => {}
                }
            }
        }
        if links > 40 {
            return None;
        }
    }
    way.push(name);
    Some(way.join("/"))
}

/// Extracts one entry; `None`: that is refused, or meets what an earlier entry of the layer (`made`) has another kind of
/// thing for under another spelling, or replaces a link: what that gives is told by tests of its own.
fn extract(model: &mut Links, made: &mut Links, entry: &str) -> Option<()> {
    let (path, thing) = match entry.split_once(" -> ") {
        Some((path, target)) => (path, Some(target.to_owned())),
        None => (entry.trim_end_matches('/'), (!entry.ends_with('/')).then(String::new)),
    };
    let path = lead(model, path)?;
    let odd = |(other, what): (&String, &Option<String>)| match other == &path {
        true => what.is_some() || thing.is_some(),
        false => (is_below(&path, other) && what.is_some()) || (is_below(other, &path) && thing.is_some()),
    };
    let replaced = matches!(model.get(&path), Some(Some(target)) if !target.is_empty());
    if made.iter().any(odd) || replaced {
        return None;
    }
    made.insert(path.clone(), thing.clone());
    for (at, _) in path.match_indices('/') {
        // Something that is no directory makes room for one, as where no link is on the way.
        model.entry(path[..at].to_owned()).and_modify(|there| *there = None).or_insert(None);
    }
    if thing.is_some() || model.get(&path).is_none_or(Option::is_some) {
        model.retain(|other, _| !is_below(other, &path));
        model.insert(path, thing);
    }
    Some(())
}

#[test]
fn random_layers_with_symlinks_show_what_extraction_over_the_tree_below_gives() {
    let mut random = random("symlinks");
    let (mut compared, mut through, mut judged) = (0, 0, 0);
    for round in 0..20_000 {
        let entry = |random: &mut dyn FnMut(usize) -> usize, links: usize| {
            let mut path = ["a", "b", "c"][random(3)].to_owned();
            for _ in 0..random(3) {
                path = format!("{path}/{}", ["a", "b", "c"][random(3)]);
            }
            let targets = ["a", "b", "/c", "../b", "a/b", ".", "b/../c", "../../a", "/b/c"];
            match random(10) {
                at if at < links => format!("{path} -> {}", targets[random(targets.len())]),
                0..7 => path,
                _ => format!("{path}/"),
            }
        };
        let lower: Vec<String> = (0..random(5) + 1).map(|_| entry(&mut random, 4)).collect();
        let mut layer: Vec<String> = (0..random(4) + 1).map(|_| entry(&mut random, 1)).collect();
        // Each path once, its spellings apart: what order means for the others is told elsewhere.
        layer.sort_by_key(|entry| entry.split(" -> ").next().map(str::len));
        let mut model = Links::new();
        let texts = |entries: &[String]| -> Option<Upper> {
            upper(&entries.iter().map(String::as_str).collect::<Vec<_>>()).ok()
        };
        let Some(Ok(settled)) = texts(&lower).map(|upper| upper.settle(&Merged::new())) else { continue };
        let mut merged = Merged::new();
        merged.overlay(&settled.tree, settled.root_opaque).unwrap();
        let mut below = Merged::new();
        below.overlay(&settled.tree, settled.root_opaque).unwrap();
        let mut open = vec![(TreePath::default(), merged.root().unwrap())];
        while let Some((path, id)) = open.pop() {
            let thing = match &merged.node(id).kind {
                Kind::Directory => None,
                Kind::Symlink(target) => Some(String::from_utf8(target.clone()).unwrap()),
                _ => Some(String::new()),
            };
            model.insert(String::from_utf8(path.to_bytes()).unwrap(), thing);
            open.extend(merged.names(id).map(|name| (path.join(name), merged.child(id, name).unwrap())));
        }
        model.remove("");
        let followed = layer.iter().any(|entry| {
            let path = entry.split(" -> ").next().unwrap().trim_end_matches('/');
            lead(&model, path).is_some_and(|led| led != path)
        });
        let Some(Ok(settled)) = texts(&layer).map(|upper| upper.settle(&merged)) else { continue };
        let mut made = Links::new();
        if layer.iter().try_for_each(|entry| extract(&mut model, &mut made, entry)).is_none() {
            continue;
        }
        assert!(settled.assumes.iter().all(|assumption| merged.holds(assumption)), "{round}: {layer:?} over {lower:?}");
        merged.overlay(&settled.tree, settled.root_opaque).unwrap();
        let found = paths(&merged);
        let wanted: Vec<String> = model.keys().cloned().collect();
        assert_eq!(found, wanted, "{round}: {layer:?} over {lower:?}");
        // The model sees it so too; in the lower layer, entries meet in ways that are told elsewhere.
        let mut judge = Model::default();
        if apply(&mut judge, &lower).is_ok() && differences(&below, &judge).is_empty() {
            apply(&mut judge, &layer).unwrap();
            assert_eq!(differences(&merged, &judge), [""; 0], "{round}: {layer:?} over {lower:?}");
            judged += 1;
        }
        (compared, through) = (compared + 1, through + usize::from(followed));
    }
    assert!(compared > 5000 && through > 500, "{compared} compared, {through} went through links");
    assert!(judged > 4000, "{judged} compared with the model");
}
