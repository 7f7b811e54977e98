//! Random stacks: with some consecutive layers made one, they show the same.

use super::model_tests::{random, random_layer};
use super::tests::{list, upper};
use super::*;
use crate::tar::TreePath;
use erofs::{Kind, Tree};
use std::collections::HashMap;

/// Layers with hard links, and an owner that tells each entry from all others.
fn random_stack(random: &mut impl FnMut(usize) -> usize, count: usize) -> Vec<Settled> {
    let (mut merged, mut layers, mut owner) = (Merged::new(), Vec::new(), 0);
    while layers.len() < count {
        let mut entries = random_layer(random);
        for entry in entries.iter_mut().filter(|entry| entry.contains(':')) {
            owner += 1;
            *entry = format!("{}:{owner}", entry.split(':').next().unwrap());
        }
        if random(2) == 0 {
            let paths = ["a", "l", "a/l", "b/a", "b/l", "a/a/l"];
            entries.push(format!("{} = {}", paths[random(6)], paths[random(6)]));
        }
        let texts: Vec<&str> = entries.iter().map(String::as_str).collect();
        // Not every hard link has a target; such a layer is refused.
        let Ok(settled) = upper(&texts).and_then(|upper| upper.settle(&merged)) else { continue };
        merged.overlay(&settled.tree, settled.root_opaque).unwrap();
        layers.push(settled);
    }
    layers
}

fn merged<'a>(layers: impl IntoIterator<Item = &'a Settled>) -> Merged {
    let mut merged = Merged::new();
    layers.into_iter().for_each(|layer| merged.overlay(&layer.tree, layer.root_opaque).unwrap());
    merged
}

/// Every name with its attributes, kind, and the first name of the same node.
fn shown(merged: &Merged) -> Vec<(TreePath, String)> {
    let mut first: HashMap<NodeId, TreePath> = HashMap::new();
    let (mut found, mut open) = (Vec::new(), vec![(TreePath::default(), merged.root().unwrap())]);
    while let Some((path, id)) = open.pop() {
        let node = merged.node(id);
        let same = first.entry(id).or_insert_with(|| path.clone());
        found.push((path.clone(), format!("{:?} {:?} {same}", node.attributes, node.kind)));
        let names: Vec<_> = merged.names(id).collect();
        open.extend(names.into_iter().rev().map(|name| (path.join(name), merged.child(id, name).unwrap())));
    }
    found
}

/// Whether each mark of a layer hides something.
fn needs_its_marks(tree: &Tree, below: &Merged) -> bool {
    tree.walk().all(|visit| {
        let lower = below.at(&visit.path);
        match &tree.node(visit.node).kind {
            Kind::Char(0, 0) => lower.is_some(),
            Kind::Directory if tree.node(visit.node).attributes.xattrs.contains_key(OPAQUE) => {
                lower.is_some_and(|id| below.names(id).next().is_some())
            }
            _ => true,
        }
    })
}

#[test]
fn a_stack_with_some_layers_made_one_shows_the_same_and_so_does_all_above_it() {
    let mut random = random("collapse");
    for round in 0..1000 {
        let layers = random_stack(&mut random, 6);
        let (mut start, end) = (random(5), 6 - random(3));
        if let Some(opaque) = layers[..end].iter().rposition(|layer| layer.root_opaque) {
            start = start.max(opaque);
        }
        if start + 1 >= end {
            continue;
        }
        let root_opaque = layers[start].root_opaque;
        let below = if root_opaque { Merged::new() } else { merged(&layers[..start]) };
        let one = Settled { root_opaque, ..collapse(&below, &merged(&layers[..end]), start).unwrap() };
        assert!(needs_its_marks(&one.tree, &below), "{round}: {:?}", list(&one.tree));
        for top in end..=6 {
            let collapsed = merged(layers[..start].iter().chain([&one]).chain(&layers[end..top]));
            let texts = || layers.iter().map(|layer| list(&layer.tree)).collect::<Vec<_>>();
            assert_eq!(shown(&collapsed), shown(&merged(&layers[..top])), "{round}: {start}..{end} of {:?}", texts());
        }
    }
}

fn one(below: &[&[&str]], layers: &[&[&str]]) -> Vec<String> {
    let mut stack = Vec::new();
    for entries in below.iter().chain(layers) {
        let settled = upper(entries).unwrap().settle(&merged(&stack)).unwrap();
        stack.push(settled);
    }
    list(&collapse(&merged(&stack[..below.len()]), &merged(&stack), below.len()).unwrap().tree)
}

#[test]
fn whiteouts_stay_where_they_hide_what_remains_below() {
    assert_eq!(one(&[&["a", "b"]], &[&["c", ".wh.a"], &[".wh.c", "d"]]), ["-a", "d"]);
    assert_eq!(one(&[&["d/a", "d/b"]], &[&[".wh.d"], &["d/c"]]), ["d/!", "d/c"]);
    assert_eq!(one(&[&["d/a", "d/b"]], &[&["d/c"], &["d/.wh.a"]]), ["d/", "-d/a", "d/c"]);
    assert_eq!(one(&[], &[&["a", "b"], &[".wh.a"]]), ["b"]);
}

#[test]
fn a_directory_of_which_nothing_below_shows_through_is_opaque() {
    assert_eq!(one(&[&["d/a"]], &[&["d/.wh..wh..opq", "d/b"], &["d/c"]]), ["d/!", "d/b", "d/c"]);
    assert_eq!(one(&[&["d/a"]], &[&["d/b"], &["d/.wh.a"]]), ["d/!", "d/b"]);
    assert_eq!(one(&[&["d/"]], &[&["d/b"], &["d/.wh..wh..opq", "d/c"]]), ["d/", "d/c"], "nothing to hide");
    assert_eq!(one(&[&["d/a"]], &[&["d"], &["d/b"]]), ["d/!", "d/b"], "a file was in between");
}

#[test]
fn hard_links_of_one_layer_stay_and_those_that_overlayfs_breaks_are_broken() {
    let layers: &[&[&str]] = &[&["a:1", "b = a", "c = a"], &["b:2"]];
    let mut stack: Vec<Settled> = Vec::new();
    for entries in layers {
        let settled = upper(entries).unwrap().settle(&merged(&stack)).unwrap();
        stack.push(settled);
    }
    let tree = collapse(&Merged::new(), &merged(&stack), 0).unwrap().tree;
    let node = |name: &[u8]| tree.lookup(Tree::ROOT, name).unwrap();
    assert_eq!(node(b"a"), node(b"c"));
    assert_ne!(node(b"a"), node(b"b"));
}
