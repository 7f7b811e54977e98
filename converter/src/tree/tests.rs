use super::*;
use crate::error::Result;
use crate::tar::{Entry, Kind as TarKind, Shape, TreePath};
use erofs::{Attributes, Kind, Tree};

/// Entries as text: `d/` a directory (its owner after `:`), `s -> t` a symlink, `h = t` a hard link, `c0` after `!` a
/// device 0:0, anything else a file (its owner after `:`); names make whiteouts and opaque marks.
pub(super) fn upper(entries: &[&str]) -> Result<Upper> {
    let mut upper = Upper::new();
    for (number, text) in entries.iter().enumerate() {
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
            Meaning::Whiteout(path) => upper.whiteout(&path),
            Meaning::Opaque(path) => upper.opaque(&path),
            Meaning::Ignored => {}
        }
    }
    Ok(upper)
}

fn below(layers: &[&[&str]]) -> Merged {
    let mut merged = Merged::new();
    for layer in layers {
        let settled = upper(layer).unwrap().settle(&merged).unwrap();
        merged.overlay(&settled.tree, settled.root_opaque);
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
    merged.overlay(&settled.tree, true);
    assert!(merged.at(&TreePath::clean(b"old").unwrap()).is_none());
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
fn nothing_goes_through_a_symlink() {
    assert!(refusal(&[], &["esc -> ../tmp", "esc/f"]).contains("'esc' is a symlink"));
    assert!(refusal(&[&["lib -> usr/lib"]], &["lib/f"]).contains("'lib' is a symlink"));
    assert_eq!(over(&[&["lib -> usr/lib"]], &["lib/", "lib/f"]), ["lib/", "lib/f"]);
    assert_eq!(over(&[&["lib -> usr", "usr/f"]], &["lib/.wh.f", "lib/.wh..wh..opq"]), [""; 0]);
    assert_eq!(over(&[&["lib -> usr/lib"]], &[".wh.lib", "lib/f"]), ["lib/", "lib/f"]);
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
    assert!(matches!(settled.contents[..], [(_, Contents::Below(Placed { layer: 0, .. }))]));
    assert!(settled.assumes.iter().any(|a| a.found == Found::Contents));
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
