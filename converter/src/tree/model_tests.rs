//! Random layers against the plain reading of the specification: take away what whiteouts and opaque marks name from the
//! lower tree, then apply the entries in order.

use super::tests::upper;
use super::*;
use crate::tar::TreePath;
use erofs::Kind;
use std::collections::BTreeMap;

/// Path to owner, and whether it is a directory.
type Model = BTreeMap<String, (u32, bool)>;

fn is_below(path: &str, directory: &str) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

fn remove_below(model: &mut Model, directory: &str) {
    model.retain(|path, _| path == directory || !is_below(path, directory));
}

fn put(model: &mut Model, path: &str, owner: u32, directory: bool) {
    for (at, _) in path.match_indices('/') {
        if !matches!(model.get(&path[..at]), Some((_, true))) {
            model.insert(path[..at].to_owned(), (0, true));
        }
    }
    if !directory || !matches!(model.get(path), Some((_, true))) {
        remove_below(model, path);
    }
    model.insert(path.to_owned(), (owner, directory));
}

fn apply(model: &mut Model, layer: &[String]) {
    for entry in layer {
        let (directory, name) = entry.rsplit_once('/').unwrap_or(("", entry));
        if name == ".wh..wh..opq" {
            remove_below(model, directory);
        } else if let Some(hidden) = name.strip_prefix(".wh.") {
            let path = if directory.is_empty() { hidden.to_owned() } else { format!("{directory}/{hidden}") };
            remove_below(model, &path);
            model.remove(&path);
        }
    }
    for entry in layer.iter().filter(|entry| !entry.contains(".wh.")) {
        let (path, owner) = entry.split_once(':').unwrap();
        put(model, path.trim_end_matches('/'), owner.parse().unwrap(), path.ends_with('/'));
    }
}

fn shown(merged: &Merged) -> Model {
    let mut model = Model::new();
    let mut open = vec![(TreePath::default(), merged.root().unwrap())];
    while let Some((path, id)) = open.pop() {
        let node = merged.node(id);
        model.insert(String::from_utf8(path.to_bytes()).unwrap(), (node.attributes.uid, node.kind == Kind::Directory));
        open.extend(merged.names(id).map(|name| (path.join(name), merged.child(id, name).unwrap())));
    }
    model.remove("");
    model
}

pub(super) fn random_layer(random: &mut impl FnMut(usize) -> usize) -> Vec<String> {
    let paths = ["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "b/a/b", "a/b/a/b"];
    let entry = |random: &mut dyn FnMut(usize) -> usize| {
        let path = paths[random(paths.len())];
        let (directory, name) = path.rsplit_once('/').map_or((String::new(), path), |(d, n)| (format!("{d}/"), n));
        match random(6) {
            0 => format!("{directory}.wh.{name}"),
            1 if random(3) > 0 || directory.is_empty() => format!("{path}/.wh..wh..opq"),
            1 => format!("{directory}.wh..wh..opq"),
            2 | 3 => format!("{path}/:{}", random(5) + 1),
            _ => format!("{path}:{}", random(5) + 1),
        }
    };
    (0..random(7) + 1).map(|_| entry(random)).collect()
}

pub(super) fn random(seed: &str) -> impl FnMut(usize) -> usize + use<> {
    let mut bytes = blake3::Hasher::new().update(seed.as_bytes()).finalize_xof();
    move |below: usize| {
        let mut byte = [0; 2];
        bytes.fill(&mut byte);
        usize::from(u16::from_le_bytes(byte)) % below
    }
}

fn settle(layer: &[String], below: &Merged) -> Settled {
    let texts: Vec<&str> = layer.iter().map(String::as_str).collect();
    upper(&texts).unwrap().settle(below).unwrap()
}

#[test]
fn random_layers_show_what_the_specification_says() {
    let mut random = random("layers");
    for round in 0..3000 {
        let (mut model, mut merged, mut layers) = (Model::new(), Merged::new(), Vec::new());
        for _ in 0..4 {
            layers.push(random_layer(&mut random));
            let layer = layers.last().unwrap();
            apply(&mut model, layer);
            let settled = settle(layer, &merged);
            assert!(settled.assumes.iter().all(|assumption| merged.holds(assumption)), "{round}: {layers:?}");
            merged.overlay(&settled.tree, settled.root_opaque);
            assert_eq!(shown(&merged), model, "{round}: {layers:?}");
        }
    }
}

#[test]
fn a_layer_is_right_over_every_tree_where_its_assumptions_hold() {
    let mut random = random("again");
    let mut used = 0;
    for round in 0..5000 {
        let (layer, lower) = (random_layer(&mut random), random_layer(&mut random));
        let (mut model, mut here, mut there) = (Model::new(), Merged::new(), Merged::new());
        here.overlay(&settle(&random_layer(&mut random), &here).tree, false);
        there.overlay(&settle(&lower, &there).tree, false);
        let settled = settle(&layer, &here);
        if settled.assumes.iter().all(|assumption| there.holds(assumption)) {
            used += 1;
            there.overlay(&settled.tree, settled.root_opaque);
            apply(&mut model, &lower);
            apply(&mut model, &layer);
            assert_eq!(shown(&there), model, "{round}: {layer:?} over {lower:?}");
        }
    }
    assert!(used > 500, "{used} of 5000 layers were used again");
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
    let (mut compared, mut through) = (0, 0);
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
        merged.overlay(&settled.tree, settled.root_opaque);
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
        merged.overlay(&settled.tree, settled.root_opaque);
        let mut found: Vec<String> = shown(&merged).into_keys().collect();
        found.sort();
        let wanted: Vec<String> = model.keys().cloned().collect();
        assert_eq!(found, wanted, "{round}: {layer:?} over {lower:?}");
        (compared, through) = (compared + 1, through + usize::from(followed));
    }
    assert!(compared > 5000 && through > 500, "{compared} compared, {through} went through links");
}
