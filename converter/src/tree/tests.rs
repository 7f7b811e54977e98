//! Layers over trees; both are written as short texts, see `upper`.

use super::assume::Assumes;
use super::*;
use crate::error::Result;
use crate::limits::{IMAGE, Totals};
use crate::tar::{Entry, Kind as TarKind, Shape, TreePath};
use erofs::{Attributes, Kind, Tree};

/// Entries as text: `d/` a directory (its owner after `:`), `s -> t` a symlink, `h = t` a hard link, `c0` after `!` a
/// device 0:0, anything else a file (its owner after `:`); names make whiteouts and opaque marks.
pub(super) fn upper(entries: &[&str]) -> Result<Upper> {
    let mut upper = Upper::new();
    for (number, text) in (0..).zip(entries) {
        let (text, uid) = text.split_once(':').unwrap_or((text, "0"));
        let attributes = Attributes { mode: 0o700, uid: uid.parse().unwrap(), mtime: 9, ..Attributes::default() };
        let file = TarKind::File(Shape { size: 0, map: None });
        let (name, kind) = if let Some((name, target)) = text.split_once(" -> ") {
            (name, TarKind::Symlink(target.into()))
        } else if let Some((name, target)) = text.split_once(" = ") {
            (name, TarKind::HardLink(TreePath::clean(target.as_bytes())?))
        } else if let Some(name) = text.strip_prefix('!') {
            (name, TarKind::Char(0, 0))
        } else {
            (text, if text.ends_with('/') { TarKind::Directory } else { file })
        };
        let path = TreePath::clean(name.as_bytes())?;
        match Meaning::of(&path)? {
            Meaning::Entry => upper.add(Entry { path, kind, attributes }, Some(number))?,
            Meaning::Whiteout(path) => upper.whiteout(&path)?,
            Meaning::Opaque(path) => upper.opaque(&path)?,
            Meaning::Ignored => {}
        }
    }
    Ok(upper)
}

fn below(layers: &[&[&str]]) -> Merged {
    let mut merged = Merged::new();
    for layer in layers {
        let settled = upper(layer).unwrap().settle(&merged).unwrap();
        merged.overlay(&settled.tree, settled.root_opaque).unwrap();
    }
    merged
}

/// A tree as text: `d/` (with its owner if it is not 0, `!` if opaque), `-name` a whiteout, `s -> t`, `f` (with owner).
pub(super) fn list(tree: &Tree) -> Vec<String> {
    let line = |visit: erofs::Visit| {
        let node = tree.node(visit.node);
        let path = String::from_utf8(visit.path).unwrap();
        let owner = if node.attributes.uid == 0 { String::new() } else { format!(":{}", node.attributes.uid) };
        match &node.kind {
            Kind::Directory if node.attributes.xattrs.contains_key(OPAQUE) => format!("{path}/!{owner}"),
            Kind::Directory => format!("{path}/{owner}"),
            Kind::Char(0, 0) => format!("-{path}"),
            Kind::Symlink(target) => format!("{path} -> {}", String::from_utf8_lossy(target)),
            _ => format!("{path}{owner}"),
        }
    };
    tree.walk().skip(1).map(line).collect()
}

fn over(layers: &[&[&str]], top: &[&str]) -> Vec<String> {
    list(&upper(top).unwrap().settle(&below(layers)).unwrap().tree)
}

fn refusal(layers: &[&[&str]], top: &[&str]) -> String {
    let error = upper(top).and_then(|upper| upper.settle(&below(layers))).unwrap_err();
    assert!(error.is_refusal());
    error.to_string()
}

#[test]
fn whiteouts_are_kept_only_where_they_hide_something() {
    assert_eq!(over(&[&["a", "d/x"]], &[".wh.a", ".wh.b", "d/.wh.x", "no/such/.wh.x"]), ["-a", "d/", "-d/x"]);
    assert_eq!(over(&[], &[".wh.a", "d/.wh.x"]), [""; 0]);
    assert_eq!(over(&[&["t"]], &["t/.wh.f"]), [""; 0]);
    assert_eq!(over(&[&["t/f"]], &[".wh.t", "t/.wh.f"]), ["-t"]);
    assert_eq!(over(&[&["t/f"]], &["t", "t/.wh.f"]), ["t"]);
    assert_eq!(over(&[&["t/f"]], &["t/.wh.f", "t"]), ["t"]);
}

#[test]
fn what_a_layer_adds_outlives_its_own_whiteout_in_any_order() {
    assert_eq!(over(&[&["f"]], &["f:5", ".wh.f"]), ["f:5"]);
    assert_eq!(over(&[&["f"]], &[".wh.f", "f:5"]), ["f:5"]);
    for top in [[".wh.d", "d/", "d/new"], ["d/", "d/new", ".wh.d"]] {
        assert_eq!(over(&[&["d/old"]], &top), ["d/!", "d/new"]);
    }
    assert_eq!(over(&[&["d/:7", "d/old"]], &["d/new", ".wh.d"]), ["d/!", "d/new"]);
}

#[test]
fn opaque_marks_hide_lower_names_whatever_their_order() {
    for top in [["d/", "d/new", "d/.wh..wh..opq"], ["d/.wh..wh..opq", "d/new", "d/"]] {
        assert_eq!(over(&[&["d/old"]], &top), ["d/!", "d/new"]);
        assert_eq!(over(&[&["e"]], &top), ["d/", "d/new"]);
    }
    assert_eq!(over(&[&["m/:3", "m/n/:4", "m/n/x"]], &["m/n/.wh..wh..opq", "g/.wh..wh..opq"]), ["m/:3", "m/n/!:4"]);
    assert_eq!(over(&[&["t"]], &["t/.wh..wh..opq"]), [""; 0]);
    assert_eq!(over(&[&["d/x"]], &["d/.wh..wh.opq"]), [""; 0]);
}

#[test]
fn an_opaque_root_hides_all_and_keeps_its_attributes() {
    let below = below(&[&["./:7", "old"]]);
    let settled = upper(&[".wh..wh..opq", "new", ".wh.old"]).unwrap().settle(&below).unwrap();
    assert!(settled.root_opaque);
    assert_eq!(list(&settled.tree), ["new"]);
    assert_eq!(settled.tree.node(Tree::ROOT).attributes.uid, 7);
    let mut merged = below;
    merged.overlay(&settled.tree, true).unwrap();
    assert!(merged.at(b"old").is_none());
}

#[test]
fn implied_directories_take_lower_attributes_but_not_the_time() {
    let below = below(&[&["./:6", "d/:7"]]);
    let settled = upper(&["d/f", "e/f"]).unwrap().settle(&below).unwrap();
    assert_eq!(list(&settled.tree), ["d/:7", "d/f", "e/", "e/f"]);
    let d = settled.tree.lookup(Tree::ROOT, b"d").unwrap();
    let e = settled.tree.lookup(Tree::ROOT, b"e").unwrap();
    assert_eq!(settled.tree.node(d).attributes, Attributes { mode: 0o700, uid: 7, ..Attributes::default() });
    assert_eq!(settled.tree.node(e).attributes, Attributes { mode: 0o755, ..Attributes::default() });
    assert_eq!(settled.tree.node(Tree::ROOT).attributes.uid, 6);
}

#[test]
fn the_last_entry_for_a_path_wins() {
    assert_eq!(over(&[], &["x", "x/", "x/c", "y/", "y/c", "y:3"]), ["x/", "x/c", "y:3"]);
    assert_eq!(over(&[], &["s -> t", "s:2", "f:1", "f:2"]), ["f:2", "s:2"]);
    assert_eq!(over(&[], &["d/:1", "d/c", "d/:2"]), ["d/:2", "d/c"]);
    assert_eq!(over(&[&["x/old"]], &["x", "x/"]), ["x/!"]);
    assert_eq!(over(&[&["f"]], &["f/in/deep"]), ["f/", "f/in/", "f/in/deep"]);
    assert_eq!(over(&[], &["f", "f/in"]), ["f/", "f/in"]);
}

#[test]
fn what_stands_below_a_symlink_belongs_where_it_leads() {
    // Of a layer below, relative, absolute, over the root's edge, missing, and over several links.
    let usr: &[&str] = &["usr/:3", "usr/lib/:4", "lib -> usr/lib"];
    assert_eq!(over(&[usr], &["lib/x/y"]), ["usr/:3", "usr/lib/:4", "usr/lib/x/", "usr/lib/x/y"]);
    assert_eq!(over(&[&["d/l -> /e", "e/:5"]], &["d/l/f"]), ["e/:5", "e/f"]);
    assert_eq!(over(&[&["l -> ../../e"]], &["l/f"]), ["e/", "e/f"]);
    assert_eq!(over(&[&["a -> b", "b -> c/./d/../e"]], &["a/f"]), ["c/", "c/e/", "c/e/f"]);
    assert_eq!(over(&[&["l -> d", "d/m -> ../e"]], &["l/m/f"]), ["e/", "e/f"]);
    // Of the layer itself.
    assert_eq!(over(&[], &["esc -> ../tmp", "esc/f"]), ["esc -> ../tmp", "tmp/", "tmp/f"]);
    assert_eq!(over(&[&["lib -> usr"]], &["l -> lib", "l/f"]), ["l -> lib", "usr/", "usr/f"]);
    assert_eq!(over(&[], &["l -> .", "l/l/l/f"]), ["f", "l -> ."]);
}

#[test]
fn two_ways_to_one_path_are_one_path() {
    let usr: &[&str] = &["usr/lib/", "lib -> usr/lib"];
    assert_eq!(
        over(&[usr], &["lib/f:1", "usr/lib/f:2", "usr/lib/g:1", "lib/g:2"])[2..],
        ["usr/lib/f:2", "usr/lib/g:2"]
    );
    assert_eq!(
        over(&[usr], &["usr/:1", "usr/lib/:2", "usr/lib/d/:3", "lib/d/f"])[2..],
        ["usr/lib/d/:3", "usr/lib/d/f"]
    );
    assert_eq!(over(&[usr], &["usr/lib/d/f", "lib/d:2"])[2..], ["usr/lib/d:2"]);
    assert_eq!(over(&[usr], &["usr/lib/m -> n", "lib/m/f"])[2..], ["usr/lib/m -> n", "usr/lib/n/", "usr/lib/n/f"]);
}

#[test]
fn a_layer_that_makes_the_symlink_a_directory_or_hides_it_does_not_go_through() {
    let usr: &[&str] = &["lib -> usr/lib", "usr/lib/f"];
    for top in [["lib/", "lib/f"], ["lib/f", "lib/"]] {
        assert_eq!(over(&[usr], &top), ["lib/", "lib/f"]);
    }
    for top in [[".wh.lib", "lib/f"], ["lib/f", ".wh.lib"]] {
        assert_eq!(over(&[usr], &top), ["lib/", "lib/f"]);
    }
    assert_eq!(over(&[usr], &["lib/.wh..wh..opq", "lib/"]), ["lib/"]);
}

#[test]
fn marks_below_a_symlink_act_where_it_leads() {
    let usr: &[&str] = &["lib -> usr/lib", "usr/lib/f", "usr/lib/g"];
    assert_eq!(over(&[usr], &["lib/.wh.f", "lib/.wh.no"]), ["usr/", "usr/lib/", "-usr/lib/f"]);
    assert_eq!(over(&[usr], &["lib/.wh..wh..opq", "lib/new"]), ["usr/", "usr/lib/!", "usr/lib/new"]);
    assert_eq!(over(&[usr], &["l -> lib", "l/.wh.g"]), ["l -> lib", "usr/", "usr/lib/", "-usr/lib/g"]);
    assert_eq!(over(&[usr], &[".wh.lib", "lib/.wh.f"]), ["-lib"]);
    assert_eq!(over(&[usr], &["lib:1", "lib/.wh.f"]), ["lib:1"]);
}

#[test]
fn hard_links_find_their_targets_through_symlinks() {
    let usr: &[&str] = &["lib -> usr/lib", "usr/lib/f:8"];
    assert_eq!(over(&[usr], &["g = lib/f"]), ["g:8", "usr/", "usr/lib/", "usr/lib/f:8"]);
    assert_eq!(over(&[usr], &["lib/h = lib/f"]), ["usr/", "usr/lib/", "usr/lib/f:8", "usr/lib/h:8"]);
    assert_eq!(over(&[], &["l -> d", "d/f:3", "g = l/f"]), ["d/", "d/f:3", "g:3", "l -> d"]);
    assert_eq!(over(&[&["s -> t"]], &["g = s"]), ["g -> t", "s -> t"]);
}

#[test]
fn ways_that_do_not_end_in_a_directory_are_refused() {
    assert!(refusal(&[&["a -> b", "b -> a"]], &["a/f"]).contains("symlinks on its way"));
    assert!(refusal(&[], &["a -> a", "a/f"]).starts_with("entry 'a': more than 40 symlinks"));
    assert!(refusal(&[&["l -> f", "f"]], &["l/x"]).contains("'f', which is no directory"));
    assert!(refusal(&[], &["l -> d", "l/f", "l/"]).contains("replaces a symlink"));
    let long = "n".repeat(256);
    assert!(refusal(&[], &[&format!("l -> {long}"), "l/f"]).contains("too long"));
    let chain: Vec<String> = (0..60).map(|at| format!("l{at} -> l{}", at + 1)).collect();
    let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
    assert!(refusal(&[&chain], &["l0/f"]).contains("symlinks on its way"));
    assert_eq!(over(&[&chain], &["l25/f"]), ["l60/", "l60/f"]);
}

#[test]
fn a_layer_that_went_through_a_symlink_assumes_it() {
    let usr: &[&str] = &["usr/lib/f", "lib -> usr/lib"];
    for top in [&["lib/x"][..], &["lib/.wh.f"], &["lib/.wh.no"], &["g = lib/f"]] {
        let settled = upper(top).unwrap().settle(&below(&[usr])).unwrap();
        let holds = |layers: &[&[&str]]| {
            let merged = below(layers);
            let mut there = settled.assumes.iter().filter(|assumption| assumption.found != Found::Copied);
            there.all(|assumption| merged.holds(assumption))
        };
        assert!(holds(&[usr]), "{top:?}");
        assert!(!holds(&[&["usr/lib/f", "lib -> usr"]]), "{top:?}");
        assert!(!holds(&[&["usr/lib/f", "lib/f"]]), "{top:?}");
        assert!(!holds(&[&["usr/lib/f"]]), "{top:?}");
    }
    // What was no link there is one here.
    for top in [&["d/x"][..], &["d/.wh.x"], &["d/.wh..wh..opq"]] {
        let settled = upper(top).unwrap().settle(&below(&[&["d"]])).unwrap();
        assert!(settled.assumes.iter().all(|assumption| below(&[&["d"]]).holds(assumption)), "{top:?}");
        assert!(!settled.assumes.iter().all(|assumption| below(&[&["d -> e"]]).holds(assumption)), "{top:?}");
    }
}

#[test]
fn hard_links_share_a_node_also_to_a_later_target() {
    for entries in [["t", "a/l = t"], ["a/l = t", "t"]] {
        let tree = upper(&entries).unwrap().settle(&Merged::new()).unwrap().tree;
        let a = tree.lookup(Tree::ROOT, b"a").unwrap();
        assert_eq!(tree.lookup(a, b"l"), tree.lookup(Tree::ROOT, b"t"));
    }
    assert_eq!(over(&[], &["f:3", "f = f"]), ["f:3"]);
    assert_eq!(over(&[], &["t:1", "h = t", "h:2"]), ["h:2", "t:1"]);
    assert_eq!(over(&[], &["a = b", "b = c", "c:4"]), ["a:4", "b:4", "c:4"]);
}

#[test]
fn a_hard_link_to_a_lower_file_brings_both_names_into_the_layer() {
    let below = below(&[&["d/:7", "d/f:8", "other = d/f"]]);
    let settled = upper(&["g = d/f"]).unwrap().settle(&below).unwrap();
    assert_eq!(list(&settled.tree), ["d/:7", "d/f:8", "g:8"]);
    let d = settled.tree.lookup(Tree::ROOT, b"d").unwrap();
    assert_eq!(settled.tree.lookup(d, b"f"), settled.tree.lookup(Tree::ROOT, b"g"));
    assert!(matches!(settled.copies[..], [(_, Placed { layer: 0, .. })]));
    assert!(settled.assumes.iter().any(|a| a.found == Found::Copied));
}

#[test]
fn hard_links_to_nothing_or_to_directories_are_refused() {
    assert!(refusal(&[], &["d/g = no/such"]).starts_with("entry 'd/g': hard link to 'no/such'"));
    assert!(refusal(&[&["d/"]], &["g = d"]).contains("directory 'd'"));
    assert!(refusal(&[], &["d/", "g = d"]).contains("directory 'd'"));
    assert!(refusal(&[], &["g = ."]).contains("directory"));
    assert!(refusal(&[], &["a = b", "b = a"]).contains("not in the image"));
    assert!(refusal(&[&["f"]], &["g = f", ".wh.f"]).contains("not in the image"));
}

#[test]
fn devices_0_0_are_whiteouts() {
    assert_eq!(over(&[], &["!x/d", "x/e = x/d", "x/f"]), ["x/", "x/f"]);
    assert_eq!(over(&[&["x/d", "x/f"]], &["!x/d"]), ["x/", "-x/d"]);
}

#[test]
fn odd_whiteout_names_are_refused_and_aufs_data_is_ignored() {
    for name in [".wh.", "d/.wh..", "d/.wh...", "d/.wh.x/y"] {
        assert!(upper(&[name]).is_err(), "{name}");
    }
    assert_eq!(over(&[], &[".wh..wh.plnk/1.2", ".wh..wh.aufs", "a"]), ["a"]);
}

#[test]
fn assumptions_hold_where_the_tree_below_says_the_same() {
    let base: &[&str] = &["d/:7", "d/old", "w"];
    let settled = upper(&["d/new", ".wh.w", ".wh.n", "q/.wh..wh..opq"]).unwrap().settle(&below(&[base])).unwrap();
    let holds = |layers: &[&[&str]]| {
        let merged = below(layers);
        settled.assumes.iter().all(|assumption| merged.holds(assumption))
    };
    assert!(holds(&[base]));
    assert!(holds(&[base, &["more", "d/old"]]));
    assert!(!holds(&[&["d/:8", "w"]]));
    assert!(!holds(&[&["d/:7"]]));
    assert!(!holds(&[base, &["n"]]));
    assert!(!holds(&[base, &["q/x"]]));
    assert!(!holds(&[base, &["./:1"]]));
}

#[test]
fn a_layer_with_an_entry_for_each_path_assumes_nothing() {
    let settled = upper(&["./", "d/", "d/f"]).unwrap().settle(&below(&[&["x"]])).unwrap();
    assert_eq!(settled.assumes, []);
}

#[test]
fn a_layer_for_others_keeps_its_marks_and_any_other_says_that_they_hide_nothing() {
    let entries = [".wh.w", "d/.wh.x", "d/y", "e/.wh..wh..opq", ".wh.f", "f/", "f/g"];
    let mut kept = upper(&entries).unwrap();
    kept.keep_marks();
    let settled = kept.settle(&Merged::new()).unwrap();
    assert_eq!(list(&settled.tree), ["d/", "-d/x", "d/y", "e/!", "f/!", "f/g", "-w"]);
    assert!(settled.marks && settled.warnings.is_empty());
    let settled = upper(&entries).unwrap().settle(&Merged::new()).unwrap();
    assert_eq!(list(&settled.tree), ["d/", "d/y", "f/", "f/g"]);
    assert!(!settled.marks && settled.warnings[0].contains("hide nothing"));
}

#[test]
fn the_list_of_what_a_layer_takes_from_below_is_bounded() {
    let deep = |top: usize, last: &str| format!("{top}/{}{last}", "d/".repeat(2000));
    let lower: Vec<String> = (0..4).map(|top| deep(top, "")).collect();
    let layer: Vec<String> = (0..4).map(|top| deep(top, "f")).collect();
    let texts = |entries: &[String]| upper(&entries.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let mut merged = Merged::new();
    merged.overlay(&texts(&lower).settle(&merged).unwrap().tree, false).unwrap();
    let settle = |most| texts(&layer).settle_within(&merged, &IMAGE, most);
    // Half of each path, once for each directory on it; and what a list of any paths takes.
    assert_eq!(settle(4 * 2001 * (2002 + 128)).unwrap().assumes.len(), 4 * 2001 + 1);
    let error = settle(4 * 2001 * 2002).unwrap_err().to_string();
    assert!(error.contains("takes too much from the tree below"), "{error}");
    // What is not there is said once, not for each directory in it.
    assert_eq!(texts(&layer).settle(&Merged::new()).unwrap().assumes.len(), 1 + 4);
}

#[test]
fn directories_that_only_targets_of_links_name_count_as_paths() {
    let deep = |at: usize| format!("l{at} -> {at}/{}", "d/".repeat(2000));
    let entries: Vec<String> = (0..3).flat_map(|at| [deep(at), format!("l{at}/x")]).collect();
    let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
    let follow = |most| {
        let mut layer = upper(&entries).unwrap();
        layer.follow_links(&Merged::new(), &mut Assumes::new(1 << 20), most).map(|()| layer.paths())
    };
    assert_eq!(follow(10_000).unwrap(), 1 + 3 * (2 + 2001));
    let refused = follow(3000).unwrap_err().to_string();
    assert!(refused.starts_with("entry 'l1': the layer is too large: more than 3000 paths"), "{refused}");
}

#[test]
fn names_of_all_layers_are_bounded_together_and_each_of_a_file_counts() {
    let below = below(&[&["d/f", "d/g = d/f"], &["d/h = d/f", "d/i = d/f"], &["-x", "d/", "d/.wh.g"]]);
    // The root, `d`, and of the second layer the file that it copied.
    assert_eq!(below.held(), Totals { names: 2 + 3 + 3, text: 0 });
    let settle = |names| upper(&["e", "d/j"]).unwrap().settle_within(&below, &Totals { names, text: 0 }, usize::MAX);
    assert!(settle(8 + 4).is_ok());
    let error = settle(8 + 3).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("more than 11 names in all its layers"), "{error}");
}

#[test]
fn a_layer_that_an_image_has_again_and_again_counts_each_time() {
    let layer = upper(&["a", "b", "c"]).unwrap().settle(&Merged::new()).unwrap().tree;
    let (mut merged, most) = (Merged::new(), Totals { names: 10, text: 0 });
    for _ in 0..3 {
        merged.overlay_within(&layer, false, &most).unwrap();
    }
    let error = merged.overlay_within(&layer, false, &most).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("more than 10 names"), "{error}");
}

#[test]
fn targets_and_attributes_of_all_layers_are_bounded_together() {
    let with = |paths: &[&str], from: &Merged, text| {
        let mut upper = upper(&["l -> 12345"]).unwrap();
        for path in paths {
            let (path, kind) = (TreePath::clean(path.as_bytes()).unwrap(), TarKind::Directory);
            let xattrs = [(b"user.a".to_vec(), b"1234".to_vec())].into_iter().collect();
            upper.add(Entry { path, kind, attributes: Attributes { xattrs, ..Attributes::default() } }, None).unwrap();
        }
        upper.settle_within(from, &Totals { names: 100, text }, usize::MAX)
    };
    let mut merged = Merged::new();
    for layer in 1..=3 {
        // A directory counts again.
        let settled = with(&["", "d", "d/d"], &merged, layer * 35).unwrap();
        merged.overlay(&settled.tree, false).unwrap();
        assert_eq!(merged.held().text, layer * 35);
    }
    let error = with(&["d"], &merged, 3 * 35 + 14).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("attributes in all its layers"), "{error}");
    // What nothing shows through of is forgotten; the root has the attributes that it had.
    merged.overlay(&with(&["d"], &merged, 1000).unwrap().tree, true).unwrap();
    assert_eq!(merged.held(), Totals { names: 3, text: 25 });
}

#[test]
fn names_are_put_in_order_once_however_many_passes_links_take() {
    let many = (0..2000).map(|at| format!("many/{}", at * 7919 % 2000));
    // Each link stands below the one before it, and is moved where that leads before it is followed.
    let nested = |depth: usize| (0..=depth).map(|at| format!("l{at}")).collect::<Vec<_>>().join("/");
    let links = (0..30).map(|depth| format!("{} -> /d{depth}", nested(depth)));
    let entries: Vec<String> = many.chain(links).chain([nested(29) + "/x", "h = many/1".to_owned()]).collect();
    let mut layer = upper(&entries.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let below = Merged::new();
    layer.follow_links(&below, &mut Assumes::new(1 << 20), 10_000).unwrap();
    layer.resolve_links(&below, &mut Assumes::new(1 << 20), 10_000).unwrap();
    layer.downwards(&below);
    assert!(layer.find(&TreePath::clean(b"d29/x").unwrap()).is_some());
    assert!((2000..6000).contains(&layer.slots.ordered), "{}", layer.slots.ordered);
}

#[test]
fn the_paths_of_a_layers_directories_are_summed() {
    let mut layer = upper(&["a/bc/f", "a/g", "h"]).unwrap();
    let visits = layer.downwards(&Merged::new());
    assert_eq!(layer.directory_bytes(&visits), 1 + 4);
}

#[test]
fn copies_of_lower_files_count_as_paths() {
    let below = below(&[&["d/d/d/f"]]);
    let resolve = |most| upper(&["h = d/d/d/f"]).unwrap().resolve_links(&below, &mut Assumes::new(1 << 20), most);
    assert!(resolve(6).is_ok());
    assert!(resolve(5).unwrap_err().to_string().starts_with("entry 'h': the layer is too large: more than 5 paths"));
}

#[test]
fn what_was_found_is_listed_once_however_many_ways_lead_over_it() {
    let below = below(&[&["lib -> usr/lib", "usr/bin -> ../lib", "usr/lib/f"]]);
    let layer = ["usr/bin/a", "lib/b", "g = lib/f", "h = usr/bin/f", "i = lib/f"];
    let assumes = upper(&layer).unwrap().settle(&below).unwrap().assumes;
    let of = |path: &str, found: &Found| {
        assumes.iter().filter(|assumption| assumption.path == path.as_bytes() && assumption.found == *found).count()
    };
    assert_eq!(of("lib", &Found::Symlink(b"usr/lib".to_vec())), 1, "{assumes:?}");
    assert_eq!(of("usr/bin", &Found::Symlink(b"../lib".to_vec())), 1, "{assumes:?}");
    assert_eq!(of("usr/lib/f", &Found::Copied), 1, "{assumes:?}");
    assert_eq!(upper(&layer).unwrap().settle(&below).unwrap().assumes, assumes);
}

#[test]
fn links_that_were_followed_count_to_what_a_layer_takes_from_below() {
    let lower: Vec<String> = (0..20).map(|at| format!("l{at} -> {}d", "./".repeat(1000))).collect();
    let below = below(&[&lower.iter().map(String::as_str).collect::<Vec<_>>(), &["d/f"]]);
    let with = |form: fn(usize) -> String| {
        let entries: Vec<String> = (0..20).map(form).collect();
        upper(&entries.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    };
    let follow = |most| with(|at| format!("l{at}/x{at}")).follow_links(&below, &mut Assumes::new(most), 1000);
    let resolve = |most| with(|at| format!("h{at} = l{at}/f")).resolve_links(&below, &mut Assumes::new(most), 1000);
    assert!(follow(50_000).is_ok() && resolve(50_000).is_ok());
    for (error, entry) in [(follow(30_000).unwrap_err(), "entry 'l"), (resolve(30_000).unwrap_err(), "entry 'h")] {
        let error = error.to_string();
        assert!(error.starts_with(entry) && error.contains("takes too much from the tree below"), "{error}");
    }
    // The same link again and again is one.
    let again: Vec<String> = (0..1000).map(|at| format!("l0/{at} = l0/f")).collect();
    let mut layer = upper(&again.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let mut assumes = Assumes::new(5000);
    layer.follow_links(&below, &mut assumes, 10_000).unwrap();
    layer.resolve_links(&below, &mut assumes, 10_000).unwrap();
    assert_eq!(assumes.into_list().len(), 2);
}

#[test]
fn the_ways_through_links_are_bounded_together() {
    let mut assumes = Assumes::new(5000);
    let before = below(&[&["f"]]);
    assert!(upper(&["h = f"]).unwrap().resolve_links(&before, &mut assumes, 1000).is_ok());
    (0..=crate::limits::STEPS).find(|_| assumes.step().is_err()).unwrap();
    let error = upper(&["l -> d", "l/x"]).unwrap().follow_links(&before, &mut assumes, 1000).unwrap_err().to_string();
    assert!(error.starts_with("entry 'l") && error.contains("too many names"), "{error}");
}

#[test]
fn of_many_warnings_some_are_kept() {
    let mut upper = Upper::new();
    (0..150).for_each(|at| upper.warn(at.to_string()));
    let warnings = upper.settle(&Merged::new()).unwrap().warnings;
    assert_eq!((warnings.len(), warnings[100].as_str()), (101, "and 50 more"));
}
